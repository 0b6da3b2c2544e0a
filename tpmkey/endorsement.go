package tpmkey

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// The TCG's handles: NV indices of what makers provision for endorsement keys, those of their certificates' chains (EK Credential
// Profile, section 2.2.1), and persistent endorsement keys (Registry of Reserved TPM 2.0 Handles).
const (
	firstEKIndex, lastEKIndex       tpm2.TPMHandle = 0x01c00000, 0x01c07fff
	firstChainIndex, lastChainIndex tpm2.TPMHandle = 0x01c00100, 0x01c001ff
	firstPersistentEK               tpm2.TPMHandle = 0x81010000
	lastPersistentEK                tpm2.TPMHandle = 0x8101ffff
)

// uncertified is the endorsement key of a TPM that has no usable certificate: ECC P-256, which is quick to derive.
const uncertified = "L-2"

func ekByIndex(index uint32) (area.EK, bool) {
	i := slices.IndexFunc(area.EKs, func(kind area.EK) bool { return kind.Index == index })
	if i < 0 {
		return area.EK{}, false
	}
	return area.EKs[i], true
}

// ekIndices lists the indices that [tpm] ek may name.
func ekIndices() string {
	var all []string
	for _, kind := range area.EKs {
		all = append(all, fmt.Sprintf(`"0x%08x"`, kind.Index))
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// endorsementKey is the EK that a TPM is known by.
type endorsementKey struct {
	attest.EK
	kind         area.EK
	handle       tpm2.TPMHandle
	name         tpm2.TPM2BName
	transient    bool     // derived, and to be flushed
	certificates [][]byte // DER: its own, then whatever else the TPM holds
	notes        []string // what stands in the way of a better one
}

// ekSearch is one look for the EK.
type ekSearch struct {
	*link
	provisioned []tpm2.TPMHandle // NV indices
	notes       []string
}

// withEK runs use with the loaded EK. Which one it is must never change on a machine, for the control plane knows the
// machine by it: so the order is fixed, and whatever cannot be read for now is an error and no reason for the next one.
func (l *link) withEK(use func(*endorsementKey) error) (err error) {
	provisioned, err := l.handlesFrom(firstEKIndex, lastEKIndex)
	if err != nil {
		return err
	}
	search := &ekSearch{link: l, provisioned: provisioned}
	ek, err := search.find()
	if err != nil {
		return fmt.Errorf("cannot find the endorsement key: %w", err)
	}
	ek.notes = search.notes
	if ek.transient {
		defer l.flushInto(&err, ek.handle)
	}
	return use(ek)
}

// find goes through the kinds: the low range, then the high range, each if its certificate is one of its key; else the ECC
// P-256 key without a certificate.
func (s *ekSearch) find() (*endorsementKey, error) {
	kinds, last := area.EKs, area.EK{}
	if chosen, given := ekByIndex(s.dev.ek); given {
		kinds, last = []area.EK{chosen}, chosen
	} else {
		last, _ = area.EKByName(uncertified)
	}
	for _, kind := range kinds {
		certificates, err := s.certificatesOf(kind)
		if err != nil {
			return nil, err
		}
		if len(certificates) == 0 {
			continue
		}
		ek, err := s.certified(kind, certificates[0])
		if err != nil {
			return nil, err
		}
		if ek == nil {
			continue
		}
		ek.certificates = certificates
		if err := s.addChain(ek); err != nil {
			return nil, errorsWithFlush(s.link, ek, err)
		}
		return ek, nil
	}
	ek, err := s.derive(last)
	if isUnsupported(err) {
		return nil, fault.New(fault.TPMUnusable, hintNoAttestation, "the TPM cannot make the endorsement key of the template %s: %w", last.Name, err)
	}
	return ek, err
}

// errorsWithFlush frees a found key that nobody will use, and returns why.
func errorsWithFlush(l *link, ek *endorsementKey, err error) error {
	if ek.transient {
		_ = l.flush(ek.handle) // err is the news
	}
	return err
}

func (s *ekSearch) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

func (s *ekSearch) has(index tpm2.TPMHandle) bool { return slices.Contains(s.provisioned, index) }

// certificatesOf reads the certificates at a kind's index.
func (s *ekSearch) certificatesOf(kind area.EK) ([][]byte, error) {
	index := tpm2.TPMHandle(kind.Index)
	if !s.has(index) {
		return nil, nil
	}
	data, err := s.readNV(index)
	if isNVRefusal(err) && !fault.Is(err, fault.TPMAuth) {
		return nil, fault.New(fault.TPMUnusable, hintOtherEK, "%w", err)
	} else if err != nil {
		return nil, err
	}
	certificates := attest.Certificates(data)
	if len(certificates) == 0 {
		s.note("the NV index 0x%08x holds no certificate", kind.Index)
	}
	return certificates, nil
}

// certified returns the loaded key that a certificate is of, nil where this TPM has no such key.
func (s *ekSearch) certified(kind area.EK, certificate []byte) (*endorsementKey, error) {
	spki, err := attest.CertificateSPKI(certificate)
	if err == nil {
		err = attest.EK{SPKI: spki, Template: kind.Name}.Check()
	}
	if err != nil {
		s.note("the certificate at 0x%08x is not used: %v", kind.Index, err)
		return nil, nil
	}
	ek, err := s.persistent(kind, spki)
	if ek != nil || err != nil {
		return ek, err
	}
	variants, err := s.variants(kind)
	if err != nil {
		return nil, err
	}
	for _, variant := range variants {
		ek, err := s.derive(variant)
		if isUnsupported(err) {
			s.note("the certificate at 0x%08x is not used: the TPM cannot make a key of its template, %s", kind.Index, kind.Name)
			return nil, nil
		} else if err != nil {
			return nil, err
		}
		if bytes.Equal(ek.SPKI, spki) {
			return ek, nil
		}
		if err := s.flush(ek.handle); err != nil {
			return nil, err
		}
	}
	s.note("the certificate at 0x%08x is not used: it is of another key than the TPM's", kind.Index)
	return nil, nil
}

// persistent finds a key that the TPM keeps. An RSA key takes a chip seconds to derive.
func (s *ekSearch) persistent(kind area.EK, spki []byte) (*endorsementKey, error) {
	kept, err := s.handlesFrom(firstPersistentEK, lastPersistentEK)
	if err != nil {
		return nil, err
	}
	for _, handle := range kept {
		read, err := tpm2.ReadPublic{ObjectHandle: handle}.Execute(s)
		if err != nil {
			return nil, fmt.Errorf("cannot read the key at 0x%08x: %w", uint32(handle), err)
		}
		ek, err := newEndorsementKey(kind, handle, read.Name, read.OutPublic)
		if err == nil && bytes.Equal(ek.SPKI, spki) {
			return ek, nil
		}
	}
	return nil, nil
}

// variants lists what a key of the kind may have been derived from: the TCG's template, and that template with what
// the maker keeps beside the certificate, a template of its own or a nonce.
func (s *ekSearch) variants(kind area.EK) ([]area.EK, error) {
	all := []area.EK{kind}
	if index := tpm2.TPMHandle(kind.Template); kind.Template != 0 && s.has(index) {
		data, err := s.readNV(index)
		if err != nil && !isNVRefusal(err) {
			return nil, err
		}
		if public, err := area.Unmarshal[tpm2.TPMTPublic](data); err == nil {
			if variant, fits := kind.WithUniqueOf(public); fits {
				all = append(all, variant)
			}
		}
	}
	if index := tpm2.TPMHandle(kind.Nonce); kind.Nonce != 0 && s.has(index) {
		nonce, err := s.readNV(index)
		if err != nil && !isNVRefusal(err) {
			return nil, err
		}
		if variant, fits := kind.WithNonce(nonce); fits && len(nonce) > 0 {
			all = append(all, variant)
		}
	}
	return all, nil
}

// derive loads the key of a template.
func (s *ekSearch) derive(kind area.EK) (*endorsementKey, error) {
	made, err := s.createPrimary(endorsementHierarchy, kind.Public)
	if err != nil {
		return nil, fmt.Errorf("cannot derive it from the template %s: %w", kind.Name, err)
	}
	ek, err := newEndorsementKey(kind, made.ObjectHandle, made.Name, made.OutPublic)
	if err != nil {
		_ = s.flush(made.ObjectHandle) // err is the news
		return nil, fmt.Errorf("cannot derive it from the template %s: %w", kind.Name, err)
	}
	ek.transient = true
	return ek, nil
}

func newEndorsementKey(kind area.EK, handle tpm2.TPMHandle, name tpm2.TPM2BName, public tpm2.TPM2BPublic) (*endorsementKey, error) {
	contents, err := public.Contents()
	if err != nil {
		return nil, err
	}
	key, err := kind.Key(contents)
	if err != nil {
		return nil, err
	}
	spki, err := attest.MarshalSPKI(key)
	if err != nil {
		return nil, err
	}
	return &endorsementKey{EK: attest.EK{SPKI: spki, Template: kind.Name}, kind: kind, handle: handle, name: name}, nil
}

// addChain adds the certificates of the maker's authorities: one after the other, perhaps over several indices.
func (s *ekSearch) addChain(ek *endorsementKey) error {
	var data []byte
	for _, index := range s.provisioned {
		if index < firstChainIndex || index > lastChainIndex {
			continue
		}
		part, err := s.readNV(index)
		if isNVRefusal(err) {
			s.note("%v", err)
			continue
		} else if err != nil {
			return err
		}
		data = append(data, part...)
	}
	ek.certificates = append(ek.certificates, attest.Certificates(data)...)
	if len(ek.certificates) > attest.MaxCertificates {
		s.note("the TPM holds more than %d certificates; those after them are left out", attest.MaxCertificates)
		ek.certificates = ek.certificates[:attest.MaxCertificates]
	}
	return nil
}

// withPolicy runs use with a session that meets the EK's policy: knowledge of the endorsement hierarchy's authorisation.
func (l *link) withPolicy(ek *endorsementKey, use func(tpm2.Session) error) (err error) {
	session, _, err := tpm2.PolicySession(l, ek.kind.Public.NameAlg, sessionNonce)
	if err != nil {
		return fmt.Errorf("cannot start a policy session: %w", err)
	}
	l.live = append(l.live, session.Handle())
	defer l.flushInto(&err, session.Handle())
	err = l.withAuth(endorsementHierarchy, func(auth tpm2.Session) error {
		_, err := tpm2.PolicySecret{
			AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: auth}, PolicySession: session.Handle(),
		}.Execute(l)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot use the endorsement hierarchy: %w", err)
	}
	if ek.kind.High {
		branches := tpm2.TPMLDigest{}
		for _, digest := range ek.kind.PolicyBranches() {
			branches.Digests = append(branches.Digests, tpm2.TPM2BDigest{Buffer: digest})
		}
		if _, err := (tpm2.PolicyOr{PolicySession: session.Handle(), PHashList: branches}).Execute(l); err != nil {
			return fmt.Errorf("cannot use the endorsement key's policy: %w", err)
		}
	}
	return use(session)
}

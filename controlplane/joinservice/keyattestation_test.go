package joinservice_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"slices"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

// next is the next key of a member, its CSR and the attestation.
func (m *tpmMember) next() (crypto.Signer, []byte, *daemonv1.KeyAttestation) {
	m.t.Helper()
	key := m.nodeKey()
	csr := newCSR(m.t, key)
	return key, csr, m.certify(key, csr)
}

func (w *world) mustRenewByTPM(m *tpmMember) *tpmMember {
	w.t.Helper()
	key, csr, attested := m.next()
	req, pop := w.tpmRenewal(m, csr, attested)
	resp, err := w.svc.Renew(context.Background(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	a := w.openRenew(req, pop, resp)
	return &tpmMember{m.tpmMachine, a.GetNodeId(), key, a.GetChain()[0]}
}

func urisOf(t testing.TB, der []byte) (uris []string) {
	t.Helper()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range leaf.URIs {
		uris = append(uris, u.String())
	}
	return uris
}

// Req: RN-019 RN-020 RN-024 RN-025
func TestACertifiedKeyRenewsWithTheNextOne(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	member := w.mustJoinByTPM(m)
	for range 3 {
		w.clock.add(12 * time.Hour)
		next := w.mustRenewByTPM(member)
		if !slices.Equal(urisOf(t, next.leaf), urisOf(t, member.leaf)) || urisOf(t, next.leaf)[1] != m.statement() {
			t.Errorf("URIs %q", urisOf(t, next.leaf))
		}
		member = next
	}
	// A repeat, attested afresh, is the same.
	key := m.nodeKey()
	csr := newCSR(t, key)
	req, pop := w.tpmRenewal(member, csr, m.certify(key, csr))
	resp, err := w.svc.Renew(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	first := w.openRenew(req, pop, resp)
	w.clock.add(time.Second)
	req, pop = w.tpmRenewal(member, csr, m.certify(key, csr))
	if resp, err = w.svc.Renew(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if again := w.openRenew(req, pop, resp); !bytes.Equal(again.GetChain()[0], first.GetChain()[0]) {
		t.Error("a repeat got another certificate")
	}
	w.clock.add(time.Second)
	req, _ = w.tpmRenewal(member, csr, nil)
	if e := w.refusedRenew(req, w.root); e.Reason != "key-attestation-missing" {
		t.Errorf("a repeat without attestation: %q", e.Reason)
	}
}

// attack is a CSR and an attestation that must not renew or join.
type attack func(m *tpmMachine) (key crypto.Signer, csr []byte, a *daemonv1.KeyAttestation)

// attacks are what somebody who has the node's current key, and even its TPM, may try to get a key certified that the TPM
// does not hold. Each has one thing wrong. Everything else of it is real: made and signed by the TPM.
func attacks(t testing.TB) map[string]struct {
	reason string
	attack
} {
	other := newTPMMachine(t)
	inside := func(change func(m *tpmMachine, csr []byte, a *daemonv1.KeyAttestation)) attack {
		return func(m *tpmMachine) (crypto.Signer, []byte, *daemonv1.KeyAttestation) {
			key := m.nodeKey()
			csr := newCSR(t, key)
			a := m.certify(key, csr)
			change(m, csr, a)
			return key, csr, a
		}
	}
	outside := func(certify func(m *tpmMachine, csr []byte) *daemonv1.KeyAttestation) attack {
		return func(m *tpmMachine) (crypto.Signer, []byte, *daemonv1.KeyAttestation) {
			key := newKey(t)
			csr := newCSR(t, key)
			return key, csr, certify(m, csr)
		}
	}
	return map[string]struct {
		reason string
		attack
	}{
		"no attestation": {"key-attestation-missing", outside(func(*tpmMachine, []byte) *daemonv1.KeyAttestation { return nil })},
		"an empty one": {"key-attestation-missing", inside(func(_ *tpmMachine, _ []byte, a *daemonv1.KeyAttestation) {
			a.CertifyInfo, a.Signature, a.NodePublic, a.AkPublic = nil, nil, nil, nil
		})},
		"another TPM": {"key-attestation-ak", func(*tpmMachine) (crypto.Signer, []byte, *daemonv1.KeyAttestation) {
			key := other.nodeKey()
			csr := newCSR(t, key)
			return key, csr, other.certify(key, csr)
		}},
		"another AK's name": {"key-attestation-ak", inside(func(_ *tpmMachine, _ []byte, a *daemonv1.KeyAttestation) { a.AkPublic = other.id.AKPublic })},
		"an AK that signs anything": {"key-attestation-ak", inside(func(_ *tpmMachine, _ []byte, a *daemonv1.KeyAttestation) {
			// The TPM's own node key as the AK: it certifies whatever it is given.
			a.AkPublic = a.GetNodePublic()
		})},
		"a signature by another TPM": {"node-key-signature", inside(func(_ *tpmMachine, csr []byte, a *daemonv1.KeyAttestation) {
			a.Signature = other.certify(other.nodeKey(), csr).GetSignature()
		})},
		"a signature of another certification": {"node-key-signature", inside(func(m *tpmMachine, _ []byte, a *daemonv1.KeyAttestation) {
			a.Signature = m.certify(m.nodeKey(), []byte("another")).GetSignature()
		})},
		"a quote": {"node-key-mismatch", inside(func(m *tpmMachine, csr []byte, a *daemonv1.KeyAttestation) {
			a.CertifyInfo, a.Signature = m.quote(csr)
		})},
		"a software key, beside a certified one": {"node-key-mismatch", outside(func(m *tpmMachine, csr []byte) *daemonv1.KeyAttestation {
			return m.certify(m.nodeKey(), csr)
		})},
		"another key of the TPM, by name": {"node-key-mismatch", inside(func(m *tpmMachine, csr []byte, a *daemonv1.KeyAttestation) {
			a.NodePublic = m.certify(m.nodeKey(), csr).GetNodePublic()
		})},
		"the certification of another request": {"node-key-qualifying", inside(func(m *tpmMachine, _ []byte, a *daemonv1.KeyAttestation) {
			of := m.certify(m.nodeKey(), []byte("another"))
			a.CertifyInfo, a.Signature, a.NodePublic = of.GetCertifyInfo(), of.GetSignature(), of.GetNodePublic()
		})},
		"a key that may leave": {"node-key-attributes", outside(func(m *tpmMachine, csr []byte) *daemonv1.KeyAttestation {
			return m.certifyNew(csr, func(a *tpm2.TPMAObject) { a.FixedTPM, a.FixedParent = false, false })
		})},
		"a key that decrypts too": {"node-key-attributes", outside(func(m *tpmMachine, csr []byte) *daemonv1.KeyAttestation {
			return m.certifyNew(csr, func(a *tpm2.TPMAObject) { a.Decrypt = true })
		})},
		"an imported key": {"node-key-attributes", func(m *tpmMachine) (crypto.Signer, []byte, *daemonv1.KeyAttestation) {
			// The machine's owner has it outside too.
			key := newKey(t)
			csr := newCSR(t, key)
			return key, csr, m.certifyImported(key, csr)
		}},
	}
}

// Req: RN-019 RN-020 RN-021 RN-026 RN-027 RN-028
func TestAKeyThatTheTPMDoesNotHoldIsNotCertified(t *testing.T) {
	m := newTPMMachine(t)
	w := newWorld(t, tpm())
	w.giveToOther()
	w.allow(m, func(e *store.EKAllow) { e.TenantID = w.other })
	member := w.mustJoinByTPM(m)
	for name, c := range attacks(t) {
		t.Run("renew/"+name, func(t *testing.T) {
			w.t = t
			w.clock.add(time.Second)
			_, csr, attested := c.attack(m)
			req, _ := w.tpmRenewal(member, csr, attested)
			if e := w.refusedRenew(req, w.other); e.Reason != c.reason || e.NodeID != member.nodeID {
				t.Errorf("reason %q, want %q", e.Reason, c.reason)
			}
		})
		t.Run("x509pop/"+name, func(t *testing.T) {
			w.t = t
			w.clock.add(time.Second)
			key, csr, attested := c.attack(m)
			if e := w.refusedJoin(w.tpmRejoin(member, key, csr, attested), w.other); e.Reason != "x509pop:"+c.reason {
				t.Errorf("reason %q, want %q", e.Reason, c.reason)
			}
		})
		t.Run("join/"+name, func(t *testing.T) {
			w.t = t
			key, csr, attested := c.attack(m)
			e := m.answer(challenge(t, w.svc, m.challengeRequest(csr)), csr)
			e.KeyAttestation = attested
			w.refusedTPM(w.tpmRequest(m, key, csr, e), w.other, "tpm:"+c.reason)
		})
	}
	w.t = t
	if certs := w.certs(member.nodeID); len(certs) != 1 {
		t.Errorf("%d certificates", len(certs))
	}
	w.mustRenewByTPM(member)
}

// A request that holds no CSR at all matches no attestation.
func TestARenewalOfACertifiedKeyWithoutACSR(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	member := w.mustJoinByTPM(m)
	csr := []byte("no CSR")
	req, _ := w.tpmRenewal(member, csr, m.certify(m.nodeKey(), csr))
	if e := w.refusedRenew(req, w.root); e.Reason != "node-key-mismatch" {
		t.Errorf("reason %q", e.Reason)
	}
}

// tpmRejoin returns the Join of a member by x509pop.
func (w *world) tpmRejoin(m *tpmMember, key crypto.Signer, csr []byte, attested *daemonv1.KeyAttestation) *joinv1.JoinRequest {
	w.t.Helper()
	sig, err := signing.Sign(m.key, signing.X509PoP, signing.PoP(sha256.Sum256(csr), w.now(), m.nodeID))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.request(&machine{claims: m.claims, csr: csr}, token{}, func(c *call) {
		c.key, c.body.Attestor = key, "x509pop"
		c.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_X509Pop{X509Pop: &daemonv1.X509PopEvidence{
			Chain: [][]byte{m.leaf}, ClientTimeUnixMs: w.now().UnixMilli(), PopSig: sig, KeyAttestation: attested,
		}}}
	})
}

// Req: RN-027
func TestACertifiedKeyJoinsAgainByX509PoP(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	member := w.mustJoinByTPM(m)
	w.clock.add(48 * time.Hour)
	key, csr, attested := member.next()
	a := w.mustAdmit(w.tpmRejoin(member, key, csr, attested))
	if a.GetNodeId() != member.nodeID || a.GetIdentityGeneration() != 1 || !slices.Equal(urisOf(t, a.GetChain()[0]), urisOf(t, member.leaf)) {
		t.Errorf("admission %v", a)
	}
}

// attestationKey derives bcd's AK, by a test's own means.
func (m *tpmMachine) attestationKey(chip transport.TPM) *tpm2.CreatePrimaryResponse {
	m.t.Helper()
	area, err := tpm2.Unmarshal[tpm2.TPMTPublic](m.id.AKPublic)
	if err != nil {
		m.t.Fatal(err)
	}
	seed := sha256.Sum256([]byte("better-compute bcd AK v1"))
	area.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: seed[:]}})
	made, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHEndorsement, InPublic: tpm2.New2B(*area)}.Execute(chip)
	if err != nil {
		m.t.Fatal(err)
	}
	if !bytes.Equal(made.OutPublic.Bytes(), m.id.AKPublic) {
		m.t.Fatal("another AK")
	}
	return made
}

var ecdsaSHA256 = tpm2.TPMTSigScheme{
	Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUSigScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSchemeHash{HashAlg: tpm2.TPMAlgSHA256}),
}

// quote has the AK sign a quote over the digest of a CSR: what is signed differs from a certification in its type alone.
func (m *tpmMachine) quote(csr []byte) (info, signature []byte) {
	m.t.Helper()
	m.tpm.Do(m.t, func(chip transport.TPM) {
		ak := m.attestationKey(chip)
		defer flush(m.t, chip, ak.ObjectHandle)
		digest := sha256.Sum256(csr)
		quoted, err := tpm2.Quote{
			SignHandle:     tpm2.AuthHandle{Handle: ak.ObjectHandle, Name: ak.Name, Auth: tpm2.PasswordAuth(nil)},
			QualifyingData: tpm2.TPM2BData{Buffer: digest[:]}, InScheme: ecdsaSHA256,
			PCRSelect: tpm2.TPMLPCRSelection{PCRSelections: []tpm2.TPMSPCRSelection{{Hash: tpm2.TPMAlgSHA256, PCRSelect: []byte{1, 0, 0}}}},
		}.Execute(chip)
		if err != nil {
			m.t.Fatal(err)
		}
		info, signature = quoted.Quoted.Bytes(), tpm2.Marshal(quoted.Signature)
	})
	return info, signature
}

// certifyNew has the AK certify a key that the TPM made, with other attributes than a node's.
func (m *tpmMachine) certifyNew(csr []byte, change func(*tpm2.TPMAObject)) (a *daemonv1.KeyAttestation) {
	m.t.Helper()
	area := m.nodeArea(csr)
	change(&area.ObjectAttributes)
	if area.ObjectAttributes.Decrypt { // a key for both has no scheme
		area.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{CurveID: tpm2.TPMECCNistP256})
	}
	area.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{})
	m.tpm.Do(m.t, func(chip transport.TPM) {
		parent := m.storageKey(chip)
		defer flush(m.t, chip, parent.Handle)
		made, err := tpm2.Create{ParentHandle: parent, InPublic: tpm2.New2B(*area)}.Execute(chip)
		if err != nil {
			m.t.Fatal(err)
		}
		a = m.certifyLoaded(chip, parent, made.OutPrivate, made.OutPublic, csr)
	})
	return a
}

// certifyImported has the AK certify a software key that was imported into the TPM.
func (m *tpmMachine) certifyImported(key *ecdsa.PrivateKey, csr []byte) (a *daemonv1.KeyAttestation) {
	m.t.Helper()
	point, err := key.PublicKey.Bytes()
	if err != nil {
		m.t.Fatal(err)
	}
	secret, err := key.Bytes()
	if err != nil {
		m.t.Fatal(err)
	}
	area := m.nodeArea(csr)
	area.ObjectAttributes.FixedTPM, area.ObjectAttributes.FixedParent, area.ObjectAttributes.SensitiveDataOrigin = false, false, false
	area.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: point[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: point[33:]},
	})
	sensitive := tpm2.Marshal(tpm2.TPMTSensitive{
		SensitiveType: tpm2.TPMAlgECC,
		Sensitive:     tpm2.NewTPMUSensitiveComposite(tpm2.TPMAlgECC, &tpm2.TPM2BECCParameter{Buffer: secret}),
	})
	m.tpm.Do(m.t, func(chip transport.TPM) {
		parent := m.storageKey(chip)
		defer flush(m.t, chip, parent.Handle)
		in, err := tpm2.Import{
			ParentHandle: parent, ObjectPublic: tpm2.New2B(*area),
			Duplicate: tpm2.TPM2BPrivate{Buffer: tpm2.Marshal(tpm2.TPM2BData{Buffer: sensitive})},
			Symmetric: tpm2.TPMTSymDef{Algorithm: tpm2.TPMAlgNull},
		}.Execute(chip)
		if err != nil {
			m.t.Fatal(err)
		}
		a = m.certifyLoaded(chip, parent, in.OutPrivate, tpm2.New2B(*area), csr)
	})
	return a
}

// nodeArea is the public area of a node's key of the TPM.
func (m *tpmMachine) nodeArea(csr []byte) *tpm2.TPMTPublic {
	m.t.Helper()
	area, err := tpm2.Unmarshal[tpm2.TPMTPublic](m.certify(m.nodeKey(), csr).GetNodePublic())
	if err != nil {
		m.t.Fatal(err)
	}
	return area
}

func (m *tpmMachine) storageKey(chip transport.TPM) tpm2.AuthHandle {
	m.t.Helper()
	made, err := tpm2.CreatePrimary{PrimaryHandle: tpm2.TPMRHOwner, InPublic: tpm2.New2B(tpm2.ECCSRKTemplate)}.Execute(chip)
	if err != nil {
		m.t.Fatal(err)
	}
	return tpm2.AuthHandle{Handle: made.ObjectHandle, Name: made.Name, Auth: tpm2.PasswordAuth(nil)}
}

func (m *tpmMachine) certifyLoaded(
	chip transport.TPM, parent tpm2.AuthHandle, private tpm2.TPM2BPrivate, public tpm2.TPM2BPublic, csr []byte,
) *daemonv1.KeyAttestation {
	m.t.Helper()
	loaded, err := tpm2.Load{ParentHandle: parent, InPrivate: private, InPublic: public}.Execute(chip)
	if err != nil {
		m.t.Fatal(err)
	}
	defer flush(m.t, chip, loaded.ObjectHandle)
	ak := m.attestationKey(chip)
	defer flush(m.t, chip, ak.ObjectHandle)
	digest := sha256.Sum256(csr)
	made, err := tpm2.Certify{
		ObjectHandle:   tpm2.AuthHandle{Handle: loaded.ObjectHandle, Name: loaded.Name, Auth: tpm2.PasswordAuth(nil)},
		SignHandle:     tpm2.AuthHandle{Handle: ak.ObjectHandle, Name: ak.Name, Auth: tpm2.PasswordAuth(nil)},
		QualifyingData: tpm2.TPM2BData{Buffer: digest[:]}, InScheme: ecdsaSHA256,
	}.Execute(chip)
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.KeyAttestation{
		CertifyInfo: made.CertifyInfo.Bytes(), Signature: tpm2.Marshal(made.Signature), NodePublic: public.Bytes(), AkPublic: m.id.AKPublic,
	}
}

func flush(t testing.TB, chip transport.TPM, handle tpm2.TPMHandle) {
	if _, err := (tpm2.FlushContext{FlushHandle: handle}).Execute(chip); err != nil {
		t.Error(err)
	}
}

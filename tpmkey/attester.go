package tpmkey

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// Attester proves to others which TPM this is and that a node's key lives in it. Its keys, the endorsement key (EK) and the
// attestation key (AK), are primary keys of the endorsement hierarchy: each operation derives them anew, and nothing is
// stored. Clearing the TPM keeps both.
//
// The EK is the first of these that the TPM has, in an order that never changes: RSA 2048 at the NV index 0x01c00002 with
// its certificate; ECC P-256 at 0x01c0000a with its certificate; a key of the high range (0x01c00012 and up) with its
// certificate; ECC P-256 without one. [Options.EK] names another.
type Attester struct{ tpm *device }

// Attester returns the attester of the store's TPM. It opens nothing. There is no way around the TPM here: in mode [Off]
// each of its operations fails.
func (s *Store) Attester() *Attester {
	if s.mode == Off {
		return &Attester{s.tpm.refusing()}
	}
	return &Attester{s.tpm}
}

// Identity is what a TPM is known by.
type Identity struct {
	// EK is the endorsement key.
	EK attest.EK
	// EKIndex is the NV index that stands for the EK's template, as [Options.EK] names it.
	EKIndex uint32
	// EKCertificates are DER certificates: the EK's own, then what else the TPM holds of its maker's authorities. It is empty
	// for a TPM without a certificate for the EK.
	EKCertificates [][]byte
	// AKPublic is the AK's public area (TPMT_PUBLIC). [attest.AKStatement] says its name.
	AKPublic []byte
	// Manufacturer is the maker's four letters in the TCG's registry ("IFX", "INTC"); "IBM" and "SW" are software.
	Manufacturer string
	// Model is the maker's own text.
	Model string
	// FirmwareVersion is the TPM's, two numbers of 32 bits as "7.85.4555.0": four of 16.
	FirmwareVersion string
	// Spec is the family and the revision of the TCG's specification that the TPM says it follows, as "2.0 revision 1.59".
	Spec string
	// Notes say, for people, why the EK is no other one.
	Notes []string
}

// Identify tells which TPM this is.
func (a *Attester) Identify(ctx context.Context) (Identity, error) {
	var id Identity
	err := a.tpm.do(ctx, "identify the TPM", func(l *link) (err error) {
		if err := l.describe(&id); err != nil {
			return err
		}
		err = l.withEK(func(ek *endorsementKey) error {
			id.EK, id.EKIndex, id.EKCertificates, id.Notes = ek.EK, ek.kind.Index, ek.certificates, ek.notes
			return nil
		})
		if err != nil {
			return err
		}
		id.AKPublic, err = l.akPublic()
		return err
	})
	if err != nil {
		return Identity{}, err
	}
	return id, nil
}

// AKPublic derives the AK and returns its public area (TPMT_PUBLIC).
func (a *Attester) AKPublic(ctx context.Context) (public []byte, err error) {
	err = a.tpm.do(ctx, "derive the TPM's attestation key", func(l *link) (err error) {
		public, err = l.akPublic()
		return err
	})
	if err != nil {
		return nil, err
	}
	return public, nil
}

// maxCredential bounds the two parts of a challenge, in bytes: an encrypted secret is as long as an RSA 4096 key.
const maxCredential = 1024

// ActivateCredential opens what [attest.MakeCredential] made for this TPM's EK and AK, and returns the secret of 32 bytes.
func (a *Attester) ActivateCredential(ctx context.Context, credentialBlob, encryptedSecret []byte) (secret []byte, err error) {
	const what = "answer the control plane's challenge with the TPM"
	if len(credentialBlob) > maxCredential || len(encryptedSecret) > maxCredential {
		return nil, fault.New(fault.Verification, hintChallenge, "cannot %s: it has parts of %d and %d bytes, more than %d",
			what, len(credentialBlob), len(encryptedSecret), maxCredential)
	}
	err = a.tpm.do(ctx, what, func(l *link) error {
		return l.withEK(func(ek *endorsementKey) error {
			return l.withAK(func(ak *attestationKey) (err error) {
				secret, err = l.activate(ek, ak, credentialBlob, encryptedSecret)
				return err
			})
		})
	})
	if err != nil {
		return nil, err
	}
	return secret, nil
}

func (l *link) activate(ek *endorsementKey, ak *attestationKey, credentialBlob, encryptedSecret []byte) (secret []byte, err error) {
	err = l.withPolicy(ek, func(session tpm2.Session) error {
		opened, err := tpm2.ActivateCredential{
			ActivateHandle: ak.auth(),
			KeyHandle:      tpm2.AuthHandle{Handle: ek.handle, Name: ek.name, Auth: session},
			CredentialBlob: tpm2.TPM2BIDObject{Buffer: credentialBlob},
			Secret:         tpm2.TPM2BEncryptedSecret{Buffer: encryptedSecret},
		}.Execute(l)
		if isWrongChallenge(err) || errors.Is(err, tpm2.TPMRCFailure) && l.works(ek) {
			return fault.New(fault.Verification, hintChallenge, "the challenge is not for this TPM's keys, or was changed on its way: %w", err)
		}
		if err != nil {
			return err
		}
		secret = opened.CertInfo.Buffer
		return nil
	})
	if err == nil && len(secret) != sha256.Size {
		err = fault.New(fault.Verification, hintChallenge, "the challenge holds %d bytes, not %d", len(secret), sha256.Size)
	}
	return secret, err
}

// works reports whether the TPM still answers commands. The reference implementation says TPM_RC_FAILURE to a ciphertext that is
// no OAEP; a TPM in failure mode says it to everything.
func (l *link) works(ek *endorsementKey) bool {
	_, err := tpm2.ReadPublic{ObjectHandle: ek.handle}.Execute(l)
	return err == nil
}

// Certify has the AK vouch for a key of this TPM that [Store.New] made. qualifying is signed with it: SHA-256 of the
// certificate request that the key is in.
func (a *Attester) Certify(ctx context.Context, key crypto.Signer, qualifying [32]byte) (attest.Certification, error) {
	const what = "certify the node's key with the TPM"
	k, ok := key.(*tpmKey)
	if !ok {
		return attest.Certification{}, fault.New(fault.TPMUnusable, hintNotInTPM, "cannot %s: the key is not in the TPM", what)
	}
	var c attest.Certification
	err := a.tpm.do(ctx, what, func(l *link) error {
		return l.withNodeKey(k.record, func(node tpm2.AuthHandle) error {
			return l.withAK(func(ak *attestationKey) (err error) {
				c, err = l.certify(node, ak, qualifying)
				return err
			})
		})
	})
	if err != nil {
		return attest.Certification{}, err
	}
	c.NodePublic = bytes.Clone(k.record.public.Bytes())
	statement, err := attest.AKStatement(c.AKPublic)
	if err == nil {
		err = attest.VerifyCertification(c, statement, k.Public(), qualifying)
	}
	if err != nil {
		// A bus that flips bits or a broken chip; the control plane would only refuse.
		return attest.Certification{}, fault.New(fault.TPMUnavailable, hintReboot, "cannot %s: the TPM made a certification that does not verify: %w", what, err)
	}
	return c, nil
}

func (l *link) certify(node tpm2.AuthHandle, ak *attestationKey, qualifying [32]byte) (attest.Certification, error) {
	made, err := tpm2.Certify{
		ObjectHandle:   node,
		SignHandle:     ak.auth(),
		QualifyingData: tpm2.TPM2BData{Buffer: qualifying[:]},
		InScheme: tpm2.TPMTSigScheme{
			Scheme:  tpm2.TPMAlgECDSA,
			Details: tpm2.NewTPMUSigScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSchemeHash{HashAlg: tpm2.TPMAlgSHA256}),
		},
	}.Execute(l)
	if err != nil {
		return attest.Certification{}, err
	}
	return attest.Certification{
		CertifyInfo: bytes.Clone(made.CertifyInfo.Bytes()), Signature: tpm2.Marshal(made.Signature), AKPublic: ak.public,
	}, nil
}

// attestationKey is the loaded AK.
type attestationKey struct {
	handle tpm2.TPMHandle
	name   tpm2.TPM2BName
	public []byte // TPMT_PUBLIC
}

func (ak *attestationKey) auth() tpm2.AuthHandle {
	return tpm2.AuthHandle{Handle: ak.handle, Name: ak.name, Auth: emptyAuth}
}

// withAK runs use with the loaded AK.
func (l *link) withAK(use func(*attestationKey) error) (err error) {
	made, err := l.createPrimary(endorsementHierarchy, area.AK())
	if isUnsupported(err) {
		return fault.New(fault.TPMUnusable, hintNoAttestation, "the TPM cannot make the attestation key: %w", err)
	} else if err != nil {
		return fmt.Errorf("cannot derive the attestation key: %w", err)
	}
	defer l.flushInto(&err, made.ObjectHandle)
	ak := &attestationKey{handle: made.ObjectHandle, name: made.Name, public: bytes.Clone(made.OutPublic.Bytes())}
	if _, err := attest.AKStatement(ak.public); err != nil {
		return fault.New(fault.TPMUnusable, hintNoAttestation, "the TPM made another attestation key than it was asked for: %w", err)
	}
	return use(ak)
}

func (l *link) akPublic() (public []byte, err error) {
	if err := l.checkCurve(hintNoAttestation); err != nil {
		return nil, err
	}
	err = l.withAK(func(ak *attestationKey) error {
		public = ak.public
		return nil
	})
	return public, err
}

// isWrongChallenge reports whether the TPM could not open what it was given.
func isWrongChallenge(err error) bool {
	for _, rc := range []tpm2.TPMRC{
		tpm2.TPMRCIntegrity, tpm2.TPMRCValue, tpm2.TPMRCSize, tpm2.TPMRCInsufficient, tpm2.TPMRCECCPoint, tpm2.TPMRCNoResult,
	} {
		if errors.Is(err, rc) {
			return true
		}
	}
	return false
}

package attest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// EK is a TPM's endorsement key.
type EK struct {
	// SPKI is the public key: a DER SubjectPublicKeyInfo (rsaEncryption, or a named curve with an uncompressed point).
	SPKI []byte
	// Template is what the TCG's EK Credential Profile calls the template that the key is made from: "L-1" and "L-2", the
	// low range's RSA 2048 and ECC P-256, or "H-1", "H-2", "H-3", "H-4", "H-6" or "H-7" of the high range.
	Template string
}

// maxSPKI bounds [EK.SPKI], in bytes. An RSA 4096 key has 550.
const maxSPKI = 1024

// Hash returns the name of the key for people and allow-lists: SHA-256 of [EK.SPKI].
func (e EK) Hash() [32]byte { return sha256.Sum256(e.SPKI) }

// Check refuses a template that is unknown, a key that is not of the template's kind, and any encoding of it but the one
// that the hash is taken of.
func (e EK) Check() error {
	_, err := e.public()
	return err
}

// public rebuilds the public area. Nothing of it but the key is taken from the machine: an area with other attributes
// would be no endorsement key, and one whose policy somebody can meet gives the secret away.
func (e EK) public() (*tpm2.TPMTPublic, error) {
	kind, known := area.EKByName(e.Template)
	if !known {
		return nil, fmt.Errorf("unknown endorsement key template %q", e.Template)
	}
	key, err := parseSPKI(e.SPKI)
	if err != nil {
		return nil, fmt.Errorf("unusable endorsement key: %w", err)
	}
	public, err := kind.Filled(key)
	if err != nil {
		return nil, fmt.Errorf("unusable endorsement key: %w", err)
	}
	return &public, nil
}

func parseSPKI(spki []byte) (crypto.PublicKey, error) {
	if len(spki) > maxSPKI {
		return nil, fmt.Errorf("it has %d bytes, more than %d", len(spki), maxSPKI)
	}
	key, err := x509.ParsePKIXPublicKey(spki)
	if err != nil {
		return nil, err
	}
	again, err := MarshalSPKI(key)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, spki) {
		return nil, fmt.Errorf("it is not in its one encoding")
	}
	return key, nil
}

// MarshalSPKI returns the one encoding of a public key that [EK.SPKI] takes. It refuses keys that no template has.
func MarshalSPKI(key crypto.PublicKey) ([]byte, error) {
	switch key := key.(type) {
	case *rsa.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P224() {
			return nil, fmt.Errorf("no endorsement key is on the curve %s", key.Curve.Params().Name)
		}
	default:
		return nil, fmt.Errorf("an endorsement key is not a %T", key)
	}
	return x509.MarshalPKIXPublicKey(key)
}

// MakeCredential encrypts a secret to the TPM that holds both the EK and the AK, as TPM2_MakeCredential does (TPM 2.0 Part 1,
// section 24). It returns what TPM2_ActivateCredential takes: the TPMS_ID_OBJECT and the encrypted seed, each without the
// two bytes of length that stand before it on the wire. akPublic is the AK's TPMT_PUBLIC; an area that is not exactly
// bcd's AK is refused, and so is an EK that does not pass [EK.Check].
func MakeCredential(ek EK, akPublic []byte, secret [32]byte) (credentialBlob, encryptedSecret []byte, err error) {
	public, err := ek.public()
	if err != nil {
		return nil, nil, err
	}
	if _, err := akPoint(akPublic); err != nil {
		return nil, nil, fmt.Errorf("unusable attestation key: %w", err)
	}
	to, err := tpm2.ImportEncapsulationKey(public)
	if err != nil {
		return nil, nil, fmt.Errorf("unusable endorsement key: %w", err)
	}
	credentialBlob, encryptedSecret, err = tpm2.CreateCredential(rand.Reader, to, area.Name(akPublic), secret[:])
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encrypt to the endorsement key: %w", err)
	}
	return credentialBlob, encryptedSecret, nil
}

// Proof is the answer to a challenge, bound to one certificate request: HMAC-SHA256 of csrSHA256 under the secret. Compare
// it with [hmac.Equal].
func Proof(secret, csrSHA256 [32]byte) []byte {
	mac := hmac.New(sha256.New, secret[:])
	mac.Write(csrSHA256[:])
	return mac.Sum(nil)
}

package area

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"

	"github.com/google/go-tpm/tpm2"
)

// akSeed is what sets bcd's attestation key apart from every other primary key of the same parameters.
const akSeed = "better-compute bcd AK v1"

// AK returns the public area that the attestation key is derived from: unique.x is SHA-256 of akSeed and unique.y is
// empty. The TPM puts the key's point in their place. restricted is what the proof stands on: the TPM signs with
// the key only what it made itself.
func AK() tpm2.TPMTPublic {
	x := sha256.Sum256([]byte(akSeed))
	return tpm2.TPMTPublic{
		Type:    tpm2.TPMAlgECC,
		NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{
			FixedTPM:            true,
			FixedParent:         true,
			SensitiveDataOrigin: true,
			UserWithAuth:        true,
			NoDA:                true,
			Restricted:          true,
			SignEncrypt:         true,
		},
		Parameters: ecdsaP256(),
		Unique:     tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: x[:]}}),
	}
}

// AKPoint returns the public key of an attestation key's public area, and refuses any other area.
func AKPoint(area *tpm2.TPMTPublic) (*ecdsa.PublicKey, error) {
	if !isTemplate(area, AK()) {
		return nil, errors.New("the public area is not that of bcd's attestation key")
	}
	return p256Point(area)
}

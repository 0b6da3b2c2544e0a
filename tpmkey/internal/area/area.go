// Package area holds the public areas (TPMT_PUBLIC) that bcd makes keys from and takes keys by: the node's key, the
// attestation key, and the TCG's endorsement keys.
//
// What a TPM key may do is part of what it is. So a key is never judged by a list of attributes that it must have: its
// area is a template's, byte for byte, but for the point or the modulus.
//
// It talks to no TPM. tpmkey and tpmkey/attest share it, so that what one makes is what the other takes.
package area

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

// Max bounds a public area, in bytes. An RSA 4096 endorsement key's has under 600.
const Max = 1024

// Unmarshal reads a TPM structure that fills data, in its one encoding. go-tpm ignores what follows one.
func Unmarshal[T tpm2.Marshallable, P interface {
	*T
	tpm2.Unmarshallable
}](data []byte) (P, error) {
	v, err := tpm2.Unmarshal[T, P](data)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(tpm2.Marshal(*v), data) {
		return nil, errors.New("it is not in its one encoding")
	}
	return v, nil
}

// Name returns the Name of an object with the name algorithm SHA-256: 000b and the digest of the area (TPM 2.0 Part 1,
// section 16).
func Name(public []byte) []byte {
	digest := sha256.Sum256(public)
	return append([]byte{byte(tpm2.TPMAlgSHA256 >> 8), byte(tpm2.TPMAlgSHA256 & 0xff)}, digest[:]...)
}

// coordinate is the size of a coordinate on P-256, in bytes.
const coordinate = 32

// p256Point returns the point of an area that has one.
func p256Point(area *tpm2.TPMTPublic) (*ecdsa.PublicKey, error) {
	unique, err := area.Unique.ECC()
	if err != nil {
		return nil, err
	}
	// A TPM may leave out leading zeros of a coordinate.
	x, y := unique.X.Buffer, unique.Y.Buffer
	if len(x) > coordinate || len(y) > coordinate {
		return nil, errors.New("the key's point is too large for P-256")
	}
	point := make([]byte, 1+2*coordinate)
	point[0] = 4 // uncompressed, SEC 1 section 2.3.3
	copy(point[1+coordinate-len(x):], x)
	copy(point[1+2*coordinate-len(y):], y)
	pub, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, fmt.Errorf("the key's point is not on P-256: %w", err)
	}
	return pub, nil
}

// isTemplate reports whether nothing but the unique field differs from the template.
func isTemplate(area *tpm2.TPMTPublic, template tpm2.TPMTPublic) bool {
	template.Unique = area.Unique
	return area.Type == template.Type && bytes.Equal(tpm2.Marshal(template), tpm2.Marshal(*area))
}

// ecdsaP256 are the parameters of a key that only signs, ECDSA with SHA-256 on P-256. The scheme is part of the area, so
// that the TPM makes no other kind of signature with the key.
func ecdsaP256() tpm2.TPMUPublicParms {
	return tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
		Scheme: tpm2.TPMTECCScheme{
			Scheme:  tpm2.TPMAlgECDSA,
			Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256}),
		},
		CurveID: tpm2.TPMECCNistP256,
	})
}

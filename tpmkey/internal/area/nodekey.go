package area

import (
	"crypto/ecdsa"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

// nodeKeyAttributes are exactly those of a node's key: made by this TPM, never leaving it, signing anything that its
// user asks for (a restricted key cannot sign a certificate request), and outside the dictionary-attack logic.
var nodeKeyAttributes = tpm2.TPMAObject{
	FixedTPM:            true,
	FixedParent:         true,
	SensitiveDataOrigin: true,
	UserWithAuth:        true,
	NoDA:                true,
	SignEncrypt:         true,
}

// NodeKey is the public area of a node's key before the TPM fills in its point.
var NodeKey = tpm2.TPMTPublic{
	Type:             tpm2.TPMAlgECC,
	NameAlg:          tpm2.TPMAlgSHA256,
	ObjectAttributes: nodeKeyAttributes,
	Parameters:       ecdsaP256(),
	Unique:           tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{}),
}

// NodeKeyPoint returns the public key of a node key's public area, and refuses any other area.
func NodeKeyPoint(area *tpm2.TPMTPublic) (*ecdsa.PublicKey, error) {
	if area.Type != tpm2.TPMAlgECC || area.NameAlg != tpm2.TPMAlgSHA256 {
		return nil, fmt.Errorf("the key is of type 0x%04x with name algorithm 0x%04x, not ECC with SHA-256", area.Type, area.NameAlg)
	}
	if area.ObjectAttributes != nodeKeyAttributes {
		return nil, fmt.Errorf("the key's attributes are 0x%x, not those of a node's key (0x%x)",
			tpm2.Marshal(area.ObjectAttributes), tpm2.Marshal(nodeKeyAttributes))
	}
	if len(area.AuthPolicy.Buffer) > 0 {
		return nil, errors.New("the key has a policy")
	}
	parms, err := area.Parameters.ECCDetail()
	if err != nil {
		return nil, err
	}
	if parms.CurveID != tpm2.TPMECCNistP256 {
		return nil, fmt.Errorf("the key is on the curve 0x%04x, not on P-256", parms.CurveID)
	}
	scheme, err := parms.Scheme.Details.ECDSA()
	if parms.Scheme.Scheme != tpm2.TPMAlgECDSA || err != nil || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, errors.New("the key's scheme is not ECDSA with SHA-256")
	}
	// Nothing beside the point differs from the template, not in a field without a check of its own above either.
	if !isTemplate(area, NodeKey) {
		return nil, errors.New("the public area is not a node key's")
	}
	return p256Point(area)
}

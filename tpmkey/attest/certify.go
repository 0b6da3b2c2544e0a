package attest

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// Certification is an AK's word for a node's key, as TPM2_Certify gives it.
type Certification struct {
	// CertifyInfo is the TPMS_ATTEST that was signed.
	CertifyInfo []byte
	// Signature is the AK's TPMT_SIGNATURE over SHA-256 of CertifyInfo.
	Signature []byte
	// NodePublic is the node key's TPMT_PUBLIC.
	NodePublic []byte
	// AKPublic is the AK's TPMT_PUBLIC.
	AKPublic []byte
}

// The reasons of a refused certification. They are part of the protocol.
const (
	// ReasonMissing is a certification that is not there.
	ReasonMissing = "key-attestation-missing"
	// ReasonAK is an AK that is not bcd's, or not the one that the certificate names.
	ReasonAK = "key-attestation-ak"
	// ReasonSignature is a signature that the AK did not make.
	ReasonSignature = "node-key-signature"
	// ReasonMismatch is a structure that is no TPM2_Certify, or is one of another key.
	ReasonMismatch = "node-key-mismatch"
	// ReasonQualifying is a certification that was made for another certificate request.
	ReasonQualifying = "node-key-qualifying"
	// ReasonAttributes is a key that may do other things than a node's key.
	ReasonAttributes = "node-key-attributes"
)

// refusal is an error with a reason of the protocol.
type refusal struct {
	reason string
	cause  error
}

func (r *refusal) Error() string { return fmt.Sprintf("%s: %v", r.reason, r.cause) }
func (r *refusal) Unwrap() error { return r.cause }

// ReasonOf returns the reason of an error of [VerifyCertification]; "" for any other error.
func ReasonOf(err error) string {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r.reason
	}
	return ""
}

// maxAttest bounds TPMS_ATTEST and TPMT_SIGNATURE, in bytes. Those of an ECDSA P-256 key have under 200.
const maxAttest = 1024

// VerifyCertification reports whether the AK that statement names vouches for csrKey, the key of the certificate request
// whose SHA-256 is csrSHA256. statement is what [AKStatement] returned for the AK, or what the certificate says. The
// checks are made in one fixed order, and the error of the first that fails has its reason ([ReasonOf]).
func VerifyCertification(c Certification, statement string, csrKey crypto.PublicKey, csrSHA256 [32]byte) error {
	if len(c.CertifyInfo) == 0 && len(c.Signature) == 0 && len(c.NodePublic) == 0 && len(c.AKPublic) == 0 {
		return &refusal{ReasonMissing, errors.New("there is no certification of the key")}
	}
	ak, err := c.checkAK(statement)
	if err != nil {
		return &refusal{ReasonAK, err}
	}
	if err := c.checkSignature(ak); err != nil {
		return &refusal{ReasonSignature, err}
	}
	info, err := c.checkInfo()
	if err != nil {
		return &refusal{ReasonMismatch, err}
	}
	if !bytes.Equal(info.ExtraData.Buffer, csrSHA256[:]) {
		return &refusal{ReasonQualifying, errors.New("the certification was made for another certificate request")}
	}
	public, err := unmarshalArea(c.NodePublic)
	if err != nil {
		return &refusal{ReasonAttributes, err}
	}
	point, err := area.NodeKeyPoint(public)
	if err != nil {
		return &refusal{ReasonAttributes, err}
	}
	if !point.Equal(csrKey) {
		return &refusal{ReasonMismatch, errors.New("the certified key is not the request's")}
	}
	return nil
}

func (c Certification) checkAK(statement string) (*ecdsa.PublicKey, error) {
	says, err := AKStatement(c.AKPublic)
	if err != nil {
		return nil, err
	}
	if says != statement {
		return nil, fmt.Errorf("the attestation key is %q, not %q", says, statement)
	}
	return akPoint(c.AKPublic)
}

func (c Certification) checkSignature(ak *ecdsa.PublicKey) error {
	if len(c.Signature) > maxAttest {
		return fmt.Errorf("the signature has %d bytes, more than %d", len(c.Signature), maxAttest)
	}
	sig, err := area.Unmarshal[tpm2.TPMTSignature](c.Signature)
	if err != nil {
		return fmt.Errorf("cannot read the signature: %w", err)
	}
	if sig.SigAlg != tpm2.TPMAlgECDSA {
		return fmt.Errorf("the signature is of the kind 0x%04x, not ECDSA", sig.SigAlg)
	}
	parts, err := sig.Signature.ECDSA()
	if err != nil {
		return fmt.Errorf("cannot read the signature: %w", err)
	}
	if parts.Hash != tpm2.TPMAlgSHA256 {
		return fmt.Errorf("the signature is over the hash 0x%04x, not SHA-256", parts.Hash)
	}
	der, err := asn1.Marshal(struct{ R, S *big.Int }{
		new(big.Int).SetBytes(parts.SignatureR.Buffer), new(big.Int).SetBytes(parts.SignatureS.Buffer),
	})
	if err != nil {
		return fmt.Errorf("cannot read the signature: %w", err)
	}
	digest := sha256.Sum256(c.CertifyInfo)
	if !ecdsa.VerifyASN1(ak, digest[:], der) {
		return errors.New("the attestation key did not sign the certification")
	}
	return nil
}

// checkInfo reads what was signed and compares the key that it is about. A TPM signs other structures with the same key:
// quotes, certifications of a creation, audits. They differ in their type only.
func (c Certification) checkInfo() (*tpm2.TPMSAttest, error) {
	if len(c.CertifyInfo) > maxAttest {
		return nil, fmt.Errorf("what was signed has %d bytes, more than %d", len(c.CertifyInfo), maxAttest)
	}
	info, err := area.Unmarshal[tpm2.TPMSAttest](c.CertifyInfo)
	if err != nil {
		return nil, fmt.Errorf("cannot read what was signed: %w", err)
	}
	if info.Magic != tpm2.TPMGeneratedValue {
		return nil, fmt.Errorf("what was signed starts with 0x%08x, which no TPM writes", uint32(info.Magic))
	}
	if info.Type != tpm2.TPMSTAttestCertify {
		return nil, fmt.Errorf("what was signed is of the type 0x%04x, not a certification", uint16(info.Type))
	}
	certified, err := info.Attested.Certify()
	if err != nil {
		return nil, fmt.Errorf("cannot read what was signed: %w", err)
	}
	if !bytes.Equal(certified.Name.Buffer, area.Name(c.NodePublic)) {
		return nil, errors.New("the certified key is another one")
	}
	return info, nil
}

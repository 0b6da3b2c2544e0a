package attest

import (
	"bytes"
	"crypto"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Bounds of what a TPM carries about its EK: the number of certificates, and the size of each in bytes. NV indices are
// smaller than 2 KiB on most chips.
const (
	MaxCertificates = 12
	MaxCertificate  = 8 << 10
)

var (
	oidEKCertificate = asn1.ObjectIdentifier{2, 23, 133, 8, 1} // tcg-kp-EKCertificate
	oidSAN           = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidRSAESOAEP     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 7}
	oidRSA           = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
)

// VerifyEKChain reports whether the EK has a certificate of one of the makers whose roots are given. chain holds DER
// certificates in any order: the EK's own and intermediates; bytes that follow a certificate are ignored, and so is an
// intermediate that cannot be read, or whose RSA key is larger than any maker's. Nothing is fetched. The EK's certificate must have the extended key usage
// tcg-kp-EKCertificate (2.23.133.8.1); its critical alternative name, a directoryName that says which TPM it is, is accepted.
func VerifyEKChain(ek EK, chain [][]byte, roots []*x509.Certificate, now time.Time) error {
	if err := ek.Check(); err != nil {
		return err
	}
	if len(chain) == 0 {
		return errors.New("the endorsement key has no certificate")
	}
	if len(chain) > MaxCertificates {
		return fmt.Errorf("the endorsement key comes with %d certificates, more than %d", len(chain), MaxCertificates)
	}
	var leaf *x509.Certificate
	intermediates := x509.NewCertPool()
	for i, der := range chain {
		if len(der) > MaxCertificate {
			return fmt.Errorf("certificate %d has %d bytes, more than %d", i+1, len(der), MaxCertificate)
		}
		der, _, err := cutDER(der)
		if err != nil {
			continue // what it says about the EK, if anything, is missing from the chain below
		}
		spki, keyErr := CertificateSPKI(der)
		isLeaf := keyErr == nil && bytes.Equal(spki, ek.SPKI)
		cert, err := x509.ParseCertificate(der)
		switch {
		case err != nil && isLeaf:
			return fmt.Errorf("unusable endorsement key certificate: %w", err)
		case err != nil:
		case isLeaf && leaf == nil:
			leaf = cert
		case !isLeaf && isCheap(cert.PublicKey):
			intermediates.AddCert(cert)
		}
	}
	if leaf == nil {
		return errors.New("no certificate is of the endorsement key")
	}
	return verifyLeaf(leaf, intermediates, roots, now)
}

// Bounds of the RSA key of an intermediate. Whoever asks chooses it: one of 60,000 bits costs as much as a thousand others.
const (
	maxIssuerBits     = 4096
	maxIssuerExponent = 65537
)

// isCheap reports whether signatures by the key take no more time to verify than those of makers do.
func isCheap(key crypto.PublicKey) bool {
	k, isRSA := key.(*rsa.PublicKey)
	return !isRSA || k.N.BitLen() <= maxIssuerBits && k.E <= maxIssuerExponent
}

func verifyLeaf(leaf *x509.Certificate, intermediates *x509.CertPool, roots []*x509.Certificate, now time.Time) error {
	if leaf.IsCA {
		return errors.New("the endorsement key's certificate is that of an authority")
	}
	if !slices.ContainsFunc(leaf.UnknownExtKeyUsage, oidEKCertificate.Equal) {
		return fmt.Errorf("the endorsement key's certificate lacks the extended key usage %v", oidEKCertificate)
	}
	if slices.ContainsFunc(leaf.UnhandledCriticalExtensions, oidSAN.Equal) {
		if err := checkSAN(leaf); err != nil {
			return err
		}
		leaf.UnhandledCriticalExtensions = slices.DeleteFunc(leaf.UnhandledCriticalExtensions, oidSAN.Equal)
	}
	trusted := x509.NewCertPool()
	for _, root := range roots {
		trusted.AddCert(root)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: trusted, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return fmt.Errorf("cannot verify the endorsement key's certificate: %w", err)
	}
	return nil
}

// checkSAN lets a critical alternative name pass that is nothing but a directoryName. crypto/x509 cannot: it
// does not know the form.
func checkSAN(leaf *x509.Certificate) error {
	const directoryName = 4 // GeneralName, RFC 5280 section 4.2.1.6
	for _, ext := range leaf.Extensions {
		if !ext.Id.Equal(oidSAN) {
			continue
		}
		var names []asn1.RawValue
		rest, err := asn1.Unmarshal(ext.Value, &names)
		if err != nil || len(rest) > 0 || len(names) == 0 {
			return errors.New("the endorsement key's certificate has an alternative name that cannot be read")
		}
		for _, name := range names {
			if name.Class != asn1.ClassContextSpecific || name.Tag != directoryName {
				return fmt.Errorf("the endorsement key's certificate has a critical alternative name of the form %d, not a directoryName", name.Tag)
			}
		}
	}
	return nil
}

// Certificates splits what a TPM's NV index holds into DER certificates: none, one with padding after it, or many. It
// stops at the first byte that does not start a certificate.
func Certificates(data []byte) [][]byte {
	var all [][]byte
	for len(all) < MaxCertificates {
		data = bytes.TrimLeft(data, "\x00\xff") // unwritten NV, or padding to a block
		der, rest, err := cutDER(data)
		if err != nil {
			return all
		}
		all = append(all, der)
		data = rest
	}
	return all
}

// cutDER cuts the one DER SEQUENCE off that data starts with.
func cutDER(data []byte) (der, rest []byte, err error) {
	var whole asn1.RawValue
	rest, err = asn1.Unmarshal(data, &whole)
	if err != nil {
		return nil, nil, err
	}
	if whole.Class != asn1.ClassUniversal || whole.Tag != asn1.TagSequence || !whole.IsCompound {
		return nil, nil, errors.New("it is no DER sequence")
	}
	return whole.FullBytes, rest, nil
}

// CertificateSPKI returns the public key of an EK certificate as [EK.SPKI] has it. It reads no more of the certificate than
// that, for makers have written some that crypto/x509 refuses, and takes a key that is declared for RSAES-OAEP, as the
// TCG once asked for.
func CertificateSPKI(der []byte) ([]byte, error) {
	if len(der) > MaxCertificate {
		return nil, fmt.Errorf("the certificate has %d bytes, more than %d", len(der), MaxCertificate)
	}
	key, err := certificateKey(der)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate's key: %w", err)
	}
	return MarshalSPKI(key)
}

// publicKeyInfo is SubjectPublicKeyInfo, RFC 5280 section 4.1.
type publicKeyInfo struct {
	Algorithm pkix.AlgorithmIdentifier
	PublicKey asn1.BitString
}

func certificateKey(der []byte) (crypto.PublicKey, error) {
	var cert struct {
		TBS struct {
			Version                              int `asn1:"optional,explicit,default:0,tag:0"`
			Serial                               asn1.RawValue
			Algorithm, Issuer, Validity, Subject asn1.RawValue
			PublicKey                            asn1.RawValue
		}
	}
	if _, err := asn1.Unmarshal(der, &cert); err != nil {
		return nil, err
	}
	raw := cert.TBS.PublicKey.FullBytes
	var info publicKeyInfo
	if _, err := asn1.Unmarshal(raw, &info); err != nil {
		return nil, err
	}
	if info.Algorithm.Algorithm.Equal(oidRSAESOAEP) {
		info.Algorithm = pkix.AlgorithmIdentifier{Algorithm: oidRSA, Parameters: asn1.NullRawValue}
		var err error
		if raw, err = asn1.Marshal(info); err != nil {
			return nil, err
		}
	}
	return x509.ParsePKIXPublicKey(raw)
}

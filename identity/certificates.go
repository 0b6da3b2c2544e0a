package identity

import (
	"crypto/x509"
	"encoding/json"
	"fmt"
)

// Certificates is a chain. Its JSON is an array of base64 DER.
type Certificates []*x509.Certificate

// DER returns the certificates' encodings.
func (c Certificates) DER() [][]byte {
	ders := make([][]byte, len(c))
	for i, cert := range c {
		ders[i] = cert.Raw
	}
	return ders
}

// MarshalJSON implements [json.Marshaler].
func (c Certificates) MarshalJSON() ([]byte, error) { return json.Marshal(c.DER()) }

// UnmarshalJSON implements [json.Unmarshaler]. Every certificate must parse.
func (c *Certificates) UnmarshalJSON(data []byte) error {
	var ders [][]byte
	if err := json.Unmarshal(data, &ders); err != nil {
		return err
	}
	certs, err := parseChain(ders)
	*c = certs
	return err
}

func parseChain(ders [][]byte) (Certificates, error) {
	if err := checkSizes(ders, MaxChain); err != nil {
		return nil, err
	}
	certs := make(Certificates, len(ders))
	for i, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", i+1, err)
		}
		certs[i] = cert
	}
	return certs, nil
}

// Bundle is a set of CA certificates, DER. It keeps what it was given: one certificate that this version of the program
// can't parse takes none of the others with it.
type Bundle [][]byte

// Certificates returns the certificates that parse.
func (b Bundle) Certificates() Certificates {
	var certs Certificates
	for _, der := range b {
		if cert, err := x509.ParseCertificate(der); err == nil {
			certs = append(certs, cert)
		}
	}
	return certs
}

// Pool returns a pool of the certificates that parse.
func (b Bundle) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range b.Certificates() {
		pool.AddCert(cert)
	}
	return pool
}

// checkSizes bounds what is parsed.
func checkSizes(ders [][]byte, count int) error {
	if len(ders) > count {
		return fmt.Errorf("%d certificates, more than %d", len(ders), count)
	}
	total := 0
	for _, der := range ders {
		total += len(der)
	}
	if total > MaxDER {
		return fmt.Errorf("%d bytes of certificates, more than %d", total, MaxDER)
	}
	return nil
}

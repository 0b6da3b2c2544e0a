package pki

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"regexp"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

const (
	// caLifetime bounds the authorities. Daemons pin keys, so a long life costs nothing; a rotation replaces keys.
	caLifetime = 20 * 365 * 24 * time.Hour
	// backdate lets a machine whose clock is a little behind use a node certificate that was just issued.
	backdate = 5 * time.Minute
	// serverBackdate does the same for authorities and servers. A machine judges these by its own clock, before it can
	// learn how far that is off, and their lifetime is bounded by nothing that a day matters to.
	serverBackdate = 24 * time.Hour
	// secretSize is the length of the bundle's secret in bytes.
	secretSize = 32
)

// Bundle is the private side of a control plane's PKI. It is safe for concurrent use and never changes.
type Bundle struct {
	public Public

	nodeCA, servingCA, internalCA, commandCA *ecdsa.PrivateKey
	joinSigning, commandSigning              *ecdsa.PrivateKey
	joinEncryption                           *ecdh.PrivateKey
	secret                                   []byte
}

// trustDomain is SPIFFE's (SPIFFE-ID section 2.1): lower case, digits, dot, dash, underscore, at most 255.
var trustDomain = regexp.MustCompile(`^[a-z0-9._-]{1,255}$`)

// CheckTrustDomain says whether s can be the trust domain of a SPIFFE ID. The error is a [fault.Usage] one.
func CheckTrustDomain(s string) error {
	if !trustDomain.MatchString(s) {
		return fault.New(fault.Usage, `use lower-case letters, digits, ".", "-" and "_", as in compute.example.com`,
			"%q is not a trust domain", s)
	}
	return nil
}

// New makes a bundle with fresh keys for a trust domain, such as `compute.example.com`. It writes nothing.
func New(domain string, now time.Time) (*Bundle, error) {
	if err := CheckTrustDomain(domain); err != nil {
		return nil, err
	}
	b := &Bundle{public: Public{trustDomain: domain}, secret: make([]byte, secretSize)}
	rand.Read(b.secret) // never fails
	var err error
	for _, a := range []struct {
		name string
		key  **ecdsa.PrivateKey
		cert **x509.Certificate
	}{
		{"node CA", &b.nodeCA, &b.public.nodeCA},
		{"serving CA", &b.servingCA, &b.public.servingCA},
		{"internal CA", &b.internalCA, &b.public.internalCA},
		{"command CA", &b.commandCA, &b.public.commandCA},
	} {
		if *a.key, *a.cert, err = newAuthority(domain, a.name, now); err != nil {
			return nil, fmt.Errorf("cannot make the %s: %w", a.name, err)
		}
	}
	if err := b.newSigners(domain, now); err != nil {
		return nil, err
	}
	if b.joinEncryption, err = ecdh.P256().GenerateKey(rand.Reader); err != nil {
		return nil, fmt.Errorf("cannot make the join-encryption key: %w", err)
	}
	b.public.joinEncryption = b.joinEncryption.PublicKey()
	return b, nil
}

// newSigners makes the two signing keys. The join-signing certificate is self-signed: daemons pin its key and ignore
// all else that it says. The command-signing one is under the command CA, so that it can be replaced without telling
// the daemons.
func (b *Bundle) newSigners(domain string, now time.Time) (err error) {
	if b.joinSigning, err = newKey(); err != nil {
		return fmt.Errorf("cannot make the join-signing key: %w", err)
	}
	self := signerTemplate(domain, "join signing", now)
	if b.public.joinSigning, err = issue(self, self, &b.joinSigning.PublicKey, b.joinSigning); err != nil {
		return fmt.Errorf("cannot make the join-signing certificate: %w", err)
	}
	if b.commandSigning, err = newKey(); err != nil {
		return fmt.Errorf("cannot make the command-signing key: %w", err)
	}
	b.public.commandSigning, err = issue(signerTemplate(domain, "command signing", now), b.public.commandCA,
		&b.commandSigning.PublicKey, b.commandCA)
	if err != nil {
		return fmt.Errorf("cannot make the command-signing certificate: %w", err)
	}
	return nil
}

// Public returns what anybody may know.
func (b *Bundle) Public() *Public { return &b.public }

// JoinSigner returns the key that signs JoinService's answers. [Public.JoinSigningCertificate] is its certificate.
func (b *Bundle) JoinSigner() crypto.Signer { return b.joinSigning }

// JoinEncryption returns the key that opens sealed tokens.
func (b *Bundle) JoinEncryption() *ecdh.PrivateKey { return b.joinEncryption }

// CommandSigner returns the key that signs commands. [Public.CommandSigningCertificate] is its certificate.
func (b *Bundle) CommandSigner() crypto.Signer { return b.commandSigning }

// DeriveKey derives size bytes from the bundle's secret: HKDF-SHA-256 without a salt, info naming the use. Every
// holder of the bundle derives the same.
func (b *Bundle) DeriveKey(info string, size int) ([]byte, error) {
	key, err := hkdf.Key(sha256.New, b.secret, nil, info, size)
	if err != nil {
		return nil, fmt.Errorf("cannot derive a key for %q: %w", info, err)
	}
	return key, nil
}

func newKey() (*ecdsa.PrivateKey, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

func newAuthority(domain, name string, now time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{Organization: []string{domain}, CommonName: "Better Compute " + name},
		NotBefore:             now.Add(-serverBackdate),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	cert, err := issue(t, t, &key.PublicKey, key)
	return key, cert, err
}

func signerTemplate(domain, name string, now time.Time) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber:          newSerial(),
		Subject:               pkix.Name{Organization: []string{domain}, CommonName: "Better Compute " + name},
		NotBefore:             now.Add(-serverBackdate),
		NotAfter:              now.Add(caLifetime - serverBackdate),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
}

func issue(t, parent *x509.Certificate, pub crypto.PublicKey, signer crypto.Signer) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, signer)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// newSerial returns 128 random bits, never zero (RFC 5280 section 4.1.2.2 wants a positive number).
func newSerial() *big.Int {
	for {
		var b [16]byte
		rand.Read(b[:]) // never fails
		if n := new(big.Int).SetBytes(b[:]); n.Sign() > 0 {
			return n
		}
	}
}

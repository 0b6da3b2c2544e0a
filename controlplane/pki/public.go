package pki

import (
	"crypto/ecdh"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// Public is what anybody may know of a bundle. It is what `pki show` and the install script read.
type Public struct {
	trustDomain                              string
	nodeCA, servingCA, internalCA, commandCA *x509.Certificate
	joinSigning, commandSigning              *x509.Certificate
	joinEncryption                           *ecdh.PublicKey
}

// Pins are the three pins that a daemon is configured with.
type Pins struct {
	// ServingCA is `serving_ca_spki_pin`.
	ServingCA pin.Pin `json:"servingCa"`
	// JoinSigning is `join_signing_key_pin`.
	JoinSigning pin.Pin `json:"joinSigning"`
	// JoinEncryption is `join_encryption_key_pin`.
	JoinEncryption pin.Pin `json:"joinEncryption"`
}

// JWK is a P-256 public key as a JSON Web Key (RFC 7517, RFC 7518 section 6.2.1).
type JWK struct {
	KeyType string `json:"kty"` // EC
	Curve   string `json:"crv"` // P-256
	// X and Y are the coordinates: base64url without padding, of 32 bytes each.
	X string `json:"x"`
	Y string `json:"y"`
}

// TrustDomain returns the trust domain, such as `compute.example.com`.
func (p *Public) TrustDomain() string { return p.trustDomain }

// NodeCA returns the authority of node certificates.
func (p *Public) NodeCA() *x509.Certificate { return p.nodeCA }

// ServingCA returns the authority of gateway certificates.
func (p *Public) ServingCA() *x509.Certificate { return p.servingCA }

// InternalCA returns the authority of the mutual TLS between gateway and JoinService.
func (p *Public) InternalCA() *x509.Certificate { return p.internalCA }

// CommandCA returns the authority of command-signing certificates.
func (p *Public) CommandCA() *x509.Certificate { return p.commandCA }

// JoinSigningCertificate returns the certificate of the key that signs JoinService's answers. Only its key counts.
func (p *Public) JoinSigningCertificate() *x509.Certificate { return p.joinSigning }

// CommandSigningCertificate returns the certificate of the key that signs commands.
func (p *Public) CommandSigningCertificate() *x509.Certificate { return p.commandSigning }

// JoinEncryptionKey returns the key that tokens are sealed to.
func (p *Public) JoinEncryptionKey() *ecdh.PublicKey { return p.joinEncryption }

// Pins returns the pins of the serving CA and of the two JoinService keys.
func (p *Public) Pins() Pins {
	encryption, err := pin.Of(p.joinEncryption)
	if err != nil { // a P-256 key always encodes
		panic(err)
	}
	return Pins{
		ServingCA:      pin.OfCertificate(p.servingCA),
		JoinSigning:    pin.OfCertificate(p.joinSigning),
		JoinEncryption: encryption,
	}
}

// EncryptionJWK returns the key that tokens are sealed to as a JWK, with the four members of the well-known document.
func (p *Public) EncryptionJWK() JWK {
	point := p.joinEncryption.Bytes() // 0x04, X, Y
	enc := base64.RawURLEncoding.EncodeToString
	return JWK{KeyType: "EC", Curve: "P-256", X: enc(point[1:33]), Y: enc(point[33:])}
}

// publicVersion is the version of pki-public.json that this program writes.
const publicVersion = 1

// publicFile is pki-public.json. Certificates are DER in standard base64.
type publicFile struct {
	Version           int         `json:"version"`
	TrustDomain       string      `json:"trustDomain"`
	Pins              Pins        `json:"pins"`
	JoinEncryptionJWK JWK         `json:"joinEncryptionJwk"`
	Certificates      publicCerts `json:"certificates"`
}

type publicCerts struct {
	NodeCA         []byte `json:"nodeCa"`
	ServingCA      []byte `json:"servingCa"`
	InternalCA     []byte `json:"internalCa"`
	CommandCA      []byte `json:"commandCa"`
	JoinSigning    []byte `json:"joinSigning"`
	CommandSigning []byte `json:"commandSigning"`
}

// MarshalJSON writes the form of pki-public.json.
func (p *Public) MarshalJSON() ([]byte, error) {
	return json.Marshal(publicFile{
		Version: publicVersion, TrustDomain: p.trustDomain, Pins: p.Pins(), JoinEncryptionJWK: p.EncryptionJWK(),
		Certificates: publicCerts{
			NodeCA: p.nodeCA.Raw, ServingCA: p.servingCA.Raw, InternalCA: p.internalCA.Raw, CommandCA: p.commandCA.Raw,
			JoinSigning: p.joinSigning.Raw, CommandSigning: p.commandSigning.Raw,
		},
	})
}

// UnmarshalJSON reads the form of pki-public.json. The pins must be those of the keys beside them.
func (p *Public) UnmarshalJSON(data []byte) error {
	var f publicFile
	if err := unmarshalVersioned(data, publicVersion, &f); err != nil {
		return err
	}
	if err := CheckTrustDomain(f.TrustDomain); err != nil {
		return err
	}
	q := Public{trustDomain: f.TrustDomain}
	for _, c := range []struct {
		name string
		der  []byte
		to   **x509.Certificate
	}{
		{"nodeCa", f.Certificates.NodeCA, &q.nodeCA},
		{"servingCa", f.Certificates.ServingCA, &q.servingCA},
		{"internalCa", f.Certificates.InternalCA, &q.internalCA},
		{"commandCa", f.Certificates.CommandCA, &q.commandCA},
		{"joinSigning", f.Certificates.JoinSigning, &q.joinSigning},
		{"commandSigning", f.Certificates.CommandSigning, &q.commandSigning},
	} {
		var err error
		if *c.to, err = x509.ParseCertificate(c.der); err != nil {
			return fmt.Errorf("cannot read certificate %q: %w", c.name, err)
		}
	}
	var err error
	if q.joinEncryption, err = f.JoinEncryptionJWK.key(); err != nil {
		return err
	}
	if f.Pins != q.Pins() {
		return errors.New("pins are not those of the keys beside them")
	}
	*p = q
	return nil
}

func (k JWK) key() (*ecdh.PublicKey, error) {
	if k.KeyType != "EC" || k.Curve != "P-256" {
		return nil, fmt.Errorf("encryption key is %q on %q, not EC on P-256", k.KeyType, k.Curve)
	}
	x, errX := base64.RawURLEncoding.DecodeString(k.X)
	y, errY := base64.RawURLEncoding.DecodeString(k.Y)
	if err := errors.Join(errX, errY); err != nil {
		return nil, fmt.Errorf("cannot read the encryption key's coordinates: %w", err)
	}
	if len(x) != 32 || len(y) != 32 {
		return nil, fmt.Errorf("encryption key's coordinates have %d and %d bytes, not 32", len(x), len(y))
	}
	key, err := ecdh.P256().NewPublicKey(slices.Concat([]byte{4}, x, y))
	if err != nil {
		return nil, fmt.Errorf("encryption key is not a point of P-256: %w", err)
	}
	return key, nil
}

// unmarshalVersioned reads a JSON object with a version, and says it where a newer program wrote it.
func unmarshalVersioned(data []byte, version int, to any) error {
	var v struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}
	switch {
	case v.Version > version:
		return fault.New(fault.Newer, "upgrade better-compute", "version %d is newer than %d, the newest that this program reads", v.Version, version)
	case v.Version < 1:
		return errors.New("no version")
	}
	return json.Unmarshal(data, to)
}

package seal

import (
	"crypto"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/better-compute/bcd/internal/pin"
)

// coordinateSize is the size of a P-256 coordinate, in bytes. A coordinate is always written in full.
const coordinateSize = 32

// Key is JoinService's public encryption key. Its JSON form is the JWK of the join key file and of the well-known
// document. The zero value is no key.
type Key struct {
	pub *ecdh.PublicKey
}

// NewKey returns the key of an *ecdsa.PublicKey or *ecdh.PublicKey on P-256.
func NewKey(pub crypto.PublicKey) (Key, error) {
	switch k := pub.(type) {
	case *ecdh.PublicKey:
		if k.Curve() != ecdh.P256() {
			return Key{}, fmt.Errorf("the key is on %v and must be on P-256", k.Curve())
		}
		return Key{pub: k}, nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return Key{}, fmt.Errorf("the key is on %s and must be on P-256", k.Curve.Params().Name)
		}
		e, err := k.ECDH()
		if err != nil {
			return Key{}, fmt.Errorf("the key is no point of P-256: %w", err)
		}
		return Key{pub: e}, nil
	default:
		return Key{}, fmt.Errorf("a %T is not a P-256 public key", pub)
	}
}

// ParseKey reads a public P-256 JWK (RFC 7517): kty, crv, and x and y of exactly 32 bytes in base64url without padding.
// Where use or alg is present it must be "enc" or "ECDH-ES+A256KW"; other members are ignored, as the RFC asks, except
// private ones, which are an error: the file then holds what must not leave the control plane.
func ParseKey(jwk []byte) (Key, error) {
	m, err := members(jwk)
	if err != nil {
		return Key{}, err
	}
	if _, found := m["d"]; found {
		return Key{}, errors.New("the JWK holds a private key")
	}
	for name, want := range map[string]string{"use": "enc", "alg": string(keyAlgorithm)} {
		if _, found := m[name]; !found {
			continue
		}
		if got, err := m.text(name); err != nil || got != want {
			return Key{}, fmt.Errorf("the JWK's %q is %.64s and must be %q", name, m[name], want)
		}
	}
	return m.point()
}

// Pin returns the pin of the key: over its SubjectPublicKeyInfo with an uncompressed point. k must not be zero.
func (k Key) Pin() (pin.Pin, error) {
	if k.pub == nil {
		return pin.Pin{}, errors.New("no key to pin")
	}
	return pin.Of(k.pub)
}

// IsZero reports whether k is no key.
func (k Key) IsZero() bool { return k.pub == nil }

// Public returns the key as the standard library has it; nil for the zero value.
func (k Key) Public() *ecdh.PublicKey { return k.pub }

// Equal reports whether two keys are the same point.
func (k Key) Equal(o Key) bool {
	if k.pub == nil || o.pub == nil {
		return k.pub == o.pub
	}
	return k.pub.Equal(o.pub)
}

// MarshalJSON writes the JWK: kty, crv, x, y in this order, and nothing else.
func (k Key) MarshalJSON() ([]byte, error) {
	if k.pub == nil {
		return nil, errors.New("no key to write")
	}
	point := k.pub.Bytes() // 4, x, y
	return json.Marshal(struct {
		Kty string `json:"kty"`
		Crv string `json:"crv"`
		X   string `json:"x"`
		Y   string `json:"y"`
	}{
		"EC", "P-256",
		base64.RawURLEncoding.EncodeToString(point[1 : 1+coordinateSize]),
		base64.RawURLEncoding.EncodeToString(point[1+coordinateSize:]),
	})
}

// UnmarshalJSON reads what [ParseKey] reads.
func (k *Key) UnmarshalJSON(jwk []byte) (err error) {
	*k, err = ParseKey(jwk)
	return err
}

func (k Key) ecdsa() (*ecdsa.PublicKey, error) {
	return ecdsa.ParseUncompressedPublicKey(elliptic.P256(), k.pub.Bytes())
}

// point reads the key from kty, crv, x and y.
func (m object) point() (Key, error) {
	for _, c := range []struct{ name, want string }{{"kty", "EC"}, {"crv", "P-256"}} {
		got, err := m.text(c.name)
		if err != nil {
			return Key{}, err
		}
		if got != c.want {
			return Key{}, fmt.Errorf("%q is %.64q and must be %q", c.name, got, c.want)
		}
	}
	point := []byte{4}
	for _, name := range []string{"x", "y"} {
		c, err := m.coordinate(name)
		if err != nil {
			return Key{}, err
		}
		point = append(point, c...)
	}
	pub, err := ecdh.P256().NewPublicKey(point)
	if err != nil {
		return Key{}, errors.New("x and y are no point of P-256")
	}
	return Key{pub: pub}, nil
}

func (m object) coordinate(name string) ([]byte, error) {
	s, err := m.text(name)
	if err != nil {
		return nil, err
	}
	b, err := decode(s)
	if err != nil {
		return nil, fmt.Errorf("%q: %w", name, err)
	}
	switch {
	case len(b) < coordinateSize:
		return nil, fmt.Errorf("%q has %d bytes and must have %d: its leading zeros are missing", name, len(b), coordinateSize)
	case len(b) > coordinateSize:
		return nil, fmt.Errorf("%q has %d bytes and must have %d", name, len(b), coordinateSize)
	}
	return b, nil
}

// decode reads base64url in its one canonical spelling: no padding, no line breaks, no stray bits at the end.
func decode(s string) ([]byte, error) {
	if strings.Contains(s, "=") {
		return nil, errors.New("base64url padding is not allowed")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("not canonical base64url")
	}
	return b, nil
}

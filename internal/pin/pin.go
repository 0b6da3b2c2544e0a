// Package pin holds SPKI pins: the SHA-256 of a public key, in the one text form that configuration and documents use.
//
// A pin is "sha256/" and the standard base64, padded, of SHA-256 over the DER SubjectPublicKeyInfo (RFC 7469 section
// 2.4 for what is hashed, RFC 4648 section 4 for the alphabet): 51 characters. Other spellings of the same hash, such
// as base64url or hex, are refused and not converted, so that two texts are equal exactly when their pins are. Pins are
// public: comparing them needs no constant time.
//
// The package decides nothing about trust. It says which key a text names.
package pin

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/better-compute/bcd/internal/fault"
)

const prefix = "sha256/"

// MaxSet is the number of pins that one configuration key may list, for a rotation.
const MaxSet = 3

// Pin is the SHA-256 of a DER SubjectPublicKeyInfo.
type Pin [sha256.Size]byte

// OfSPKI returns the pin of a DER SubjectPublicKeyInfo.
func OfSPKI(der []byte) Pin { return sha256.Sum256(der) }

// OfCertificate returns the pin of the certificate's public key.
func OfCertificate(c *x509.Certificate) Pin { return OfSPKI(c.RawSubjectPublicKeyInfo) }

// Of returns the pin of a public key, encoded as PKIX with an uncompressed point (RFC 5480).
func Of(pub crypto.PublicKey) (Pin, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return Pin{}, fmt.Errorf("cannot encode the public key: %w", err)
	}
	return OfSPKI(der), nil
}

// Parse reads the text form. The error is a [fault.Config] one that names the form it expects, and the right text where
// s is another spelling of a SHA-256.
func Parse(s string) (Pin, error) {
	var p Pin
	text, found := strings.CutPrefix(s, prefix)
	if found {
		der, err := base64.StdEncoding.Strict().DecodeString(text)
		// A decoder skips line breaks; a pin has one spelling.
		if err == nil && len(der) == len(p) && !strings.ContainsAny(text, "\r\n") {
			copy(p[:], der)
			return p, nil
		}
	}
	hint := `write it as "sha256/" and the padded standard base64 of the SHA-256 of the public key, 51 characters; "better-compute pki show" prints it`
	if other, ok := otherSpelling(text); ok {
		hint = fmt.Sprintf("write it as %s", other)
	}
	return Pin{}, fault.New(fault.Config, hint, "%q is not a pin", s)
}

// otherSpelling reads the usual foreign spellings of a SHA-256, only to say what was meant.
func otherSpelling(s string) (Pin, bool) {
	s = strings.TrimSpace(s)
	s = strings.TrimPrefix(s, prefix)
	for _, decode := range []func(string) ([]byte, error){
		base64.StdEncoding.DecodeString, base64.RawStdEncoding.DecodeString,
		base64.URLEncoding.DecodeString, base64.RawURLEncoding.DecodeString,
		func(s string) ([]byte, error) { return hex.DecodeString(strings.ReplaceAll(s, ":", "")) },
	} {
		if b, err := decode(s); err == nil && len(b) == sha256.Size {
			return Pin(b), true
		}
	}
	return Pin{}, false
}

// String returns the text form.
func (p Pin) String() string { return prefix + base64.StdEncoding.EncodeToString(p[:]) }

// MarshalText implements [encoding.TextMarshaler].
func (p Pin) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]; see [Parse] for its errors.
func (p *Pin) UnmarshalText(text []byte) (err error) {
	*p, err = Parse(string(text))
	return err
}

// Set is the pins of one key: the current one, and during a rotation the ones beside it.
type Set []Pin

// Has reports whether p is in the set.
func (s Set) Has(p Pin) bool { return slices.Contains(s, p) }

// With returns the set and more, without duplicates, s first.
func (s Set) With(more ...Pin) Set {
	all := slices.Clone(s)
	for _, p := range more {
		if !all.Has(p) {
			all = append(all, p)
		}
	}
	return all
}

// String returns the pins, separated by commas.
func (s Set) String() string {
	var b bytes.Buffer
	for i, p := range s {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(p.String())
	}
	return b.String()
}

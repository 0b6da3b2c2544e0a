// Package bearer holds the text form of a join token: "bcjt_" id "." secret.
//
// The id is "jt_" and letters or digits in lower case; the secret is 256 random bits in base64url without padding, 43
// characters. The control plane reads the exact form with [Parse] and keeps [Secret.Digest]; the daemon only passes a
// token on, so it asks for less with [ParseLoose] and leaves the judgement to the control plane.
//
// Neither type prints what it holds: every verb of fmt, JSON, text and slog show that a token is there, and no more.
// The package stores, sends and admits nothing. Where a token comes from is agent/credential, how it travels is seal.
package bearer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

const (
	prefix   = "bcjt_"
	idPrefix = "jt_"
	redacted = "token(redacted)"

	// secretSize is the number of random bytes of a secret.
	secretSize = 32
	// maxID bounds an id: a TypeID of this prefix has 29 characters.
	maxID = 64
)

// MaxSize is the largest token text that is read from anywhere, in bytes.
const MaxSize = 4096

// Token is the text of a join token. Its zero value is no token. Copies share one buffer, see [Token.Wipe].
type Token struct {
	text []byte
}

// ParseLoose reads a token as the daemon does: "bcjt_", and printable ASCII with exactly one dot that has text on both
// sides. White space around it is the caller's to trim. The text is copied. No error repeats any of it.
func ParseLoose(text []byte) (Token, error) {
	if len(text) > MaxSize {
		return Token{}, fmt.Errorf("the token is longer than %d bytes", MaxSize)
	}
	rest, ok := bytes.CutPrefix(text, []byte(prefix))
	if !ok {
		return Token{}, fmt.Errorf("the token does not start with %q", prefix)
	}
	for _, c := range rest {
		if c <= ' ' || c > '~' {
			return Token{}, errors.New("the token contains white space or a character that no token has")
		}
	}
	id, secret, _ := bytes.Cut(rest, []byte("."))
	switch n := bytes.Count(rest, []byte(".")); {
	case n != 1:
		return Token{}, fmt.Errorf("the token has %d dots and must have exactly one, between id and secret", n)
	case len(id) == 0:
		return Token{}, errors.New("the token has no id before its dot")
	case len(secret) == 0:
		return Token{}, errors.New("the token has no secret after its dot")
	}
	return Token{text: bytes.Clone(text)}, nil
}

// Bytes returns the token's text, to be sealed. It is the token's own buffer: not to be changed, and zero after Wipe.
func (t Token) Bytes() []byte { return t.text }

// ID returns what stands between "bcjt_" and the dot. It is no secret: an operator finds the token by it.
func (t Token) ID() string {
	id, _, _ := strings.Cut(strings.TrimPrefix(string(t.text), prefix), ".")
	return id
}

// IsZero reports whether t holds no token.
func (t Token) IsZero() bool { return len(t.text) == 0 }

// Equal compares two tokens; the time that it takes depends on their lengths only.
func (t Token) Equal(u Token) bool { return subtle.ConstantTimeCompare(t.text, u.text) == 1 }

// Wipe overwrites the text in every copy of t. The token is of no use afterwards.
func (t Token) Wipe() { clear(t.text) }

// Secret is the secret of a token: 256 random bits. Its zero value is not a secret that anything was issued with.
type Secret struct {
	b [secretSize]byte
}

// NewSecret draws a secret from the system's random source.
func NewSecret() Secret {
	var s Secret
	_, _ = rand.Read(s.b[:]) // never fails: crypto/rand ends the program instead
	return s
}

// Parse reads a token as the control plane does: exactly "bcjt_jt_[0-9a-z]+" "." and 43 characters of base64url that
// are the canonical encoding of 32 bytes. No error repeats any of the text.
func Parse(text []byte) (id string, secret Secret, err error) {
	rest, ok := strings.CutPrefix(string(text), prefix)
	if !ok {
		return "", Secret{}, fmt.Errorf("the token does not start with %q", prefix)
	}
	id, encoded, ok := strings.Cut(rest, ".")
	if !ok {
		return "", Secret{}, errors.New("the token has no dot between id and secret")
	}
	if err := CheckID(id); err != nil {
		return "", Secret{}, err
	}
	// A decoder skips line breaks; the length rules them out, as 43 characters with one are too few for 32 bytes.
	b, err := base64.RawURLEncoding.Strict().DecodeString(encoded)
	if err != nil || len(b) != secretSize || len(encoded) != base64.RawURLEncoding.EncodedLen(secretSize) {
		return "", Secret{}, errors.New("the token's secret is not 43 characters of base64url")
	}
	return id, Secret{b: [secretSize]byte(b)}, nil
}

// CheckID checks the form of a token's id, "jt_[0-9a-z]+" of at most 64 characters.
func CheckID(id string) error {
	rest, ok := strings.CutPrefix(id, idPrefix)
	if !ok || rest == "" || len(id) > maxID || strings.Trim(rest, "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return fmt.Errorf("the token's id is not %q and digits or lower-case letters", idPrefix)
	}
	return nil
}

// Token returns the bearer text of the secret under an id.
func (s Secret) Token(id string) (Token, error) {
	if err := CheckID(id); err != nil {
		return Token{}, err
	}
	text := append([]byte(prefix+id), '.')
	return Token{text: base64.RawURLEncoding.AppendEncode(text, s.b[:])}, nil
}

// Digest returns the SHA-256 of the secret's 32 bytes (not of their base64url text): all that the control plane keeps.
func (s Secret) Digest() [sha256.Size]byte { return sha256.Sum256(s.b[:]) }

// Matches reports whether digest is the secret's. It takes the same time whatever the digest; one of another length
// never matches.
func (s Secret) Matches(digest []byte) bool {
	own := s.Digest()
	return subtle.ConstantTimeCompare(own[:], digest) == 1
}

// Format implements [fmt.Formatter] for every verb: the content is never printed.
func (t Token) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements [encoding.TextMarshaler]: the content is never marshalled. JSON uses it too.
func (t Token) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements [slog.LogValuer].
func (t Token) LogValue() slog.Value { return slog.StringValue(redacted) }

// Format implements [fmt.Formatter] for every verb: the content is never printed.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(redacted)) }

// MarshalText implements [encoding.TextMarshaler]: the content is never marshalled. JSON uses it too.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

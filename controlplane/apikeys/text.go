package apikeys

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"strings"
)

// The bearer form of an API key: "bcak_" and 256 random bits in base64url without padding. The store finds the key by the
// SHA-256 of the bits and keeps nothing else of them.
const (
	prefix     = "bcak_"
	secretSize = 32
)

// New draws an API key and returns the bearer form, to be shown once, and the digest to be stored.
func New() (bearer string, digest [sha256.Size]byte) {
	secret := make([]byte, secretSize)
	_, _ = rand.Read(secret) // never fails: crypto/rand ends the program instead
	return prefix + base64.RawURLEncoding.EncodeToString(secret), sha256.Sum256(secret)
}

// Digest reads the bearer form.
func Digest(bearer string) (digest [sha256.Size]byte, ok bool) {
	text, found := strings.CutPrefix(bearer, prefix)
	secret, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !found || err != nil || len(secret) != secretSize || strings.ContainsAny(text, "\r\n") {
		return digest, false
	}
	return sha256.Sum256(secret), true
}

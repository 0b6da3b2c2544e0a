package tpmkey

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// maxRecord bounds a record, in bytes. A TPM key's is under 800, a file key's under 300.
const maxRecord = 8 << 10

// The PEM types of records. New writes the first two; SEC1 is read because openssl ecparam writes it.
const (
	pemPKCS8 = "PRIVATE KEY"
	pemTSS2  = "TSS2 PRIVATE KEY"
	pemSEC1  = "EC PRIVATE KEY"
)

// decodePEM returns the one block that a record is, and its type. It is strict: a record with anything beside that
// block was damaged or put together by hand, and the key that it stands for would be a guess.
func decodePEM(record []byte) (der []byte, kind string, err error) {
	if len(record) > maxRecord {
		return nil, "", fmt.Errorf("it has %d bytes, more than %d", len(record), maxRecord)
	}
	text := bytes.TrimSpace(record)
	if len(text) == 0 {
		return nil, "", errors.New("it is empty")
	}
	if !bytes.HasPrefix(text, []byte("-----BEGIN ")) {
		return nil, "", errors.New("it does not start with a PEM block")
	}
	block, rest := pem.Decode(text)
	switch {
	case block == nil:
		return nil, "", errors.New("its PEM block is damaged or cut short")
	case len(rest) > 0:
		return nil, "", errors.New("something follows its PEM block")
	case bytes.Count(text, []byte("-----BEGIN ")) != 1:
		// pem.Decode skips a block that does not parse in favour of the next one.
		return nil, "", errors.New("it has more than one PEM block")
	case len(block.Headers) > 0:
		return nil, "", errors.New("its PEM block has headers, as an encrypted key has")
	}
	switch block.Type {
	case pemPKCS8, pemTSS2, pemSEC1:
	default:
		return nil, "", fmt.Errorf("it is a %q, not a %q or a %q", block.Type, pemTSS2, pemPKCS8)
	}
	var whole asn1.RawValue
	if rest, err := asn1.Unmarshal(block.Bytes, &whole); err != nil || len(rest) > 0 {
		return nil, "", errors.New("its PEM block is not one DER value")
	}
	return block.Bytes, block.Type, nil
}

// fileKey is a P-256 key in memory. Its private part cannot be printed by accident.
type fileKey struct {
	key *ecdsa.PrivateKey
}

func newFileKey() ([]byte, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode the new key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemPKCS8, Bytes: der}), &fileKey{key}, nil
}

func parseFileKey(kind string, der []byte) (*fileKey, error) {
	var parsed any
	var err error
	if kind == pemSEC1 {
		parsed, err = x509.ParseECPrivateKey(der)
	} else {
		parsed, err = x509.ParsePKCS8PrivateKey(der)
	}
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T, not an ECDSA P-256 key", parsed)
	}
	if key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("it is on the curve %s, not on P-256", key.Curve.Params().Name)
	}
	return &fileKey{key}, nil
}

// Public returns the *[ecdsa.PublicKey].
func (k *fileKey) Public() crypto.PublicKey { return &k.key.PublicKey }

// Sign signs a SHA-256 digest: ECDSA, ASN.1 DER.
func (k *fileKey) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	if err := checkDigest(digest, opts); err != nil {
		return nil, err
	}
	return k.key.Sign(random, digest, opts)
}

// SignMessage signs the SHA-256 of msg.
func (k *fileKey) SignMessage(random io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	digest := sha256.Sum256(msg)
	return k.Sign(random, digest[:], opts)
}

// String tells which key it is, never what it is.
func (k *fileKey) String() string { return "P-256 key in a file (redacted)" }

// Format prints String whatever the verb: %d and %#v would walk into the fields otherwise.
func (k *fileKey) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, k.String()) }

// LogValue is String for slog.
func (k *fileKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// checkDigest refuses what a key of this package does not sign. The TPM keys are bound to SHA-256 by their public area,
// and file keys keep to the same rule so that a node's behaviour does not depend on where its key is.
func checkDigest(digest []byte, opts crypto.SignerOpts) error {
	if opts == nil || opts.HashFunc() != crypto.SHA256 {
		return errors.New("cannot sign: the key signs SHA-256 digests only")
	}
	if len(digest) != sha256.Size {
		return fmt.Errorf("cannot sign: the digest has %d bytes, not %d", len(digest), sha256.Size)
	}
	return nil
}

package seal

import (
	"crypto"
	"crypto/aes"
	"crypto/ecdh"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	josecipher "github.com/go-jose/go-jose/v4/cipher"
)

// Sizes of the parts after the header, in bytes: AES key wrap (RFC 3394) of a 256-bit key, and AES-GCM's.
const (
	wrappedKeySize = 40
	nonceSize      = 12
	tagSize        = 16
	kekSize        = 32
)

// ErrKeyUnavailable is wrapped by an error of [Open] that is no judgement on the seal: no private key could be used on
// it, because there is none or because its holder failed.
var ErrKeyUnavailable = errors.New("no private key can be used")

// Opened is what a seal held.
type Opened struct {
	// Token is the token's bytes, as they were sealed. The caller wipes it.
	Token []byte
	// IssuedAt is when the sender says that it made the seal. Nobody has checked it.
	IssuedAt time.Time
}

// Open opens a seal that came with the certificate request csrDER (DER PKCS#10). The keys are tried in order: the
// current one, then the one before it while a rotation lasts. They must be on P-256; where they live is theirs to know.
//
// Everything but the decryption is checked before a key is used. An error that wraps [ErrKeyUnavailable] may be tried
// again; any other one is final. Errors say what is wrong with the seal and never repeat its plaintext: they are for
// an operator, not for the machine that sent it.
func Open(keys []ecdh.KeyExchanger, compact string, csrDER []byte) (Opened, error) {
	h, err := check(compact, csrDER)
	if err != nil {
		return Opened{}, fmt.Errorf("cannot open the seal: %w", err)
	}
	jwe, err := jose.ParseEncryptedCompact(compact,
		[]jose.KeyAlgorithm{keyAlgorithm}, []jose.ContentEncryption{contentEncryption})
	if err != nil {
		return Opened{}, fmt.Errorf("cannot open the seal: %w", err)
	}
	if len(keys) == 0 {
		return Opened{}, fmt.Errorf("cannot open the seal: %w", ErrKeyUnavailable)
	}
	var failed error
	for _, key := range keys {
		r := &recipient{key: key, ephemeral: h.ephemeral}
		token, err := jwe.Decrypt(r)
		if err == nil {
			return Opened{Token: token, IssuedAt: h.issuedAt}, nil
		}
		failed = errors.Join(failed, r.failed)
	}
	if failed != nil {
		return Opened{}, fmt.Errorf("cannot open the seal: %w: %w", ErrKeyUnavailable, failed)
	}
	return Opened{}, errors.New("cannot open the seal: it was made for another key, or changed")
}

// check does all that needs no private key.
func check(compact string, csrDER []byte) (header, error) {
	if len(compact) > MaxSize {
		return header{}, fmt.Errorf("it has %d bytes, more than %d", len(compact), MaxSize)
	}
	if n := strings.Count(compact, "."); n != 4 {
		return header{}, fmt.Errorf("it has %d dots and must have 4", n)
	}
	var parts [5][]byte
	for i, s := range strings.Split(compact, ".") {
		b, err := decode(s)
		if err != nil {
			return header{}, fmt.Errorf("part %d: %w", i+1, err)
		}
		parts[i] = b
	}
	for _, p := range []struct {
		what       string
		size, want int
	}{
		{"wrapped key", len(parts[1]), wrappedKeySize}, {"nonce", len(parts[2]), nonceSize}, {"tag", len(parts[4]), tagSize},
	} {
		if p.size != p.want {
			return header{}, fmt.Errorf("its %s has %d bytes and must have %d", p.what, p.size, p.want)
		}
	}
	if len(parts[3]) == 0 {
		return header{}, errors.New("it is empty")
	}
	h, err := parseHeader(parts[0], csrDER)
	if err != nil {
		return header{}, fmt.Errorf("its header: %w", err)
	}
	return h, nil
}

// recipient unwraps a seal's content key with a private key that it does not see, as a [jose.OpaqueKeyDecrypter].
type recipient struct {
	key       ecdh.KeyExchanger
	ephemeral *ecdh.PublicKey

	// failed is the key holder's error. go-jose reports every failure as one and the same.
	failed error
}

// DecryptKey implements ECDH-ES+A256KW (RFC 7518 section 4.6). The header was read by parseHeader, not by go-jose.
func (r *recipient) DecryptKey(wrapped []byte, _ jose.Header) ([]byte, error) {
	if r.key.Curve() != ecdh.P256() {
		r.failed = fmt.Errorf("the key is on %v and must be on P-256", r.key.Curve())
		return nil, r.failed
	}
	z, err := r.key.ECDH(r.ephemeral)
	if err != nil {
		r.failed = err
		return nil, err
	}
	defer clear(z)
	kek := make([]byte, kekSize)
	defer clear(kek)
	// Other info: the algorithm's name, empty apu and apv, and the size of the wanted key in bits.
	kdf := josecipher.NewConcatKDF(crypto.SHA256, z, lengthPrefixed(string(keyAlgorithm)), lengthPrefixed(""), lengthPrefixed(""),
		binary.BigEndian.AppendUint32(nil, kekSize*8), nil)
	if _, err := io.ReadFull(kdf, kek); err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(kek)
	if err != nil {
		return nil, err
	}
	return josecipher.KeyUnwrap(block, wrapped)
}

func lengthPrefixed(s string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
}

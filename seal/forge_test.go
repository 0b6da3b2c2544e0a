package seal_test

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
)

// forge makes a seal from parts that Seal would never choose, with an implementation of RFC 7518 section 4.6, RFC 3394
// and RFC 7516 that shares nothing with the package. Everything is derived from its fields: the same forge gives the
// same seal. A forged seal is right in all that its fields do not spoil, so that a refusal is of what they spoil.
type forge struct {
	recipient *ecdh.PrivateKey
	csr       []byte
	token     string

	label     string           // what random values are derived from
	ephemeral *ecdh.PrivateKey // of label, where nil
	epk       string           // JSON of the ephemeral key, where it is not ephemeral's
	shared    []byte           // ECDH result, where it is not ephemeral's with recipient
	header    string           // a template; "" is the plain one
	kdfAlg    string
	apu       string
	wrapKey   int // size of the content key; 32
}

func scalar(label string) *ecdh.PrivateKey {
	sum := sha256.Sum256([]byte("better-compute seal vector " + label))
	k, err := ecdh.P256().NewPrivateKey(sum[:])
	if err != nil {
		panic(err)
	}
	return k
}

func b64(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

func jwk(p *ecdh.PublicKey) string {
	b := p.Bytes()
	return fmt.Sprintf(`{"kty":"EC","crv":"P-256","x":"%s","y":"%s"}`, b64(b[1:33]), b64(b[33:]))
}

// plain is the header that the document asks for. %EPK% and %CSR% stand for the values that fit.
const plain = `{"alg":"ECDH-ES+A256KW","csr":"%CSR%","enc":"A256GCM","epk":%EPK%,"iat":1795950371,"typ":"bcjt+jwe"}`

func (f forge) seal() string {
	if f.ephemeral == nil {
		f.ephemeral = scalar("ephemeral " + f.label)
	}
	if f.epk == "" {
		f.epk = jwk(f.ephemeral.PublicKey())
	}
	if f.shared == nil {
		f.shared = must(f.ephemeral.ECDH(f.recipient.PublicKey()))
	}
	if f.header == "" {
		f.header = plain
	}
	if f.kdfAlg == "" {
		f.kdfAlg = "ECDH-ES+A256KW"
	}
	if f.wrapKey == 0 {
		f.wrapKey = 32
	}
	sum := sha256.Sum256(f.csr)
	header := b64([]byte(strings.NewReplacer("%EPK%", f.epk, "%CSR%", b64(sum[:]), "%CSRHEX%", hex.EncodeToString(sum[:])).Replace(f.header)))

	cek := sha256.Sum256([]byte("content key " + f.label))
	nonce := sha256.Sum256([]byte("nonce " + f.label))
	aead := must(cipher.NewGCM(must(aes.NewCipher(cek[:f.wrapKey]))))
	sealed := aead.Seal(nil, nonce[:12], []byte(f.token), []byte(header))
	ciphertext, tag := sealed[:len(sealed)-16], sealed[len(sealed)-16:]
	return strings.Join([]string{header, b64(wrap(f.kek(), cek[:f.wrapKey])), b64(nonce[:12]), b64(ciphertext), b64(tag)}, ".")
}

func (f forge) kek() []byte {
	h := sha256.New()
	u32 := func(n int) { _ = binary.Write(h, binary.BigEndian, uint32(n)) }
	text := func(s string) { u32(len(s)); h.Write([]byte(s)) }
	u32(1)
	h.Write(f.shared)
	text(f.kdfAlg)
	text(f.apu)
	text("")
	u32(256)
	return h.Sum(nil)
}

// wrap is RFC 3394 section 2.2.1.
func wrap(kek, key []byte) []byte {
	block := must(aes.NewCipher(kek))
	n := len(key) / 8
	out := append([]byte{0xa6, 0xa6, 0xa6, 0xa6, 0xa6, 0xa6, 0xa6, 0xa6}, key...)
	b := make([]byte, 16)
	for j := range 6 {
		for i := 1; i <= n; i++ {
			copy(b, out[:8])
			copy(b[8:], out[8*i:8*i+8])
			block.Encrypt(b, b)
			binary.BigEndian.PutUint64(out, binary.BigEndian.Uint64(b)^uint64(n*j+i))
			copy(out[8*i:], b[8:])
		}
	}
	return out
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

package attest_test

import (
	"bytes"
	"crypto"
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"errors"
	"fmt"
	"math/big"
	"testing"

	"github.com/better-compute/bcd/tpmkey/attest"
)

// activate is TPM2_ActivateCredential in software, written from TPM 2.0 Part 1 (sections 11.4.10, 24, annexes B.10.4 and C.6.1):
// what a TPM with the EK's private key and an AK of this Name gets out of a challenge.
func activate(key crypto.PrivateKey, hash crypto.Hash, aesBits int, akName, blob, encrypted []byte) ([]byte, error) {
	seed, err := openSeed(key, hash, encrypted)
	if err != nil {
		return nil, err
	}
	mac, identity, err := cut(blob)
	if err != nil {
		return nil, err
	}
	want := hmac.New(hash.New, kdfa(hash, seed, "INTEGRITY", nil, hash.Size()*8))
	want.Write(identity)
	want.Write(akName)
	if !hmac.Equal(mac, want.Sum(nil)) {
		return nil, errors.New("integrity")
	}
	block, err := aes.NewCipher(kdfa(hash, seed, "STORAGE", akName, aesBits))
	if err != nil {
		return nil, err
	}
	plain := make([]byte, len(identity))
	//lint:ignore SA1019 it is the TPM's mode, under an HMAC
	cipher.NewCFBDecrypter(block, make([]byte, aes.BlockSize)).XORKeyStream(plain, identity)
	secret, rest, err := cut(plain)
	if err == nil && len(rest) > 0 {
		err = errors.New("more than a secret")
	}
	return secret, err
}

func openSeed(key crypto.PrivateKey, hash crypto.Hash, encrypted []byte) ([]byte, error) {
	switch key := key.(type) {
	case *rsa.PrivateKey:
		return rsa.DecryptOAEP(hash.New(), nil, key, encrypted, []byte("IDENTITY\x00"))
	case *ecdsa.PrivateKey:
		x, rest, err := cut(encrypted)
		if err != nil {
			return nil, err
		}
		y, rest, err := cut(rest)
		if err != nil || len(rest) > 0 {
			return nil, errors.New("no point")
		}
		point, err := ecdsa.ParseUncompressedPublicKey(key.Curve, append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil, err
		}
		theirs, err := point.ECDH()
		if err != nil {
			return nil, err
		}
		ours, err := key.ECDH()
		if err != nil {
			return nil, err
		}
		z, err := ours.ECDH(theirs)
		if err != nil {
			return nil, err
		}
		mine := ours.PublicKey().Bytes()
		// KDFe: H(counter | Z | label | 0 | x of the sender | x of the receiver), one block of which is enough.
		h := hash.New()
		h.Write([]byte{0, 0, 0, 1})
		h.Write(z)
		h.Write([]byte("IDENTITY\x00"))
		h.Write(x)
		h.Write(mine[1 : 1+len(mine)/2])
		return h.Sum(nil), nil
	default:
		return nil, fmt.Errorf("a %T", key)
	}
}

// kdfa is KDFa with an empty contextV.
func kdfa(hash crypto.Hash, key []byte, label string, context []byte, bits int) []byte {
	var out []byte
	for counter := uint32(1); len(out) < bits/8; counter++ {
		h := hmac.New(hash.New, key)
		_ = binary.Write(h, binary.BigEndian, counter)
		h.Write([]byte(label + "\x00"))
		h.Write(context)
		_ = binary.Write(h, binary.BigEndian, uint32(bits))
		out = h.Sum(out)
	}
	return out[:bits/8]
}

// cut takes a TPM2B off the front.
func cut(data []byte) (value, rest []byte, err error) {
	if len(data) < 2 || len(data)-2 < int(binary.BigEndian.Uint16(data)) {
		return nil, nil, errors.New("cut short")
	}
	n := 2 + int(binary.BigEndian.Uint16(data))
	return data[2:n], data[n:], nil
}

// kind is what the profile says of a template, apart from the code under test.
type kind struct {
	name string
	bits int            // of an RSA key
	on   elliptic.Curve // else
	hash crypto.Hash
	aes  int
}

var kinds = []kind{
	{"L-1", 2048, nil, crypto.SHA256, 128},
	{"L-2", 0, elliptic.P256(), crypto.SHA256, 128},
	{"H-1", 2048, nil, crypto.SHA256, 128},
	{"H-2", 0, elliptic.P256(), crypto.SHA256, 128},
	{"H-3", 0, elliptic.P384(), crypto.SHA384, 256},
	{"H-4", 0, elliptic.P521(), crypto.SHA512, 256},
	{"H-6", 3072, nil, crypto.SHA384, 256},
	{"H-7", 4096, nil, crypto.SHA384, 256},
}

// key returns the vectors' key of the kind: an RSA key takes seconds to make.
func (k kind) key(t testing.TB) crypto.Signer {
	t.Helper()
	for _, v := range readVectors[credentialVector](t, "credential.json") {
		if v.Template == k.name {
			return v.key(t)
		}
	}
	t.Fatalf("no vector for %s", k.name)
	return nil
}

func (k kind) newKey(t testing.TB) crypto.Signer {
	t.Helper()
	if k.on != nil {
		return newKey(t, k.on)
	}
	key, err := rsa.GenerateKey(rand.Reader, k.bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func spkiOf(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	spki, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return spki
}

func TestACredentialIsOpenedByItsTPMOnly(t *testing.T) {
	s := newSoftware(t)
	ak := s.akPublic(t)
	akDigest := sha256.Sum256(ak)
	name := append([]byte{0, 0x0b}, akDigest[:]...)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			key := k.key(t)
			ek := attest.EK{SPKI: spkiOf(t, key.Public()), Template: k.name}
			if err := ek.Check(); err != nil {
				t.Fatal(err)
			}
			secret := sha256.Sum256([]byte(k.name))
			blob, encrypted, err := attest.MakeCredential(ek, ak, secret)
			if err != nil {
				t.Fatal(err)
			}
			got, err := activate(key, k.hash, k.aes, name, blob, encrypted)
			if err != nil || !bytes.Equal(got, secret[:]) {
				t.Errorf("opened: %x, %v, want %x", got, err, secret)
			}
			other := bytes.Clone(name)
			other[10] ^= 1
			if got, err := activate(key, k.hash, k.aes, other, blob, encrypted); err == nil {
				t.Errorf("another AK opens it: %x", got)
			}
			again, _, err := attest.MakeCredential(ek, ak, secret)
			if err != nil || bytes.Equal(again, blob) {
				t.Errorf("a second one is the same, %v", err)
			}
		})
	}
}

func TestUnusableEndorsementKeys(t *testing.T) {
	p256 := spkiOf(t, newKey(t, elliptic.P256()).Public())
	rsa2048 := kinds[0].key(t).Public().(*rsa.PublicKey)
	for name, bad := range map[string]attest.EK{
		"nothing":               {},
		"no template":           {SPKI: p256},
		"an unknown template":   {SPKI: p256, Template: "H-5"},
		"a template in words":   {SPKI: p256, Template: "l-2"},
		"no key":                {Template: "L-2"},
		"no SPKI":               {SPKI: []byte("key"), Template: "L-2"},
		"more than an SPKI":     {SPKI: append(bytes.Clone(p256), 0), Template: "L-2"},
		"a huge SPKI":           {SPKI: make([]byte, 1<<20), Template: "L-2"},
		"another curve":         {SPKI: spkiOf(t, newKey(t, elliptic.P384()).Public()), Template: "L-2"},
		"a curve of none":       {SPKI: spkiOf(t, newKey(t, elliptic.P224()).Public()), Template: "L-2"},
		"ECC for RSA":           {SPKI: p256, Template: "L-1"},
		"RSA for ECC":           {SPKI: spkiOf(t, rsa2048), Template: "L-2"},
		"another size":          {SPKI: spkiOf(t, rsa2048), Template: "H-6"},
		"another exponent":      {SPKI: spkiOf(t, &rsa.PublicKey{N: rsa2048.N, E: 3}), Template: "L-1"},
		"an even modulus":       {SPKI: spkiOf(t, &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2047), E: 65537}), Template: "L-1"},
		"another kind of key":   {SPKI: ed25519SPKI, Template: "L-2"},
		"the BER of a key":      {SPKI: longLength(p256), Template: "L-2"},
		"RSA without its NULL":  {SPKI: withoutNull(t, rsa2048), Template: "L-1"},
		"a point off the curve": {SPKI: func() []byte { b := bytes.Clone(p256); b[len(b)-1] ^= 1; return b }(), Template: "L-2"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := bad.Check(); err == nil {
				t.Error("it passes")
			}
			s := newSoftware(t)
			if _, _, err := attest.MakeCredential(bad, s.akPublic(t), [32]byte{}); err == nil {
				t.Error("a credential is made for it")
			}
			if err := attest.VerifyEKChain(bad, [][]byte{{0x30, 0}}, nil, noon); err == nil {
				t.Error("a chain is verified for it")
			}
		})
	}
}

func TestNoCredentialForAnotherAK(t *testing.T) {
	ek := attest.EK{SPKI: spkiOf(t, newKey(t, elliptic.P256()).Public()), Template: "L-2"}
	s := newSoftware(t)
	// The area of a software key that was imported: it passes credential activation on any TPM.
	s.akArea.ObjectAttributes.SensitiveDataOrigin = false
	s.akArea.ObjectAttributes.FixedTPM, s.akArea.ObjectAttributes.FixedParent = false, false
	if _, _, err := attest.MakeCredential(ek, s.akPublic(t), [32]byte{}); err == nil {
		t.Error("a credential is made for an imported key")
	}
	if _, _, err := attest.MakeCredential(ek, nil, [32]byte{}); err == nil {
		t.Error("a credential is made for no key")
	}
}

func TestTheHashOfAnEKIsThatOfItsSPKI(t *testing.T) {
	spki := spkiOf(t, newKey(t, elliptic.P256()).Public())
	if got := (attest.EK{SPKI: spki, Template: "L-2"}).Hash(); got != sha256.Sum256(spki) {
		t.Errorf("%x", got)
	}
}

var ed25519SPKI = append([]byte{0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0}, make([]byte, 32)...)

// longLength encodes the outer length in two bytes where one is enough.
func longLength(spki []byte) []byte { return append([]byte{0x30, 0x81, spki[1]}, spki[2:]...) }

func withoutNull(t testing.TB, key *rsa.PublicKey) []byte {
	t.Helper()
	der, err := asn1.Marshal(struct {
		Algorithm struct{ OID asn1.ObjectIdentifier }
		Key       asn1.BitString
	}{
		struct{ OID asn1.ObjectIdentifier }{asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}},
		asn1.BitString{Bytes: x509.MarshalPKCS1PublicKey(key), BitLength: 8 * len(x509.MarshalPKCS1PublicKey(key))},
	})
	if err != nil {
		t.Fatal(err)
	}
	return der
}

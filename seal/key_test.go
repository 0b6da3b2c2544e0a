package seal_test

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/seal"
)

// Req: CF-011
func TestParseKey(t *testing.T) {
	private := scalar("a key of the tests")
	text := jwk(private.PublicKey())
	short := search("short x", func(x, _, _ []byte) bool { return x[0] == 0 }).PublicKey()
	b := short.Bytes()
	cut := `{"kty":"EC","crv":"P-256","x":"` + b64(b[2:33]) + `","y":"` + b64(b[33:]) + `"}`
	zeros := `{"kty":"EC","crv":"P-256","x":"` + b64(append([]byte{0}, b[1:33]...)) + `","y":"` + b64(b[33:]) + `"}`
	add := func(member string) string { return strings.Replace(text, "{", "{"+member+",", 1) }

	for name, c := range map[string]struct{ jwk, wrong string }{
		"the document's form":       {text, ""},
		"with a final line break":   {text + "\n", ""},
		"use, alg, kid":             {add(`"use":"enc","alg":"ECDH-ES+A256KW","kid":"2026"`), ""},
		"a member that we lack":     {add(`"x5t#S256":"AA","ext":true`), ""},
		"a short key in full":       {jwk(short), ""},
		"a leading zero missing":    {cut, `"x" has 31 bytes and must have 32: its leading zeros are missing`},
		"a leading zero too many":   {zeros, `"x" has 33 bytes and must have 32`},
		"padding":                   {strings.Replace(text, `"}`, `="}`, 1), "padding is not allowed"},
		"a private key":             {add(`"d":"` + b64(private.Bytes()) + `"`), "holds a private key"},
		"a private key, null":       {add(`"d":null`), "holds a private key"},
		"a signing key":             {add(`"use":"sig"`), `"use" is "sig" and must be "enc"`},
		"another algorithm":         {add(`"alg":"ES256"`), `"alg" is "ES256" and must be "ECDH-ES+A256KW"`},
		"alg that is no text":       {add(`"alg":1`), `"alg" is 1 and must be`},
		"x twice":                   {add(`"x":"AA"`), `member "x" occurs twice`},
		"P-384":                     {jwkOf384(), `"crv" is "P-384" and must be "P-256"`},
		"RSA":                       {`{"kty":"RSA","n":"AQAB","e":"AQAB"}`, `"kty" is "RSA" and must be "EC"`},
		"a key set":                 {`{"keys":[` + text + `]}`, `member "kty" is missing`},
		"PEM":                       {"-----BEGIN PUBLIC KEY-----\n", "not JSON"},
		"a list":                    {"[" + text + "]", "not a JSON object"},
		"nothing":                   {"", "not JSON"},
		"two keys":                  {text + text, "not JSON"},
		"no point of the curve":     {`{"kty":"EC","crv":"P-256","x":"` + b64(b[33:]) + `","y":"` + b64(b[1:33]) + `"}`, "no point of P-256"},
		"a binary file":             {"\xff\xfe{", "not UTF-8"},
		"names in another case":     {strings.ToUpper(text[:8]) + text[8:], `member "kty" is missing`},
		"the point in one piece":    {`{"kty":"EC","crv":"P-256","x":"` + b64(b) + `"}`, `"x" has 65 bytes`},
		"coordinates that are null": {`{"kty":"EC","crv":"P-256","x":null,"y":null}`, `member "x" is not a string`},
	} {
		key, err := seal.ParseKey([]byte(c.jwk))
		switch {
		case c.wrong == "" && (err != nil || key.IsZero()):
			t.Errorf("%s: %v", name, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		case c.wrong != "" && !key.IsZero():
			t.Errorf("%s: an error with a key", name)
		}
	}
}

// A key in 128 begins with a zero byte in x or y. What is written must be read again, and have the same pin.
func TestKeyRoundTrip(t *testing.T) {
	for _, private := range []*ecdh.PrivateKey{
		scalar("round trip"),
		search("short x", func(x, _, _ []byte) bool { return x[0] == 0 }),
		search("short y", func(_, y, _ []byte) bool { return y[0] == 0 }),
	} {
		key, err := seal.NewKey(private.PublicKey())
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		if string(text) != jwk(private.PublicKey()) {
			t.Errorf("written as %s", text)
		}
		var again seal.Key
		if err := json.Unmarshal(text, &again); err != nil {
			t.Fatal(err)
		}
		a, err := key.Pin()
		if err != nil {
			t.Fatal(err)
		}
		b, err := again.Pin()
		if err != nil || a != b || !again.Equal(key) {
			t.Errorf("%s reads as a key with pin %s, %v; want %s", text, b, err, a)
		}
		if again.Public().Equal(private.PublicKey()) == false {
			t.Error("another point")
		}
	}
}

func TestPinIsOfTheSPKI(t *testing.T) {
	b, err := os.ReadFile("../testdata/vectors/seal/valid.json")
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Recipient vectorKey }
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	x, _ := base64.RawURLEncoding.DecodeString(f.Recipient.X)
	y, _ := base64.RawURLEncoding.DecodeString(f.Recipient.Y)
	// The SubjectPublicKeyInfo of a P-256 key is this prefix and the uncompressed point (RFC 5480).
	spki := append([]byte("\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00\x04"), append(x, y...)...)
	key, err := seal.ParseKey([]byte(`{"kty":"EC","crv":"P-256","x":"` + f.Recipient.X + `","y":"` + f.Recipient.Y + `"}`))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := key.Pin(); err != nil || got != pin.OfSPKI(spki) {
		t.Errorf("pin %s, %v; want %s", got, err, pin.OfSPKI(spki))
	}
}

func TestNewKeyTakesBothFormsOfThePublicKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	exchange, err := private.ECDH()
	if err != nil {
		t.Fatal(err)
	}
	a, errA := seal.NewKey(&private.PublicKey)
	b, errB := seal.NewKey(exchange.PublicKey())
	if errA != nil || errB != nil || !a.Equal(b) || a.Equal(seal.Key{}) {
		t.Errorf("%v, %v", errA, errB)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x25519, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	edPublic, _, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, pub := range []any{&p384.PublicKey, x25519.PublicKey(), edPublic, nil, private} {
		if _, err := seal.NewKey(pub); err == nil {
			t.Errorf("a %T is a key to seal to", pub)
		}
	}
}

func TestZeroKey(t *testing.T) {
	var k seal.Key
	if _, err := k.Pin(); err == nil || !k.IsZero() || k.Public() != nil {
		t.Error("the zero key is a key")
	}
	if _, err := json.Marshal(k); err == nil {
		t.Error("the zero key is written")
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add([]byte(jwk(scalar("fuzz").PublicKey())))
	f.Add([]byte(jwkOf384()))
	f.Fuzz(func(t *testing.T, b []byte) {
		key, err := seal.ParseKey(b)
		if err != nil {
			return
		}
		text, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		again, err := seal.ParseKey(text)
		if err != nil || !again.Equal(key) {
			t.Errorf("%q is written as %s, which reads as %v, %v", b, text, again, err)
		}
	})
}

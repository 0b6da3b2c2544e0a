package seal_test

import (
	"bytes"
	"crypto/ecdh"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/seal"
)

var update = flag.Bool("update", false, "write testdata/vectors/seal again")

// vectorFile is one file of testdata/vectors/seal; its README says what the members mean.
type vectorFile struct {
	Recipient vectorKey `json:"recipient"`
	CSR       string    `json:"csr_hex"`
	Vectors   []vector  `json:"vectors"`
}

type vectorKey struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Y   string `json:"y"`
	D   string `json:"d"`
}

type vector struct {
	Name    string `json:"name"`
	Why     string `json:"why,omitempty"`
	Before  *bool  `json:"refused_before_private_key,omitempty"`
	Token   string `json:"token,omitempty"`
	IAT     *int64 `json:"iat,omitempty"`
	Compact string `json:"compact"`
}

// counter is a private key that is elsewhere, and counts how often it was asked.
type counter struct {
	*ecdh.PrivateKey
	calls int
}

func (c *counter) ECDH(p *ecdh.PublicKey) ([]byte, error) {
	c.calls++
	return c.PrivateKey.ECDH(p)
}

func load(t *testing.T, name string) (vectorFile, *ecdh.PrivateKey, []byte) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("../testdata/vectors/seal", name))
	if err != nil {
		t.Fatal(err)
	}
	var f vectorFile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatal(err)
	}
	d, err := base64.RawURLEncoding.DecodeString(f.Recipient.D)
	if err != nil {
		t.Fatal(err)
	}
	private, err := ecdh.P256().NewPrivateKey(d)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := hex.DecodeString(f.CSR)
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Vectors) < 10 {
		t.Fatalf("%s has %d vectors", name, len(f.Vectors))
	}
	return f, private, csr
}

func TestValidVectors(t *testing.T) {
	f, private, csr := load(t, "valid.json")
	for _, v := range f.Vectors {
		got, err := seal.Open([]ecdh.KeyExchanger{private}, v.Compact, csr)
		if err != nil {
			t.Errorf("%s: %v", v.Name, err)
			continue
		}
		if diff := cmp.Diff(seal.Opened{Token: []byte(v.Token), IssuedAt: time.Unix(*v.IAT, 0).UTC()}, got); diff != "" {
			t.Errorf("%s: %s", v.Name, diff)
		}
	}
}

// Req: SE-010 SE-013
func TestRefusedVectors(t *testing.T) {
	f, private, csr := load(t, "refused.json")
	for _, v := range f.Vectors {
		key := &counter{PrivateKey: private}
		got, err := seal.Open([]ecdh.KeyExchanger{key}, v.Compact, csr)
		if err == nil || got.Token != nil {
			t.Errorf("%s: opened as %q", v.Name, got.Token)
			continue
		}
		if errors.Is(err, seal.ErrKeyUnavailable) {
			t.Errorf("%s: %v blames the key", v.Name, err)
		}
		if want := map[bool]int{true: 0, false: 1}[*v.Before]; key.calls != want {
			t.Errorf("%s: %d uses of the private key, want %d (%v)", v.Name, key.calls, want, err)
		}
		if strings.Contains(err.Error(), "bcjt_jt_") {
			t.Errorf("%s: %v shows the token", v.Name, err)
		}
	}
}

// TestVectorsAreTheGenerators keeps the files and the table below equal, so that neither is changed alone.
func TestVectorsAreTheGenerators(t *testing.T) {
	for name, vectors := range map[string][]vector{"valid.json": validVectors(), "refused.json": refusedVectors()} {
		path := filepath.Join("../testdata/vectors/seal", name)
		want := render(vectors)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what the table makes; run: go test ./seal -run %s -update", path, t.Name())
		}
	}
}

var recipientKey = scalar("recipient")

func render(vectors []vector) []byte {
	point := recipientKey.PublicKey().Bytes()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(vectorFile{
		Recipient: vectorKey{"EC", "P-256", b64(point[1:33]), b64(point[33:]), b64(recipientKey.Bytes())},
		CSR:       hex.EncodeToString(csr),
		Vectors:   vectors,
	}); err != nil {
		panic(err)
	}
	return b.Bytes()
}

func base(label string) forge {
	return forge{recipient: recipientKey, csr: csr, token: string(token), label: label}
}

// search returns the first key whose point or shared secret has a property that one in 256 has.
func search(label string, ok func(x, y, z []byte) bool) *ecdh.PrivateKey {
	for i := 0; ; i++ {
		k := scalar(fmt.Sprintf("%s %d", label, i))
		point := k.PublicKey().Bytes()
		if ok(point[1:33], point[33:], must(k.ECDH(recipientKey.PublicKey()))) {
			return k
		}
	}
}

func validVectors() []vector {
	var out []vector
	const iat = 1795950371
	add := func(name string, at int64, f forge) {
		f.label = name
		out = append(out, vector{Name: name, Token: f.token, IAT: &at, Compact: f.seal()})
	}
	add("plain", iat, base(""))

	f := base("")
	f.header = ` { "typ" : "bcjt+jwe" , "iat" : 1795950371 , "epk" : %EPK% , "enc" : "A256GCM" , "csr" : "%CSR%" , "alg" : "ECDH-ES+A256KW" }` + "\n"
	add("other order of members, white space between them", iat, f)

	f = base("")
	f.header = `{"alg":"ECDH-ES\u002BA256KW","csr":"%CSR%","enc":"A256GCM","epk":%EPK%,"iat":1795950371,"typ":"bcjt\u002Bjwe"}`
	add("escaped plus signs", iat, f)

	f = base("")
	f.header = strings.Replace(plain, "1795950371", "0", 1)
	add("iat 0: a machine whose clock was never set", 0, f)

	f = base("")
	f.header = strings.Replace(plain, "1795950371", "253402300799", 1)
	add("iat of the last second of the year 9999", 253402300799, f)

	f = base("")
	f.ephemeral = search("short x", func(x, _, _ []byte) bool { return x[0] == 0 })
	add("x of the ephemeral key begins with a zero byte", iat, f)

	f = base("")
	f.ephemeral = search("short y", func(_, y, _ []byte) bool { return y[0] == 0 })
	add("y of the ephemeral key begins with a zero byte", iat, f)

	f = base("")
	f.ephemeral = search("short z", func(_, _, z []byte) bool { return z[0] == 0 })
	add("the shared secret begins with a zero byte", iat, f)

	// The point with x = 0 is on the curve: y is a square root of b. Nobody knows its private key; the recipient's does.
	zero := must(ecdh.P256().NewPublicKey(must(hex.DecodeString("04" + strings.Repeat("00", 32) +
		"66485c780e2f83d72433bd5d84a06bb6541c2af31dae871728bf856a174f93f4"))))
	f = base("")
	f.epk, f.shared = jwk(zero), must(recipientKey.ECDH(zero))
	add("x of the ephemeral key is zero", iat, f)

	f = base("")
	f.token = "t"
	add("a token of one byte", iat, f)

	f = base("")
	f.token = strings.Repeat("0123456789abcdef", 256)
	add("a token of 4096 bytes", iat, f)
	return out
}

func refusedVectors() []vector {
	var out []vector
	yes, no := true, false
	raw := func(before bool, name, why, compact string) {
		b := &yes
		if !before {
			b = &no
		}
		out = append(out, vector{Name: name, Why: why, Before: b, Compact: compact})
	}
	header := func(name, why, h string) {
		f := base(name)
		f.header = h
		raw(true, name, why, f.seal())
	}
	// swap replaces one piece of the plain header, which must be there.
	swap := func(name, why, old, new string) {
		if !strings.Contains(plain, old) {
			panic(old)
		}
		header(name, why, strings.Replace(plain, old, new, 1))
	}
	epk := func(name, why, key string) {
		f := base(name)
		f.epk = key
		raw(true, "epk: "+name, why, f.seal())
	}
	parts := strings.Split(base("plain").seal(), ".")
	with := func(i int, s string) string {
		p := append([]string(nil), parts...)
		p[i] = s
		return strings.Join(p, ".")
	}
	whole := strings.Join(parts, ".")

	// The envelope.
	raw(true, "empty", "five parts are required", "")
	raw(true, "four parts", "five parts are required", strings.Join(parts[:4], "."))
	raw(true, "six parts", "five parts are required", whole+".")
	raw(true, "JSON serialization", "compact serialization is required", fmt.Sprintf(
		`{"protected":"%s","encrypted_key":"%s","iv":"%s","ciphertext":"%s","tag":"%s"}`, parts[0], parts[1], parts[2], parts[3], parts[4],
	))
	raw(true, "leading space", "one spelling only", " "+whole)
	raw(true, "trailing line break", "one spelling only", whole+"\n")
	f := base("too large")
	f.token = strings.Repeat("0123456789abcdef", 400)
	raw(true, "too large", "at most 8192 bytes", f.seal())
	for i, part := range []string{"header", "wrapped key", "nonce", "ciphertext", "tag"} {
		raw(true, "line break in the "+part, "one spelling only", with(i, parts[i][:2]+"\n"+parts[i][2:]))
		raw(true, "carriage return in the "+part, "one spelling only", with(i, parts[i][:2]+"\r"+parts[i][2:]))
		raw(true, "padding after the "+part, "base64url without padding is required", with(i, parts[i]+"="))
		raw(true, "standard base64 in the "+part, "base64url is required", with(i, "+/"+parts[i][2:]))
		if last := strayBits(parts[i]); last != "" {
			raw(true, "stray bits at the end of the "+part, "one spelling only", with(i, last))
		}
	}
	raw(true, "empty header", "a header is required", with(0, ""))
	raw(true, "empty wrapped key", "ECDH-ES without key wrap is not allowed", with(1, ""))
	raw(true, "wrapped key of 48 bytes", "40 bytes are required", with(1, b64(make([]byte, 48))))
	f = base("wrapped key of 24 bytes")
	f.wrapKey = 16
	raw(true, f.label, "40 bytes are required: the content key has 256 bits", f.seal())
	raw(true, "nonce of 16 bytes", "12 bytes are required", with(2, b64(make([]byte, 16))))
	raw(true, "empty nonce", "12 bytes are required", with(2, ""))
	raw(true, "tag of 12 bytes", "16 bytes are required", with(4, parts[4][:16]))
	raw(true, "empty tag", "16 bytes are required", with(4, ""))
	f = base("empty token")
	f.token = ""
	raw(true, f.label, "a token has at least one byte", f.seal())

	// The header as JSON.
	header("header is an array", "an object is required", `[`+plain+`]`)
	header("header is null", "an object is required", `null`)
	header("header is text", "an object is required", `"alg"`)
	header("header is empty", "an object is required", ` `)
	header("two objects", "one object is required", plain+plain)
	header("trailing comma", "strict JSON is required", strings.Replace(plain, `"}`, `",}`, 1))
	header("comment", "strict JSON is required", `/**/`+plain)
	header("single quotes", "strict JSON is required", strings.ReplaceAll(plain, `"typ"`, `'typ'`))
	header("byte order mark", "strict JSON is required", "\ufeff"+plain)
	header("not UTF-8", "UTF-8 is required", strings.Replace(plain, `}`, `,"a":"`+"\xff"+`"}`, 1))
	header("alg twice, the last one right", "member names are unique", strings.Replace(plain, `{`, `{"alg":"none",`, 1))
	header("alg twice, the first one right", "member names are unique", strings.Replace(plain, `"}`, `","alg":"none"}`, 1))
	header("alg twice, equal", "member names are unique", strings.Replace(plain, `{`, `{"alg":"ECDH-ES+A256KW",`, 1))
	header("alg twice, one name escaped", "member names are unique", strings.Replace(plain, `{`, `{"\u0061lg":"none",`, 1))
	swap("name in another case", "names are exact", `"alg"`, `"ALG"`)
	header("name in another case beside the right one", "names are exact", strings.Replace(plain, `{`, `{"Alg":"none",`, 1))

	// Members that are not the six.
	for _, m := range []string{
		`"zip":"DEF"`, `"zip":null`, `"crit":["exp"]`, `"crit":[]`, `"p2c":2147483647`, `"p2s":"AAAA"`, `"apu":"QQ"`, `"apv":"QQ"`, `"apu":""`,
		`"kid":"1"`, `"jwk":%EPK%`, `"jku":"https://example.com/"`, `"x5c":[]`, `"x5t":"AA"`, `"x5u":"https://example.com/"`, `"cty":"JWT"`,
		`"exp":1795950371`, `"":1`, `"b64":false`, `"iv":"AA"`, `"tag":"AA"`,
	} {
		header("with "+m, "exactly six members are allowed", strings.Replace(plain, `{`, `{`+m+`,`, 1))
	}
	for _, m := range []string{`"alg":"ECDH-ES+A256KW",`, `"csr":"%CSR%",`, `"enc":"A256GCM",`, `"epk":%EPK%,`, `"iat":1795950371,`, `,"typ":"bcjt+jwe"`} {
		swap("without "+m[strings.IndexByte(m, '"')+1:strings.IndexByte(m, ':')-1], "all six members are required", m, "")
	}

	// Their values.
	for _, alg := range []string{
		`"ECDH-ES"`, `"ECDH-ES+A128KW"`, `"ECDH-ES+A192KW"`, `"ecdh-es+a256kw"`, `"A256KW"`, `"dir"`, `"none"`, `"RSA-OAEP"`, `"RSA1_5"`,
		`"PBES2-HS256+A128KW"`, `"ECDH-ES+A256KW "`, `""`, `null`, `1`, `["ECDH-ES+A256KW"]`,
	} {
		swap("alg "+alg, "alg is ECDH-ES+A256KW", `"ECDH-ES+A256KW"`, alg)
	}
	for _, enc := range []string{`"A128GCM"`, `"A192GCM"`, `"A256CBC-HS512"`, `"a256gcm"`, `null`, `{}`} {
		swap("enc "+enc, "enc is A256GCM", `"A256GCM"`, enc)
	}
	for _, typ := range []string{`"JWT"`, `"BCJT+JWE"`, `"application/bcjt+jwe"`, `"bcjt+jwe\u0000"`, `""`, `null`, `true`} {
		swap("typ "+typ, "typ is bcjt+jwe", `"bcjt+jwe"`, typ)
	}
	for _, iat := range []string{
		`"1795950371"`, `1795950371.5`, `1795950371.0`, `1795950371e0`, `1.795950371e9`, `-1`, `-0`, `253402300800`,
		`9223372036854775808`, `1e400`, `null`, `true`, `[1795950371]`, `{}`,
	} {
		swap("iat "+iat, "iat is whole seconds from 0 to 253402300799, in digits", `1795950371`, iat)
	}
	swap("csr in hex", "csr is base64url", `%CSR%`, `%CSRHEX%`)
	swap("csr with padding", "base64url without padding is required", `%CSR%`, `%CSR%=`)
	swap("csr cut", "csr is the whole SHA-256", `"%CSR%"`, `""`)
	swap("csr null", "csr is text", `"%CSR%"`, `null`)
	swap("csr as a list", "csr is text", `"%CSR%"`, `["%CSR%"]`)
	f = base("csr of another request")
	f.csr = []byte("another request")
	raw(true, f.label, "the seal is for one request", f.seal())
	swap("csr of the empty input", "the seal is for one request", `%CSR%`, `47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU`)

	// The ephemeral key.
	point := scalar("ephemeral key of the vectors").PublicKey().Bytes()
	x, y := point[1:33], point[33:]
	key := func(kty, crv, x, y string) string {
		return fmt.Sprintf(`{"kty":%s,"crv":%s,"x":%s,"y":%s}`, kty, crv, x, y)
	}
	q := func(b []byte) string { return `"` + b64(b) + `"` }
	good := key(`"EC"`, `"P-256"`, q(x), q(y))
	const exact = "epk has exactly kty, crv, x and y"
	epk("null", "an object is required", `null`)
	epk("text", "an object is required", `"`+b64(point)+`"`)
	epk("with d", exact, strings.Replace(good, `}`, `,"d":`+q(x)+`}`, 1))
	epk("with kid", exact, strings.Replace(good, `}`, `,"kid":"1"}`, 1))
	epk("with use", exact, strings.Replace(good, `}`, `,"use":"enc"}`, 1))
	epk("with key_ops", exact, strings.Replace(good, `}`, `,"key_ops":["deriveKey"]}`, 1))
	epk("without y", exact, fmt.Sprintf(`{"kty":"EC","crv":"P-256","x":%s}`, q(x)))
	epk("empty object", exact, `{}`)
	epk("x twice", "member names are unique", strings.Replace(good, `{`, `{"x":`+q(y)+`,`, 1))
	epk("X for x", "names are exact", strings.Replace(good, `"x"`, `"X"`, 1))
	epk("kty OKP", "kty is EC", key(`"OKP"`, `"P-256"`, q(x), q(y)))
	epk("kty RSA", "kty is EC", key(`"RSA"`, `"P-256"`, q(x), q(y)))
	epk("kty null", "kty is EC", key(`null`, `"P-256"`, q(x), q(y)))
	epk("X25519", exact, fmt.Sprintf(`{"kty":"OKP","crv":"X25519","x":%s}`, q(x)))
	epk("crv P-384", "crv is P-256", key(`"EC"`, `"P-384"`, q(x), q(y)))
	epk("crv secp256k1", "crv is P-256", key(`"EC"`, `"secp256k1"`, q(x), q(y)))
	epk("crv p-256", "names are exact", key(`"EC"`, `"p-256"`, q(x), q(y)))
	epk("a point of P-384", "crv is P-256", jwkOf384())
	epk("a point of secp256k1 called P-256", "the point is on P-256", key(`"EC"`, `"P-256"`,
		q(must(hex.DecodeString("79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798"))),
		q(must(hex.DecodeString("483ada7726a3c4655da4fbfc0e1108a8fd17b448a68554199c47d08ffb10d4b8")))))
	epk("off the curve", "the point is on P-256", key(`"EC"`, `"P-256"`, q(x), q(append(bytes.Clone(y[:31]), y[31]^1))))
	epk("x and y exchanged", "the point is on P-256", key(`"EC"`, `"P-256"`, q(y), q(x)))
	epk("zero and zero", "the point is on P-256, and not at infinity", key(`"EC"`, `"P-256"`, q(make([]byte, 32)), q(make([]byte, 32))))
	epk("empty coordinates", "a coordinate has 32 bytes", key(`"EC"`, `"P-256"`, `""`, `""`))
	// p, which is another spelling of the x = 0 of a valid vector.
	epk("x is the field's prime", "a coordinate is less than the prime", key(`"EC"`, `"P-256"`,
		q(must(hex.DecodeString("ffffffff00000001000000000000000000000000ffffffffffffffffffffffff"))),
		q(must(hex.DecodeString("66485c780e2f83d72433bd5d84a06bb6541c2af31dae871728bf856a174f93f4")))))
	epk("coordinates of all ones", "a coordinate is less than the prime", key(`"EC"`, `"P-256"`,
		q(bytes.Repeat([]byte{0xff}, 32)), q(bytes.Repeat([]byte{0xff}, 32))))
	epk("x with a leading zero too many", "a coordinate has 32 bytes", key(`"EC"`, `"P-256"`, q(append([]byte{0}, x...)), q(y)))
	epk("y with padding", "base64url without padding is required", key(`"EC"`, `"P-256"`, q(x), `"`+b64(y)+`="`))
	epk("x with stray bits", "one spelling only", key(`"EC"`, `"P-256"`, `"`+strayBits(b64(x))+`"`, q(y)))
	epk("x with a line break", "one spelling only", key(`"EC"`, `"P-256"`, `"`+b64(x)[:4]+`\n`+b64(x)[4:]+`"`, q(y)))
	epk("compressed", "x and y are required", fmt.Sprintf(`{"kty":"EC","crv":"P-256","x":%s,"y":true}`, q(x)))
	short := search("short x", func(x, _, _ []byte) bool { return x[0] == 0 }).PublicKey().Bytes()
	epk("x without its leading zero", "a coordinate has 32 bytes", key(`"EC"`, `"P-256"`, q(short[2:33]), q(short[33:])))

	// What only the key can tell.
	flip := func(i int) string {
		b := must(base64.RawURLEncoding.DecodeString(parts[i]))
		b[len(b)/2] ^= 1
		return with(i, b64(b))
	}
	raw(false, "wrapped key changed", "key wrap has a check value", flip(1))
	raw(false, "nonce changed", "AES-GCM", flip(2))
	raw(false, "ciphertext changed", "AES-GCM", flip(3))
	raw(false, "tag changed", "AES-GCM", flip(4))
	raw(false, "iat changed", "the header is authenticated", with(0, b64([]byte(strings.Replace(
		string(must(base64.RawURLEncoding.DecodeString(parts[0]))), "1795950371", "1795950372", 1,
	)))))
	raw(false, "white space added to the header", "the header is authenticated as it is written", with(0, b64(append(
		must(base64.RawURLEncoding.DecodeString(parts[0])), ' ',
	))))
	other := base("for another key")
	other.recipient = scalar("another recipient")
	raw(false, other.label, "made for another recipient", other.seal())
	other = base("another algorithm in the key derivation")
	other.kdfAlg = "A256GCM"
	raw(false, other.label, "the algorithm's name is ECDH-ES+A256KW (RFC 7518 section 4.6.2)", other.seal())
	other = base("apu in the key derivation")
	other.apu = "Alice"
	raw(false, other.label, "apu is empty", other.seal())
	return out
}

// strayBits sets the bits of the last character that no byte takes, or returns "" where there are none.
func strayBits(s string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	if len(s)%4 == 0 {
		return ""
	}
	return s[:len(s)-1] + string(alphabet[strings.IndexByte(alphabet, s[len(s)-1])|1])
}

func jwkOf384() string {
	seed := bytes.Repeat([]byte{7}, 48)
	b := must(ecdh.P384().NewPrivateKey(seed)).PublicKey().Bytes()
	return fmt.Sprintf(`{"kty":"EC","crv":"P-384","x":"%s","y":"%s"}`, b64(b[1:49]), b64(b[49:]))
}

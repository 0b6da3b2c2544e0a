package tpmkey_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey"
)

type vectors struct {
	Valid []struct {
		Name    string `json:"name"`
		Record  string `json:"record"`
		Parent  string `json:"parent"`
		Public  string `json:"tpm2b_public"`
		Private string `json:"tpm2b_private"`
		SPKI    string `json:"spki"`
	} `json:"valid"`
	Invalid []struct {
		Name   string `json:"name"`
		Record string `json:"record"`
	} `json:"invalid"`
}

func readVectors(t testing.TB) vectors {
	t.Helper()
	text, err := os.ReadFile("../testdata/vectors/tss2-key/vectors.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Valid) == 0 || len(v.Invalid) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func TestTSS2Vectors(t *testing.T) {
	v := readVectors(t)
	for _, valid := range v.Valid {
		t.Run(valid.Name, func(t *testing.T) {
			d, err := tpmkey.Describe([]byte(valid.Record))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("0x%08x", d.Parent); got != valid.Parent || d.Kind != tpmkey.KindTPM {
				t.Errorf("kind %q with parent %s, want %q with %s", d.Kind, got, tpmkey.KindTPM, valid.Parent)
			}
			spki, err := x509.MarshalPKIXPublicKey(d.Public)
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(spki); got != valid.SPKI {
				t.Errorf("public key %s, want %s", got, valid.SPKI)
			}
			public, private, err := tpmkey.Blobs([]byte(valid.Record))
			if err != nil {
				t.Fatal(err)
			}
			if got := hex.EncodeToString(tpm2.Marshal(public)); got != valid.Public {
				t.Errorf("public area %s, want %s", got, valid.Public)
			}
			if got := hex.EncodeToString(tpm2.Marshal(private)); got != valid.Private {
				t.Errorf("private area %s, want %s", got, valid.Private)
			}
			if got := tpmkey.EncodeTPM(tpm2.TPMHandle(d.Parent), public, private); string(got) != valid.Record {
				t.Errorf("encoded again:\n%s\nwant:\n%s", got, valid.Record)
			}
		})
	}
	for _, invalid := range v.Invalid {
		t.Run(invalid.Name, func(t *testing.T) {
			if d, err := tpmkey.Describe([]byte(invalid.Record)); err == nil {
				t.Errorf("read as %+v", d)
			}
		})
	}
}

func block(t testing.TB, kind string, der []byte, err error) []byte {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func TestSEC1IsRead(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	record := block(t, "EC PRIVATE KEY", der, err)
	d, err := tpmkey.Describe(append([]byte("\n  "), append(record, " \n"...)...)) // white space around it is no damage
	if err != nil || d.Kind != tpmkey.KindFile || !key.PublicKey.Equal(d.Public) {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestDamagedRecordsAreRefused(t *testing.T) {
	pkcs8 := func(key any) []byte {
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return block(t, "PRIVATE KEY", der, err)
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := pkcs8(p256)
	der, _ := pem.Decode(good)
	sec1, err := x509.MarshalECPrivateKey(p384)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		record []byte
		want   string
	}{
		"empty":             {nil, "it is empty"},
		"blank":             {[]byte(" \n"), "it is empty"},
		"not PEM":           {[]byte("key"), "does not start with a PEM block"},
		"binary":            {der.Bytes, "does not start with a PEM block"},
		"text before":       {append([]byte("x\n"), good...), "does not start with a PEM block"},
		"text after":        {append(bytes.Clone(good), 'x'), "something follows"},
		"two keys":          {append(bytes.Clone(good), good...), "something follows"},
		"bad, then good":    {append([]byte("-----BEGIN PRIVATE KEY-----\n!\n-----END PRIVATE KEY-----\n"), good...), "more than one"},
		"cut short":         {good[:len(good)-30], "damaged or cut short"},
		"headers":           {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Headers: map[string]string{"a": "b"}, Bytes: der.Bytes}), "headers"},
		"huge":              {append(bytes.Clone(good), bytes.Repeat([]byte(" "), 8<<10)...), "more than 8192"},
		"encrypted":         {block(t, "ENCRYPTED PRIVATE KEY", der.Bytes, nil), `a "ENCRYPTED PRIVATE KEY"`},
		"certificate":       {block(t, "CERTIFICATE", der.Bytes, nil), `a "CERTIFICATE"`},
		"DER trailing":      {block(t, "PRIVATE KEY", append(bytes.Clone(der.Bytes), 0), nil), "not one DER value"},
		"DER cut":           {block(t, "PRIVATE KEY", der.Bytes[:len(der.Bytes)-1], nil), "not one DER value"},
		"empty block":       {block(t, "PRIVATE KEY", nil, nil), "not one DER value"},
		"P-384":             {pkcs8(p384), "P-384"},
		"P-384 in SEC1":     {block(t, "EC PRIVATE KEY", sec1, nil), "P-384"},
		"Ed25519":           {pkcs8(ed), "not an ECDSA P-256 key"},
		"PKCS#8 under SEC1": {block(t, "EC PRIVATE KEY", der.Bytes, nil), "cannot read the key"},
		"file as TPM key":   {block(t, "TSS2 PRIVATE KEY", der.Bytes, nil), "cannot read the TPM key's record"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tpmkey.Describe(test.record)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestAFileKeyIsNeverPrinted(t *testing.T) {
	record, key := newKey(t, newStore(t, tpmkey.Options{Mode: tpmkey.Off}))
	encoded, _ := pem.Decode(record)
	parsed, err := x509.ParsePKCS8PrivateKey(encoded.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	scalar, err := parsed.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		t.Fatal(err)
	}
	secret := new(big.Int).SetBytes(scalar)
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%d", "%x", "%q"} {
		fmt.Fprintf(&out, verb+" ", key)
		fmt.Fprintf(&out, verb+" ", struct{ Key any }{key})
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("print key", "key", key)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("print key", "key", key)
	for _, form := range []string{secret.String(), secret.Text(16), strings.ToUpper(secret.Text(16))} {
		if strings.Contains(out.String(), form) {
			t.Errorf("the private key is in:\n%s", out.String())
		}
	}
	if got, want := strings.Count(out.String(), "redacted"), 16; got != want {
		t.Errorf("redacted %d times, want %d:\n%s", got, want, out.String())
	}
}

func TestAPublicAreaIsTheTemplateInEveryField(t *testing.T) {
	public, private, err := tpmkey.Blobs([]byte(readVectors(t).Valid[0].Record))
	if err != nil {
		t.Fatal(err)
	}
	area, err := public.Contents()
	if err != nil {
		t.Fatal(err)
	}
	parms, err := area.Parameters.ECCDetail()
	if err != nil {
		t.Fatal(err)
	}
	changed, withKDF := *area, *parms
	withKDF.KDF = tpm2.TPMTKDFScheme{
		Scheme:  tpm2.TPMAlgKDF2,
		Details: tpm2.NewTPMUKDFScheme(tpm2.TPMAlgKDF2, &tpm2.TPMSKDFSchemeKDF2{HashAlg: tpm2.TPMAlgSHA256}),
	}
	changed.Parameters = tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &withKDF)
	_, err = tpmkey.Describe(tpmkey.EncodeTPM(tpm2.TPMRHOwner, tpm2.New2B(changed), private))
	if err == nil || !strings.Contains(err.Error(), "not a node key's") {
		t.Errorf("a key derivation scheme: %v", err)
	}
}

func TestLeadingZerosOfAPointMayBeLeftOut(t *testing.T) {
	public, private, err := tpmkey.Blobs([]byte(readVectors(t).Valid[0].Record))
	if err != nil {
		t.Fatal(err)
	}
	area, err := public.Contents()
	if err != nil {
		t.Fatal(err)
	}
	var key *ecdsa.PrivateKey
	for key == nil || key.X.BitLen() > 248 { // one in 256
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range map[string][]byte{"padded": key.X.FillBytes(make([]byte, 32)), "short": key.X.Bytes()} {
		changed := *area
		changed.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
			X: tpm2.TPM2BECCParameter{Buffer: x}, Y: tpm2.TPM2BECCParameter{Buffer: key.Y.FillBytes(make([]byte, 32))},
		})
		d, err := tpmkey.Describe(tpmkey.EncodeTPM(tpm2.TPMRHOwner, tpm2.New2B(changed), private))
		if err != nil || !key.PublicKey.Equal(d.Public) {
			t.Errorf("%s: %v, %v", name, d, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	v := readVectors(f)
	for _, valid := range v.Valid {
		f.Add([]byte(valid.Record))
	}
	for _, invalid := range v.Invalid {
		f.Add([]byte(invalid.Record))
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	f.Add(block(f, "PRIVATE KEY", der, err))
	der, err = x509.MarshalECPrivateKey(key)
	f.Add(block(f, "EC PRIVATE KEY", der, err))
	f.Fuzz(func(t *testing.T, record []byte) {
		d, err := tpmkey.Describe(record)
		if err != nil {
			return
		}
		pub, ok := d.Public.(*ecdsa.PublicKey)
		if !ok || pub.Curve != elliptic.P256() {
			t.Fatalf("public key %v", d.Public)
		}
		if _, err := pub.ECDH(); err != nil {
			t.Errorf("the point is not on the curve: %v", err)
		}
		if d.Kind != tpmkey.KindTPM {
			return
		}
		// A TPM record has one encoding: what is read is what would be written.
		public, private, err := tpmkey.Blobs(record)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := pem.Decode(tpmkey.EncodeTPM(tpm2.TPMHandle(d.Parent), public, private))
		got, _ := pem.Decode(bytes.TrimSpace(record))
		if !bytes.Equal(got.Bytes, want.Bytes) {
			t.Errorf("read %x, would write %x", got.Bytes, want.Bytes)
		}
	})
}

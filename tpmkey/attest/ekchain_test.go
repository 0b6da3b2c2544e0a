package attest_test

import (
	"bytes"
	"crypto"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/tpmkey/attest"
)

// noon is when the tests happen.
var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

var ekUsage = asn1.ObjectIdentifier{2, 23, 133, 8, 1}

// authority is a maker's.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t testing.TB, name string, parent *authority) *authority {
	t.Helper()
	a := &authority{key: newKey(t, elliptic.P256())}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: noon.AddDate(-1, 0, 0), NotAfter: noon.AddDate(1, 0, 0), KeyUsage: x509.KeyUsageCertSign,
		SubjectKeyId: []byte(name),
	}
	if parent == nil {
		parent = &authority{template, a.key}
	}
	a.cert = create(t, template, parent, a.key.Public())
	return a
}

func create(t testing.TB, template *x509.Certificate, parent *authority, key crypto.PublicKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(nil, template, parent.cert, key, parent.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// san is the alternative name of an EK's certificate: a directoryName with the TPM's maker, model and version.
func san(names ...asn1.RawValue) pkix.Extension {
	if names == nil {
		rdn, err := asn1.Marshal(pkix.Name{Organization: []string{"id:49465800"}}.ToRDNSequence())
		if err != nil {
			panic(err)
		}
		names = []asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: rdn}}
	}
	value, err := asn1.Marshal(names)
	if err != nil {
		panic(err)
	}
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 5, 29, 17}, Critical: true, Value: value}
}

// ekTemplate is a certificate as makers write them: no subject, a critical alternative name, one extended key usage.
func ekTemplate() *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(7), NotBefore: noon.AddDate(0, -1, 0), NotAfter: noon.AddDate(0, 1, 0),
		KeyUsage: x509.KeyUsageKeyAgreement, BasicConstraintsValid: true,
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{ekUsage}, ExtraExtensions: []pkix.Extension{san()},
	}
}

func TestAChainOfAMaker(t *testing.T) {
	root := newAuthority(t, "root", nil)
	upper := newAuthority(t, "upper", root)
	lower := newAuthority(t, "lower", upper)
	stranger := newAuthority(t, "root", nil)
	key := newKey(t, elliptic.P256())
	ek := attest.EK{SPKI: spkiOf(t, key.Public()), Template: "L-2"}
	leafOf := func(change func(*x509.Certificate)) []byte {
		template := ekTemplate()
		change(template)
		return create(t, template, lower, key.Public()).Raw
	}
	good := leafOf(func(*x509.Certificate) {})
	anotherKey := newKey(t, elliptic.P256())
	another := create(t, ekTemplate(), lower, anotherKey.Public()).Raw
	roots := []*x509.Certificate{stranger.cert, root.cert}
	for name, test := range map[string]struct {
		chain [][]byte
		roots []*x509.Certificate
		want  string // of the error; "" for none
	}{
		"leaf first":               {[][]byte{good, lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"another order":            {[][]byte{upper.cert.Raw, lower.cert.Raw, good}, roots, ""},
		"with the root":            {[][]byte{good, lower.cert.Raw, upper.cert.Raw, root.cert.Raw}, roots, ""},
		"twice":                    {[][]byte{good, good, lower.cert.Raw, lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"bytes after each":         {[][]byte{append(bytes.Clone(good), 0xff, 0xff), append(bytes.Clone(lower.cert.Raw), 0), upper.cert.Raw}, roots, ""},
		"rubbish between":          {[][]byte{good, lower.cert.Raw, []byte("rubbish"), nil, upper.cert.Raw, {0x30, 0}}, roots, ""},
		"another EK's certificate": {[][]byte{another, good, lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"an issuer as a root":      {[][]byte{good}, []*x509.Certificate{lower.cert}, ""},
		"no critical name":         {[][]byte{leafOf(func(c *x509.Certificate) { c.ExtraExtensions[0].Critical = false }), lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"no name":                  {[][]byte{leafOf(func(c *x509.Certificate) { c.ExtraExtensions = nil }), lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"other usages beside":      {[][]byte{leafOf(func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"its last second":          {[][]byte{leafOf(func(c *x509.Certificate) { c.NotAfter = noon }), lower.cert.Raw, upper.cert.Raw}, roots, ""},
		"nothing":                  {nil, roots, "has no certificate"},
		"no roots":                 {[][]byte{good, lower.cert.Raw, upper.cert.Raw}, nil, "unknown authority"},
		"a namesake as the root":   {[][]byte{good, lower.cert.Raw, upper.cert.Raw}, roots[:1], "cannot verify"},
		"its own root":             {[][]byte{good, lower.cert.Raw, upper.cert.Raw, root.cert.Raw}, roots[:1], "cannot verify"},
		"no issuer":                {[][]byte{good, upper.cert.Raw}, roots, "unknown authority"},
		"only another EK's":        {[][]byte{another, lower.cert.Raw, upper.cert.Raw}, roots, "no certificate is of the endorsement key"},
		"expired":                  {[][]byte{leafOf(func(c *x509.Certificate) { c.NotAfter = noon.Add(-time.Second) }), lower.cert.Raw, upper.cert.Raw}, roots, "expired"},
		"not yet valid":            {[][]byte{leafOf(func(c *x509.Certificate) { c.NotBefore = noon.Add(time.Second) }), lower.cert.Raw, upper.cert.Raw}, roots, "not yet valid"},
		"no usage":                 {[][]byte{leafOf(func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }), lower.cert.Raw, upper.cert.Raw}, roots, "2.23.133.8.1"},
		"any usage": {[][]byte{leafOf(func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
		}), lower.cert.Raw, upper.cert.Raw}, roots, "2.23.133.8.1"},
		"an AK's usage": {[][]byte{leafOf(func(c *x509.Certificate) { c.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{2, 23, 133, 8, 3}} }), lower.cert.Raw, upper.cert.Raw}, roots, "2.23.133.8.1"},
		"an authority":  {[][]byte{leafOf(func(c *x509.Certificate) { c.IsCA = true }), lower.cert.Raw, upper.cert.Raw}, roots, "authority"},
		"another critical thing": {[][]byte{leafOf(func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}})
		}), lower.cert.Raw, upper.cert.Raw}, roots, "unhandled critical"},
		"a critical other name": {[][]byte{leafOf(func(c *x509.Certificate) {
			c.ExtraExtensions[0] = san(asn1.RawValue{Class: 2, Tag: 8, Bytes: []byte{0x2a}})
		}), lower.cert.Raw, upper.cert.Raw}, roots, "form 8"},
		"an empty name": {[][]byte{leafOf(func(c *x509.Certificate) {
			c.ExtraExtensions[0] = pkix.Extension{Id: san().Id, Critical: true, Value: []byte{0x30, 0}}
		}), lower.cert.Raw, upper.cert.Raw}, roots, "alternative name"},
		"a leaf that signs a leaf":  {[][]byte{create(t, ekTemplate(), &authority{mustParse(t, another), anotherKey}, key.Public()).Raw, another, lower.cert.Raw, upper.cert.Raw}, roots, "cannot verify"},
		"too many":                  {slices.Repeat([][]byte{good}, attest.MaxCertificates+1), roots, "13 certificates"},
		"too large":                 {[][]byte{good, make([]byte, attest.MaxCertificate+1)}, roots, "8193 bytes"},
		"as many as there may be":   {append(slices.Repeat([][]byte{another}, attest.MaxCertificates-3), good, lower.cert.Raw, upper.cert.Raw), roots, ""},
		"self-signed, without root": {[][]byte{create(t, ekTemplate(), &authority{ekTemplate(), key}, key.Public()).Raw}, roots, "cannot verify"},
	} {
		t.Run(name, func(t *testing.T) {
			err := attest.VerifyEKChain(ek, test.chain, test.roots, noon)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v: does not say %q", err, test.want)
			}
		})
	}
}

// Whoever asks chooses the intermediates: one whose key is costly to verify with is not used, not even where it would verify.
func TestAnIntermediateOfACostlyKey(t *testing.T) {
	root := newAuthority(t, "root", nil)
	key := newKey(t, elliptic.P256())
	ek := attest.EK{SPKI: spkiOf(t, key.Public()), Template: "L-2"}
	for name, test := range map[string]struct {
		bits, exponent int
		cheap          bool
	}{
		"as makers have": {2048, 65537, true},
		"large":          {4104, 65537, false},
		"huge exponent":  {2048, 1<<31 - 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			issuer := rsaKey(t, test.bits, test.exponent)
			template := *root.cert
			template.Subject, template.SubjectKeyId = pkix.Name{CommonName: "issuer"}, []byte("issuer")
			middle := &authority{create(t, &template, root, issuer.Public()), issuer}
			chain := [][]byte{create(t, ekTemplate(), middle, key.Public()).Raw, middle.cert.Raw}
			err := attest.VerifyEKChain(ek, chain, []*x509.Certificate{root.cert}, noon)
			if (err == nil) != test.cheap {
				t.Error(err)
			}
		})
	}
}

// rsaKey makes a key with the exponent.
func rsaKey(t testing.TB, bits, exponent int) *rsa.PrivateKey {
	t.Helper()
	one, e := big.NewInt(1), big.NewInt(int64(exponent))
	for {
		p, q := must(rand.Prime(rand.Reader, bits/2)), must(rand.Prime(rand.Reader, bits/2))
		phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
		d := new(big.Int).ModInverse(e, phi)
		n := new(big.Int).Mul(p, q)
		if d == nil || n.BitLen() != bits {
			continue
		}
		k := &rsa.PrivateKey{PublicKey: rsa.PublicKey{N: n, E: exponent}, D: d, Primes: []*big.Int{p, q}}
		k.Precompute()
		return k
	}
}

func mustParse(t testing.TB, der []byte) *x509.Certificate {
	t.Helper()
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// A certificate whose key is declared for RSAES-OAEP has no key for crypto/x509.
func TestACertificateOfAnOAEPKey(t *testing.T) {
	root := newAuthority(t, "root", nil)
	key := kinds[0].key(t).Public().(*rsa.PublicKey)
	der := create(t, ekTemplate(), root, key).Raw
	oid := []byte{0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01}
	if bytes.Count(der, oid) != 1 {
		t.Fatal("the certificate has another form than this test takes it to have")
	}
	oaep := bytes.Replace(der, oid, append(oid[:10:10], 7), 1)
	if mustParse(t, oaep).PublicKey != nil {
		t.Fatal("crypto/x509 knows the key")
	}
	spki, err := attest.CertificateSPKI(oaep)
	if err != nil || !bytes.Equal(spki, spkiOf(t, key)) {
		t.Errorf("%x, %v", spki, err)
	}
	// The change broke the signature, so it is the signature that the chain fails on, not the key.
	err = attest.VerifyEKChain(attest.EK{SPKI: spki, Template: "L-1"}, [][]byte{oaep}, []*x509.Certificate{root.cert}, noon)
	if err == nil || !strings.Contains(err.Error(), "cannot verify") {
		t.Error(err)
	}
}

func TestCertificatesOfAnNVIndex(t *testing.T) {
	root := newAuthority(t, "root", nil)
	a, b := root.cert.Raw, newAuthority(t, "b", root).cert.Raw
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	zeros, ones := make([]byte, 100), bytes.Repeat([]byte{0xff}, 100)
	for name, test := range map[string]struct {
		data []byte
		want [][]byte
	}{
		"nothing":              {nil, nil},
		"unwritten":            {ones, nil},
		"zeros":                {zeros, nil},
		"one":                  {a, [][]byte{a}},
		"one and zeros":        {join(a, zeros), [][]byte{a}},
		"one and ones":         {join(a, ones), [][]byte{a}},
		"one and rubbish":      {join(a, []byte("rubbish")), [][]byte{a}},
		"two":                  {join(a, b), [][]byte{a, b}},
		"two, padded":          {join(a, zeros, b, ones), [][]byte{a, b}},
		"rubbish first":        {join([]byte("rubbish"), a), nil},
		"cut short":            {a[:len(a)-1], nil},
		"one and one too long": {join(a, []byte{0x30, 0x84, 0xff, 0xff, 0xff, 0xff}), [][]byte{a}},
		"very many":            {bytes.Repeat(a, 40), slices.Repeat([][]byte{a}, attest.MaxCertificates)},
	} {
		t.Run(name, func(t *testing.T) {
			got := attest.Certificates(test.data)
			if !slices.EqualFunc(got, test.want, bytes.Equal) {
				t.Errorf("%d certificates, want %d: %x", len(got), len(test.want), got)
			}
		})
	}
}

func FuzzCertificates(f *testing.F) {
	root := newAuthority(f, "root", nil)
	leaf := create(f, ekTemplate(), root, newKey(f, elliptic.P256()).Public())
	f.Add(leaf.Raw)
	f.Add(append(root.cert.Raw, leaf.Raw...))
	f.Add([]byte{0x30, 0x80, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, der := range attest.Certificates(data) {
			if len(der) == 0 || !bytes.Contains(data, der) {
				t.Fatalf("%x is no part of it", der)
			}
			spki, err := attest.CertificateSPKI(der)
			if err != nil {
				continue
			}
			if again, err := attest.MarshalSPKI(must(x509.ParsePKIXPublicKey(spki))); err != nil || !bytes.Equal(again, spki) {
				t.Fatalf("the key %x is not in its one encoding", spki)
			}
			for _, k := range kinds {
				ek := attest.EK{SPKI: spki, Template: k.name}
				if ek.Check() == nil && attest.VerifyEKChain(ek, [][]byte{data}, nil, noon) == nil {
					t.Fatal("it verifies without a root")
				}
			}
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(fmt.Sprint(err))
	}
	return v
}

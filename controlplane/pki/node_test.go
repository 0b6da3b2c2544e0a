package pki_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/pki"
)

const (
	site = "site_01k5wabcdefghjkmnpqrstvwxy"
	node = "node_01k5wabcdefghjkmnpqrstvwxz"
	ak   = "urn:bc:tpm-ak:sha256:5df6e0e2761359d30a8275058e299fcc0381534545f55cf43e41983f5d4c9456"
)

func pointOf(t *testing.T, k pki.JWK) *ecdh.PublicKey {
	t.Helper()
	x, err := base64.RawURLEncoding.DecodeString(k.X)
	if err != nil {
		t.Fatal(err)
	}
	y, err := base64.RawURLEncoding.DecodeString(k.Y)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ecdh.P256().NewPublicKey(slices.Concat([]byte{4}, x, y))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func nodeKey(t *testing.T) *ecdsa.PublicKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return &k.PublicKey
}

func request(t *testing.T) pki.NodeRequest {
	return pki.NodeRequest{Site: site, Node: node, Role: pki.RoleNode, Key: nodeKey(t), Now: now, Lifetime: pki.MaxNodeLifetime}
}

func issue(t *testing.T, b *pki.Bundle, r pki.NodeRequest) *x509.Certificate {
	t.Helper()
	leaf, err := b.IssueNode(r)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// Req: NC-006 NC-007 NC-008 NC-009 NC-014 NC-016 JF-087
func TestNodeCertificateProfile(t *testing.T) {
	b := newBundle(t)
	for _, role := range []string{pki.RoleNode, pki.RoleSite, pki.RoleRamdisk, pki.RoleNodeTenant} {
		for _, statements := range [][]string{nil, {ak}} {
			r := request(t)
			r.Role, r.Statements = role, statements
			leaf := issue(t, b, r)

			want := append([]string{"spiffe://compute.example.com/site/" + site + "/node/" + node}, statements...)
			var got []string
			for _, u := range leaf.URIs {
				got = append(got, u.String())
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: names %q, want %q", role, got, want)
			}
			if len(leaf.DNSNames)+len(leaf.IPAddresses)+len(leaf.EmailAddresses) > 0 {
				t.Errorf("%s: the leaf has other names", role)
			}
			if got := leaf.Subject.String(); got != "OU=bc-role:"+role {
				t.Errorf("subject %q", got)
			}
			if !slices.Equal(leaf.ExtKeyUsage, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}) || leaf.KeyUsage != x509.KeyUsageDigitalSignature {
				t.Errorf("%s: usages %v %v", role, leaf.KeyUsage, leaf.ExtKeyUsage)
			}
			if leaf.IsCA || len(leaf.UnhandledCriticalExtensions) > 0 {
				t.Errorf("%s: CA %v, unhandled %v", role, leaf.IsCA, leaf.UnhandledCriticalExtensions)
			}
			roots := x509.NewCertPool()
			roots.AddCert(b.Public().NodeCA())
			opts := x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
			if _, err := leaf.Verify(opts); err != nil {
				t.Errorf("%s: %v", role, err)
			}
			opts.KeyUsages = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
			if _, err := leaf.Verify(opts); err == nil {
				t.Errorf("%s: the leaf may serve", role)
			}
		}
	}
}

// Req: NC-001
func TestNodeKeyIsP256(t *testing.T) {
	b := newBundle(t)
	leaf := issue(t, b, request(t))
	if k, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		t.Errorf("leaf key is %T", leaf.PublicKey)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]any{"P-384": &p384.PublicKey, "RSA": &rsaKey.PublicKey, "none": nil} {
		r := request(t)
		r.Key = key
		if _, err := b.IssueNode(r); err == nil {
			t.Errorf("%s key was certified", name)
		}
	}
}

// Req: NC-002 NC-004 NC-005 NC-022
func TestNodeLifetimes(t *testing.T) {
	b := newBundle(t)
	for _, c := range []struct {
		role           string
		ask, want      time.Duration
		wantBackdating time.Duration
	}{
		{pki.RoleNode, 24 * time.Hour, 24 * time.Hour, 5 * time.Minute},
		{pki.RoleNode, 25 * time.Hour, 24 * time.Hour, 5 * time.Minute},
		{pki.RoleNode, 600 * time.Second, 600 * time.Second, time.Minute},
		{pki.RoleNodeTenant, 48 * time.Hour, 24 * time.Hour, 5 * time.Minute},
		{pki.RoleSite, 48 * time.Hour, 24 * time.Hour, 5 * time.Minute},
		{pki.RoleRamdisk, 24 * time.Hour, 2 * time.Hour, 5 * time.Minute},
		{pki.RoleRamdisk, 900 * time.Second, 900 * time.Second, 90 * time.Second},
		{pki.RoleNode, 20 * time.Second, 20 * time.Second, 2 * time.Second},
	} {
		r := request(t)
		r.Role, r.Lifetime = c.role, c.ask
		leaf := issue(t, b, r)
		if got := leaf.NotAfter.Sub(leaf.NotBefore); got != c.want {
			t.Errorf("%s for %v: lives %v, want %v", c.role, c.ask, got, c.want)
		}
		if got := now.Sub(leaf.NotBefore); got != c.wantBackdating {
			t.Errorf("%s for %v: backdated by %v, want %v", c.role, c.ask, got, c.wantBackdating)
		}
	}
	r := request(t)
	r.Lifetime = 0
	if _, err := b.IssueNode(r); err == nil {
		t.Error("a certificate without a life was issued")
	}
}

func TestNodeRequestsThatAreRefused(t *testing.T) {
	b := newBundle(t)
	for name, change := range map[string]func(*pki.NodeRequest){
		"role":              func(r *pki.NodeRequest) { r.Role = "admin" },
		"no role":           func(r *pki.NodeRequest) { r.Role = "" },
		"site with a slash": func(r *pki.NodeRequest) { r.Site = "a/node/b" },
		"no site":           func(r *pki.NodeRequest) { r.Site = "" },
		"node escapes":      func(r *pki.NodeRequest) { r.Node = "a%2fb" },
		"dots":              func(r *pki.NodeRequest) { r.Node = ".." },
		"second identity":   func(r *pki.NodeRequest) { r.Statements = []string{"spiffe://x/y"} },
		"foreign statement": func(r *pki.NodeRequest) { r.Statements = []string{"urn:other:x"} },
		"broken statement":  func(r *pki.NodeRequest) { r.Statements = []string{"urn:bc:\x00"} },
	} {
		r := request(t)
		change(&r)
		if _, err := b.IssueNode(r); err == nil {
			t.Errorf("%s: issued", name)
		}
	}
}

func TestSerialsAre128RandomBits(t *testing.T) {
	b := newBundle(t)
	seen := map[string]bool{}
	longest := 0
	for range 64 {
		leaf := issue(t, b, request(t))
		s := leaf.SerialNumber.String()
		if seen[s] || leaf.SerialNumber.Sign() <= 0 || leaf.SerialNumber.BitLen() > 128 {
			t.Fatalf("serial %s", s)
		}
		seen[s] = true
		longest = max(longest, leaf.SerialNumber.BitLen())
	}
	if longest < 120 {
		t.Errorf("the longest of 64 serials has %d bits", longest)
	}
}

// Req: NC-015
func TestNodeCertificateHasNoPrivateOID(t *testing.T) {
	b := newBundle(t)
	r := request(t)
	r.Statements = []string{ak}
	leaf := issue(t, b, r)

	certificateExtensions := asn1.ObjectIdentifier{2, 5, 29} // joint-iso-itu-t, ds, certificateExtension
	for _, e := range leaf.Extensions {
		if len(e.Id) < 3 || !e.Id[:3].Equal(certificateExtensions) {
			t.Errorf("extension %v is not standard", e.Id)
		}
	}
	// 1.3.6.1.4.1, the private arc, as DER writes its start.
	if bytes.Contains(leaf.Raw, []byte{0x2b, 6, 1, 4, 1}) {
		t.Error("the certificate holds an OID of the private arc")
	}
}

// Req: NC-006 NC-009 NC-014
func TestOpenSSLReadsTheNodeCertificate(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	// The dates are judged by openssl's own clock.
	b, err := pki.New(domain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := request(t)
	r.Statements, r.Now = []string{ak}, time.Now()
	leaf := issue(t, b, r)

	dir := t.TempDir()
	file := func(name string, c *x509.Certificate) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	leafFile, caFile := file("leaf.pem", leaf), file("ca.pem", b.Public().NodeCA())
	run := func(args ...string) string {
		out, err := exec.Command(openssl, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("openssl %v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	run("verify", "-x509_strict", "-purpose", "sslclient", "-CAfile", caFile, leafFile)
	if out, err := exec.Command(openssl, "verify", "-purpose", "sslserver", "-CAfile", caFile, leafFile).CombinedOutput(); err == nil {
		t.Errorf("openssl takes the leaf for a server: %s", out)
	}
	text := run("x509", "-in", leafFile, "-noout", "-text")
	for _, want := range []string{
		`Subject: OU ?= ?bc-role:node\n`,
		`URI:spiffe://compute\.example\.com/site/` + site + `/node/` + node + `, URI:` + ak + `\n`,
		`ASN1 OID: prime256v1`,
		`TLS Web Client Authentication\n`,
		`CA:FALSE`,
		`Digital Signature\n`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("openssl does not show %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "Name Constraints") || !strings.Contains(run("x509", "-in", caFile, "-noout", "-text"), "CA:TRUE, pathlen:0") {
		t.Error("the node CA is not of path length 0")
	}
}

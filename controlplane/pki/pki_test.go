package pki_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/age"

	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

const (
	domain = "compute.example.com"
	secret = "correct horse battery staple"
)

var now = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

func newBundle(t *testing.T) *pki.Bundle {
	t.Helper()
	b, err := pki.New(domain, now)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func initDir(t *testing.T) (string, *pki.Bundle) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	b, err := pki.Init(dir, domain, secret, now)
	if err != nil {
		t.Fatal(err)
	}
	return dir, b
}

// Req: CF-002
func TestInitWritesAuthoritiesAndJoinKeys(t *testing.T) {
	dir, made := initDir(t)

	for name, want := range map[string]os.FileMode{pki.PrivateFile: 0o600, pki.PublicFile: 0o644} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, info.Mode().Perm(), want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("directory holds %v (%v), want the two files alone", entries, err)
	}

	loaded, err := pki.Load(dir, secret)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Public().Pins() != made.Public().Pins() || loaded.Public().TrustDomain() != domain {
		t.Error("the loaded bundle is not the one that was made")
	}
	if !loaded.JoinEncryption().Equal(made.JoinEncryption()) {
		t.Error("the join-encryption key changed")
	}
	a, _ := made.DeriveKey("x", 32)
	b, _ := loaded.DeriveKey("x", 32)
	if len(a) != 32 || !bytes.Equal(a, b) {
		t.Error("the bundle's secret changed")
	}
	if c, _ := loaded.DeriveKey("y", 32); bytes.Equal(a, c) {
		t.Error("two uses derive the same key")
	}
	for _, ca := range []*x509.Certificate{
		loaded.Public().NodeCA(), loaded.Public().ServingCA(), loaded.Public().InternalCA(), loaded.Public().CommandCA(),
	} {
		if !ca.IsCA || ca.MaxPathLen != 0 || !ca.MaxPathLenZero {
			t.Errorf("%s is not a CA of path length 0", ca.Subject)
		}
		if len(ca.PermittedURIDomains)+len(ca.PermittedDNSDomains) > 0 {
			t.Errorf("%s has name constraints", ca.Subject)
		}
	}
}

// Req: SE-012
func TestJoinKeysAreTwo(t *testing.T) {
	b := newBundle(t)
	pins := b.Public().Pins()
	if pins.JoinSigning == pins.JoinEncryption || pins.JoinSigning == pins.ServingCA {
		t.Errorf("pins are not of distinct keys: %+v", pins)
	}
	signer, err := pin.Of(b.JoinSigner().Public())
	if err != nil || signer != pins.JoinSigning {
		t.Errorf("the signing pin is not of the key that signs: %v", err)
	}
	opener, err := pin.Of(b.JoinEncryption().Public())
	if err != nil || opener != pins.JoinEncryption {
		t.Errorf("the encryption pin is not of the key that opens: %v", err)
	}
}

func TestPublicFileNeedsNoSecretAndChecksItsPins(t *testing.T) {
	dir, b := initDir(t)
	p, err := pki.LoadPublic(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p.Pins() != b.Public().Pins() || p.EncryptionJWK() != b.Public().EncryptionJWK() {
		t.Error("the public file is not of the bundle")
	}

	path := filepath.Join(dir, pki.PublicFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, private := range []string{"keys", "secret", "PRIVATE"} {
		if strings.Contains(string(text), private) {
			t.Errorf("the public file has %q", private)
		}
	}
	other := newBundle(t).Public().Pins().JoinSigning.String()
	forged := strings.Replace(string(text), p.Pins().JoinSigning.String(), other, 1)
	if err := os.WriteFile(path, []byte(forged), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.LoadPublic(dir); !fault.Is(err, fault.Config) {
		t.Errorf("a pin of another key: error %v, want %s", err, fault.Config)
	}
}

// Two files that were mixed up would tell machines pins that nobody answers to.
func TestLoadRefusesAnotherPublicFile(t *testing.T) {
	dir, made := initDir(t)
	path := filepath.Join(dir, pki.PublicFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	otherDir, _ := initDir(t)
	other, err := os.ReadFile(filepath.Join(otherDir, pki.PublicFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"another PKI's":        other,
		"another trust domain": bytes.Replace(good, []byte(domain), []byte("other.example.com"), 1),
		"cut":                  good[:len(good)/2],
	} {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Load(dir, secret); !fault.Is(err, fault.Config) {
			t.Errorf("%s: error %v, want %s", name, err, fault.Config)
		}
	}
	// As the hint says: moved away, it is written again.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Init(dir, domain, secret, now); err != nil {
		t.Fatal(err)
	}
	if b, err := pki.Load(dir, secret); err != nil || b.Public().Pins() != made.Public().Pins() {
		t.Errorf("after it was written again: %v", err)
	}
}

func TestInitNeverWritesOver(t *testing.T) {
	for _, name := range []string{pki.PrivateFile, pki.PublicFile} {
		dir := t.TempDir()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Init(dir, domain, secret, now); !fault.Is(err, fault.AlreadyExists) {
			t.Errorf("%s present: error %v, want %s", name, err, fault.AlreadyExists)
		}
		if data, err := os.ReadFile(path); err != nil || string(data) != "mine" {
			t.Errorf("%s changed to %q (%v)", name, data, err)
		}
		if entries, _ := os.ReadDir(dir); len(entries) != 1 {
			t.Errorf("%s present: files were left behind: %v", name, entries)
		}
	}
	dir, _ := initDir(t)
	if _, err := pki.Init(dir, domain, secret, now); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("second init: error %v, want %s", err, fault.AlreadyExists)
	}
}

func TestInitCompletesACrashedOne(t *testing.T) {
	dir, made := initDir(t)
	if err := os.Remove(filepath.Join(dir, pki.PublicFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := pki.Init(dir, "other.example.com", secret, now); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("another domain: error %v, want %s", err, fault.AlreadyExists)
	}
	again, err := pki.Init(dir, domain, secret, now)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pki.LoadPublic(dir)
	if err != nil || p.Pins() != made.Public().Pins() || again.Public().Pins() != made.Public().Pins() {
		t.Errorf("the completed init has other keys (%v)", err)
	}
}

func TestLoadTellsFaultsApart(t *testing.T) {
	dir, _ := initDir(t)
	path := filepath.Join(dir, pki.PrivateFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-1] ^= 1

	for name, c := range map[string]struct {
		content []byte
		secret  string
		code    fault.Code
		text    string
	}{
		"wrong secret":     {good, "another", fault.Config, "the secret is wrong"},
		"no secret":        {good, "", fault.Config, "no secret"},
		"truncated":        {good[:len(good)/2], secret, fault.Config, "damaged"},
		"truncated header": {good[:20], secret, fault.Config, "damaged"},
		"empty":            {nil, secret, fault.Config, "damaged"},
		"flipped bit":      {flipped, secret, fault.Config, "damaged"},
		"newer":            {encrypt(t, `{"version":2}`), secret, fault.Newer, "version 2 is newer"},
		"no version":       {encrypt(t, `{}`), secret, fault.Config, "no version"},
		"parts missing":    {encrypt(t, `{"version":1}`), secret, fault.Config, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(path, c.content, 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := pki.Load(dir, c.secret)
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v (%s), want %s with %q", err, fault.CodeOf(err), c.code, c.text)
			}
		})
	}

	if _, err := pki.Load(t.TempDir(), secret); !errors.Is(err, os.ErrNotExist) || fault.HintOf(err) == "" {
		t.Errorf("missing file: %v, hint %q", err, fault.HintOf(err))
	}
}

func TestWorkFactorHoldsUpAndIsReadable(t *testing.T) {
	if pki.DefaultWorkFactor < 15 || pki.DefaultWorkFactor > 17 {
		t.Errorf("work factor %d: too cheap to guess at, or too slow for a command line", pki.DefaultWorkFactor)
	}
	// What age's own command line writes is read too.
	dir, b := initDir(t)
	path := filepath.Join(dir, pki.PrivateFile)
	sealed, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.NewScryptRecipient(secret)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(12)
	if err := os.WriteFile(path, encryptTo(t, r, string(decrypt(t, sealed))), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := pki.Load(dir, secret)
	if err != nil || again.Public().Pins() != b.Public().Pins() {
		t.Errorf("encrypted again with another work factor: %v", err)
	}
}

// A bundle whose parts are of two bundles would sign with a key that nobody pins.
func TestLoadRefusesMixedParts(t *testing.T) {
	plain := func() map[string]any {
		dir, _ := initDir(t)
		sealed, err := os.ReadFile(filepath.Join(dir, pki.PrivateFile))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]any
		if err := json.Unmarshal(decrypt(t, sealed), &m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	ours, theirs := plain(), plain()
	for _, key := range []string{"nodeCa", "servingCa", "internalCa", "commandCa", "joinSigning", "commandSigning", "joinEncryption"} {
		keys := ours["keys"].(map[string]any)
		saved := keys[key]
		keys[key] = theirs["keys"].(map[string]any)[key]
		text, err := json.Marshal(ours)
		if err != nil {
			t.Fatal(err)
		}
		keys[key] = saved
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, pki.PrivateFile), encrypt(t, string(text)), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := pki.Load(dir, secret); !fault.Is(err, fault.Config) {
			t.Errorf("%s of another bundle: error %v, want %s", key, err, fault.Config)
		}
	}
}

func TestTrustDomains(t *testing.T) {
	for s, ok := range map[string]bool{
		"compute.example.com": true, "dev": true, "a_b-1": true,
		"": false, "Example.com": false, "a/b": false, "a b": false, "spiffe://x": false, strings.Repeat("a", 256): false,
	} {
		if err := pki.CheckTrustDomain(s); (err == nil) != ok {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// Req: CF-004
func TestGatewayFilesServeUnderThePinnedCA(t *testing.T) {
	dir, b := initDir(t)
	names := []string{"gw.eu.example.com", "127.0.0.1", "::1"}
	issued, err := b.IssueGatewayFiles(dir, names, now)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, pki.GatewayKeyFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v (%v), want 0600", info.Mode(), err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, pki.GatewayCertFile), filepath.Join(dir, pki.GatewayKeyFile))
	if err != nil {
		t.Fatal(err)
	}
	// The CA travels in the chain: a daemon knows only the hash of its key.
	if len(pair.Certificate) != 2 || pin.OfCertificate(issued.Issuer) != b.Public().Pins().ServingCA {
		t.Fatalf("the chain has %d certificates, or another CA", len(pair.Certificate))
	}
	roots := x509.NewCertPool()
	ca, err := x509.ParseCertificate(pair.Certificate[1])
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(ca)
	for _, name := range names {
		opts := x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
		if _, err := pair.Leaf.Verify(opts); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "other.example.com", CurrentTime: now}); err == nil {
		t.Error("the certificate is good for another name")
	}
	if _, err := b.IssueGatewayFiles(dir, names, now); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("second time: error %v, want %s", err, fault.AlreadyExists)
	}
}

func TestGatewayNames(t *testing.T) {
	b := newBundle(t)
	for name, ok := range map[string]bool{
		"gw.example.com": true, "*.gw.example.com": true, "10.0.0.1": true, "localhost": true, strings.Repeat("a", 60) + ".example.com": true,
		"": false, "https://gw.example.com": false, "gw.example.com:443": false, "a..b": false, "-a.example.com": false, "a.*.b": false,
	} {
		c, err := b.IssueGateway([]string{name}, now)
		if (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
		if err == nil && c.Leaf.VerifyHostname(strings.Replace(name, "*", "x", 1)) != nil {
			t.Errorf("%q: certificate does not hold it", name)
		}
	}
	if _, err := b.IssueGateway(nil, now); !fault.Is(err, fault.Usage) {
		t.Errorf("no name: error %v, want %s", err, fault.Usage)
	}
}

func encrypt(t *testing.T, plain string) []byte {
	t.Helper()
	r, err := age.NewScryptRecipient(secret)
	if err != nil {
		t.Fatal(err)
	}
	r.SetWorkFactor(4)
	return encryptTo(t, r, plain)
}

func encryptTo(t *testing.T, r age.Recipient, plain string) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := age.Encrypt(&out, r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(plain)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func decrypt(t *testing.T, sealed []byte) []byte {
	t.Helper()
	id, err := age.NewScryptIdentity(secret)
	if err != nil {
		t.Fatal(err)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), id)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if _, err := out.ReadFrom(r); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Req: CF-040
func TestEncryptionJWKIsThePinnedKey(t *testing.T) {
	b := newBundle(t)
	jwk := b.Public().EncryptionJWK()
	if jwk.KeyType != "EC" || jwk.Curve != "P-256" || len(jwk.X) != 43 || len(jwk.Y) != 43 {
		t.Errorf("JWK %+v is not a P-256 key", jwk)
	}
	key := pointOf(t, jwk)
	got, err := pin.Of(key)
	if err != nil || got != b.Public().Pins().JoinEncryption {
		t.Errorf("the JWK's pin is %v (%v), want %v", got, err, b.Public().Pins().JoinEncryption)
	}
	mine, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	x, err1 := mine.ECDH(key)
	y, err2 := b.JoinEncryption().ECDH(mine.PublicKey())
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("the private key is not the JWK's (%v, %v)", err1, err2)
	}
}

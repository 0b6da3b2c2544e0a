package identity_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/statefile"
)

// now is the server's time in these tests. It is long past, so that nothing here can lean on the machine's clock.
var now = time.Date(2021, 3, 4, 5, 6, 7, 0, time.UTC)

// fileKeys are real keys in PKCS#8 files.
type fileKeys struct{}

func (fileKeys) New(context.Context) ([]byte, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), key, nil
}

func (fileKeys) Open(record []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(record)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	return key.(crypto.Signer), nil
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newKey(curve elliptic.Curve) *ecdsa.PrivateKey {
	return must(ecdsa.GenerateKey(curve, rand.Reader))
}

// authority is a node CA.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(name string) *authority {
	key := newKey(elliptic.P256())
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: now.AddDate(-1, 0, 0), NotAfter: now.AddDate(9, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	return &authority{key, must(x509.ParseCertificate(der))}
}

var nodeCA, foreignCA = newAuthority("node CA"), newAuthority("node CA") // the same name: only the key tells them apart

// leaf is a node certificate to be.
type leaf struct {
	ca        *authority
	pub       crypto.PublicKey
	uris      []string
	ous       []string
	notBefore time.Time
	life      time.Duration
	usage     []x509.ExtKeyUsage
	keyUsage  x509.KeyUsage
	isCA      bool
}

func (l leaf) issue() []byte {
	template := &x509.Certificate{
		SerialNumber: must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))),
		Subject:      pkix.Name{OrganizationalUnit: l.ous},
		NotBefore:    l.notBefore, NotAfter: l.notBefore.Add(l.life),
		KeyUsage: l.keyUsage, ExtKeyUsage: l.usage,
		BasicConstraintsValid: true, IsCA: l.isCA,
	}
	for _, uri := range l.uris {
		template.URIs = append(template.URIs, &url.URL{Opaque: uri}) // as it is written here, to the letter
	}
	return must(x509.CreateCertificate(rand.Reader, template, l.ca.cert, l.pub, l.ca.key))
}

// answer is what an honest control plane answers to a CSR, and what was asked for. A test bends it.
type answer struct {
	leaf      leaf
	admission identity.Admission
	want      identity.Expectation
}

const (
	nodeID = "node_01k5w0000000000000000000ab"
	site   = "site_01k5w0000000000000000000cd"
	domain = "compute.example.com"
	spiffe = "spiffe://" + domain + "/site/" + site + "/node/" + nodeID
	ak     = "urn:bc:tpm-ak:sha256:1111111111111111111111111111111111111111111111111111111111111111"
)

func honest(csr []byte) *answer {
	request := sha256.Sum256([]byte("the request's body"))
	csrHash := sha256.Sum256(csr)
	return &answer{
		leaf: leaf{
			ca: nodeCA, pub: must(x509.ParseCertificateRequest(csr)).PublicKey, uris: []string{spiffe}, ous: []string{"bc-role:node"},
			notBefore: now.Add(-5 * time.Minute), life: 24 * time.Hour,
			usage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, keyUsage: x509.KeyUsageDigitalSignature,
		},
		admission: identity.Admission{
			NodeID: nodeID, Site: site, TrustDomain: domain, Role: "node", Generation: 1,
			NodeCA: [][]byte{nodeCA.cert.Raw}, CommandTrust: [][]byte{nodeCA.cert.Raw}, AllowedKinds: []string{"node.reboot", "fabric.*"},
			CSRSHA256: csrHash[:], RequestSHA256: request[:], ServerTime: now,
		},
		want: identity.Expectation{CSR: csr, RequestSHA256: request, Role: "node", Site: site},
	}
}

// check issues the leaf, where the chain was not set by hand, and runs the checks.
func (a *answer) check() (*identity.Identity, error) {
	if a.admission.Chain == nil {
		a.admission.Chain = [][]byte{a.leaf.issue()}
	}
	return identity.Check(a.admission, a.want)
}

func newCSR(key crypto.Signer) []byte {
	return must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))
}

// admit returns the identity that an honest control plane's answer makes.
func admit(csr []byte, current *identity.Identity) *identity.Identity {
	a := honest(csr)
	a.want.Current = current
	return must(a.check())
}

// opened is a data directory whose lock is held.
type opened struct {
	*identity.Store
	dir *statefile.Dir
}

func openStore(t *testing.T, path string, opts ...statefile.Option) opened {
	t.Helper()
	dir, err := statefile.Open(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	release, err := dir.Lock()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		release()
		dir.Close()
	})
	return opened{identity.New(dir, fileKeys{}), dir}
}

func stateDir(t *testing.T) string { return filepath.Join(t.TempDir(), "state") }

// joined returns a directory with an identity.
func joined(t *testing.T) (path string, id *identity.Identity) {
	t.Helper()
	path = stateDir(t)
	dir, err := statefile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	j := must(identity.New(dir, fileKeys{}).BeginJoin(t.Context(), tokenJoin))
	defer j.Close()
	id = admit(j.CSR(), nil)
	if err := j.Accept(id); err != nil {
		t.Fatal(err)
	}
	return path, id
}

var tokenJoin = identity.JoinParams{Attestor: "join-token", Role: "node"}

// snapshot returns every file's content by its name.
func snapshot(t *testing.T, path string) map[string]string {
	t.Helper()
	files := map[string]string{}
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return files
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(path, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(b)
	}
	return files
}

// copyDir copies a flat directory, private as a data directory is.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := stateDir(t)
	if err := os.Mkdir(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range snapshot(t, from) {
		if err := os.WriteFile(filepath.Join(to, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

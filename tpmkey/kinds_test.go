package tpmkey_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// forEachKind runs a test on every kind of key that there is. BCD_TEST_TPM names one more TPM, the machine's own for
// instance (/dev/tpmrm0): these tests leave nothing in it.
func forEachKind(t *testing.T, f func(*testing.T, *tpmkey.Store)) {
	if device := os.Getenv("BCD_TEST_TPM"); device != "" {
		t.Run("device", func(t *testing.T) {
			f(t, newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: device}))
		})
	}
	t.Run("file", func(t *testing.T) { f(t, newStore(t, tpmkey.Options{Mode: tpmkey.Off})) })
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) { f(t, storeOn(t, tpm)) })
}

// forEachTPM runs a test on every TPM that there is.
func forEachTPM(t *testing.T, f func(*testing.T, *tpmkeytest.TPM)) {
	t.Run("swtpm", func(t *testing.T) { f(t, tpmkeytest.Swtpm(t)) })
	t.Run("simulator", func(t *testing.T) { f(t, tpmkeytest.Simulator(t)) })
}

func newStore(t testing.TB, o tpmkey.Options) *tpmkey.Store {
	t.Helper()
	s, err := tpmkey.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// storeOn returns a store that must use the TPM.
func storeOn(t testing.TB, tpm *tpmkeytest.TPM) *tpmkey.Store {
	t.Helper()
	return newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device()})
}

func newKey(t testing.TB, s *tpmkey.Store) ([]byte, crypto.Signer) {
	t.Helper()
	record, key, err := s.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return record, key
}

func sign(key crypto.Signer) error {
	digest := sha256.Sum256([]byte("message"))
	_, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
	return err
}

// Req: JF-007
func TestNewMakesAFreshP256Key(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		recordA, a := newKey(t, s)
		recordB, b := newKey(t, s)
		for _, key := range []crypto.Signer{a, b} {
			if pub, ok := key.Public().(*ecdsa.PublicKey); !ok || pub.Curve != elliptic.P256() {
				t.Errorf("the public key is %v, not one on P-256", key.Public())
			}
		}
		if a.Public().(*ecdsa.PublicKey).Equal(b.Public()) || string(recordA) == string(recordB) {
			t.Error("two keys are the same")
		}
	})
}

func TestOpenGivesTheKeyOfTheRecord(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		record, made := newKey(t, s)
		opened, err := s.Open(record)
		if err != nil {
			t.Fatal(err)
		}
		pub := opened.Public().(*ecdsa.PublicKey)
		if !pub.Equal(made.Public()) {
			t.Fatal("the record opens as another key")
		}
		if d, err := tpmkey.Describe(record); err != nil || d.Kind != tpmkey.KindOf(opened) || d.Kind != tpmkey.KindOf(made) {
			t.Errorf("Describe says %q (%v), KindOf %q and %q", d.Kind, err, tpmkey.KindOf(opened), tpmkey.KindOf(made))
		}
		message := []byte("message")
		digest := sha256.Sum256(message)
		for name, f := range map[string]func() ([]byte, error){
			"Sign": func() ([]byte, error) { return opened.Sign(rand.Reader, digest[:], crypto.SHA256) },
			"SignMessage": func() ([]byte, error) {
				return opened.(crypto.MessageSigner).SignMessage(rand.Reader, message, crypto.SHA256)
			},
		} {
			if sig, err := f(); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if !ecdsa.VerifyASN1(pub, digest[:], sig) {
				t.Errorf("%s: the signature does not verify", name)
			}
		}
	})
}

func TestOnlySHA256DigestsAreSigned(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		_, key := newKey(t, s)
		for name, test := range map[string]struct {
			digest []byte
			opts   crypto.SignerOpts
		}{
			"other hash":   {make([]byte, 48), crypto.SHA384},
			"no hash":      {make([]byte, 32), crypto.Hash(0)},
			"no options":   {make([]byte, 32), nil},
			"short digest": {make([]byte, 31), crypto.SHA256},
			"long digest":  {make([]byte, 33), crypto.SHA256},
		} {
			if _, err := key.Sign(rand.Reader, test.digest, test.opts); err == nil {
				t.Errorf("%s: signed", name)
			}
		}
		if _, err := key.(crypto.MessageSigner).SignMessage(rand.Reader, []byte("m"), crypto.SHA512); err == nil {
			t.Error("a message was signed with SHA-512")
		}
	})
}

func TestPurposeBoundSignature(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		_, key := newKey(t, s)
		sig, err := signing.Sign(key, signing.RenewPoP, []byte("payload"))
		if err != nil {
			t.Fatal(err)
		}
		if err := signing.Verify(key.Public(), signing.RenewPoP, []byte("payload"), sig); err != nil {
			t.Error(err)
		}
	})
}

func csrOf(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// Req: JF-008
func TestCertificateRequest(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		_, key := newKey(t, s)
		der := csrOf(t, key)
		csr, err := x509.ParseCertificateRequest(der)
		if err != nil {
			t.Fatal(err)
		}
		if err := csr.CheckSignature(); err != nil {
			t.Error(err)
		}
		out := openssl(t, der, "req", "-inform", "DER", "-verify", "-noout")
		if !strings.Contains(out, "verify OK") {
			t.Errorf("openssl req -verify: %s", out)
		}
	})
}

// openssl runs it with input on standard input, and returns all that it said.
func openssl(t *testing.T, input []byte, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("BCD_REQUIRE_OPENSSL") == "1" {
			t.Fatalf("BCD_REQUIRE_OPENSSL=1, but openssl is not installed: %v", err)
		}
		t.Skipf("openssl is not installed: %v", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Stdin = strings.NewReader(string(input))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("openssl %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// countingSigner shows which of a key's two ways to sign a caller takes.
type countingSigner struct {
	crypto.MessageSigner
	messages, digests int
}

func (c *countingSigner) SignMessage(r io.Reader, msg []byte, o crypto.SignerOpts) ([]byte, error) {
	c.messages++
	return c.MessageSigner.SignMessage(r, msg, o)
}

func (c *countingSigner) Sign(r io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	c.digests++
	return c.MessageSigner.Sign(r, digest, o)
}

func TestTLSClientCertificate(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		_, key := newKey(t, s)
		client := &countingSigner{MessageSigner: key.(crypto.MessageSigner)}
		clientCert := selfSigned(t, client)
		serverCert := selfSigned(t, mustFileKey(t))
		*client = countingSigner{MessageSigner: client.MessageSigner}

		roots := x509.NewCertPool()
		roots.AddCert(serverCert.Leaf)
		clients := x509.NewCertPool()
		clients.AddCert(clientCert.Leaf)

		clientEnd, serverEnd := net.Pipe()
		server := tls.Server(serverEnd, &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{serverCert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients, SessionTicketsDisabled: true,
		})
		var serverErr error
		var wg sync.WaitGroup
		wg.Go(func() { serverErr = server.Handshake(); _ = serverEnd.Close() })
		err := tls.Client(clientEnd, &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{clientCert}, RootCAs: roots, ServerName: "node",
		}).Handshake()
		wg.Wait()
		if err != nil || serverErr != nil {
			t.Fatalf("client: %v, server: %v", err, serverErr)
		}
		peer := server.ConnectionState().PeerCertificates[0].PublicKey.(*ecdsa.PublicKey)
		if !peer.Equal(key.Public()) {
			t.Error("the server saw another key")
		}
		// A helper can only check what it signs when it gets the message.
		if client.messages != 1 || client.digests != 0 {
			t.Errorf("TLS signed %d messages and %d digests, want 1 and 0", client.messages, client.digests)
		}
	})
}

func mustFileKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key := newKey(t, newStore(t, tpmkey.Options{Mode: tpmkey.Off}))
	return key
}

func selfSigned(t *testing.T, key crypto.Signer) tls.Certificate {
	t.Helper()
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestTwoKeysSignConcurrently(t *testing.T) {
	forEachKind(t, func(t *testing.T, s *tpmkey.Store) {
		_, a := newKey(t, s)
		_, b := newKey(t, s)
		var wg sync.WaitGroup
		for i := range 8 {
			key := []crypto.Signer{a, b}[i%2]
			wg.Go(func() {
				digest := sha256.Sum256([]byte{byte(i)})
				sig, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
				if err != nil || !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), digest[:], sig) {
					t.Errorf("signature %d: %v", i, err)
				}
			})
		}
		wg.Wait()
	})
}

// Req: JF-009 JF-011
func TestATPMRecordHoldsNoPrivateKey(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := newStore(t, tpmkey.Options{Device: tpm.Device()}) // mode auto
		record, key := newKey(t, s)
		if !strings.HasPrefix(string(record), "-----BEGIN TSS2 PRIVATE KEY-----\n") {
			t.Fatalf("the record is not a TPM key's:\n%s", record)
		}
		d, err := tpmkey.Describe(record)
		if err != nil {
			t.Fatal(err)
		}
		if d.Kind != tpmkey.KindTPM || !key.Public().(*ecdsa.PublicKey).Equal(d.Public) {
			t.Errorf("Describe = %+v", d)
		}
		// What stands in for the private key is only of use to this TPM: another one does not load it.
		other, err := storeOn(t, tpmkeytest.Any(t)).Open(record)
		if err != nil {
			t.Fatal(err)
		}
		if err := sign(other); err == nil {
			t.Error("another TPM signs with the record")
		}
	})
}

// Req: JF-009 JF-012
func TestAFileKeysRecordIsPKCS8(t *testing.T) {
	s := newStore(t, tpmkey.Options{Device: filepath.Join(t.TempDir(), "tpmrm0")}) // mode auto, no TPM
	record, key := newKey(t, s)
	if !strings.HasPrefix(string(record), "-----BEGIN PRIVATE KEY-----\n") {
		t.Fatalf("the record is not PKCS#8:\n%s", record)
	}
	d, err := tpmkey.Describe(record)
	if err != nil || d.Kind != tpmkey.KindFile || d.Parent != 0 || !key.Public().(*ecdsa.PublicKey).Equal(d.Public) {
		t.Errorf("Describe = %+v, %v", d, err)
	}
	spki, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "node.key")
	if err := os.WriteFile(path, record, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := openssl(t, nil, "pkey", "-in", path, "-pubout", "-outform", "DER"); got != string(spki) {
		t.Error("openssl reads another key")
	}
}

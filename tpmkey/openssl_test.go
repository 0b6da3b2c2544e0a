package tpmkey_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// bridgeVariable turns the test binary into a bridge between its standard streams and a TPM's socket. OpenSSL's TPM
// provider reaches a TPM through such a command ("cmd:" of tpm2-tss); its own socket driver wants a control port too.
const bridgeVariable = "TPMKEY_TEST_BRIDGE"

func TestMain(m *testing.M) {
	if path := os.Getenv(bridgeVariable); path != "" {
		conn, err := net.Dial("unix", path)
		if err != nil {
			os.Exit(1)
		}
		go func() { _, _ = io.Copy(os.Stdout, conn) }()
		_, _ = io.Copy(conn, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// bridge has programs of tpm2-tss reach the test's TPM. variable tells them which transport they use.
func bridge(t *testing.T, tpm *tpmkeytest.TPM, variable string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(bridgeVariable, strings.TrimPrefix(tpm.Device(), "unix:"))
	t.Setenv(variable, "cmd:"+self)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each bridge of a test with the race detector takes a second to end
}

// The records are in a published format: OpenSSL's TPM provider must read them.
func TestOpenSSLReadsTheRecord(t *testing.T) {
	for _, parent := range []string{"derived", "persistent"} {
		t.Run(parent, func(t *testing.T) {
			tpm := tpmkeytest.Any(t)
			if parent == "persistent" {
				tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
			}
			bridge(t, tpm, "TPM2OPENSSL_TCTI")
			if out, err := exec.Command("openssl", "list", "-provider", "tpm2", "-providers").CombinedOutput(); err != nil {
				tpmkeytest.Unavailable(t, "openssl has no tpm2 provider (apt-get install tpm2-openssl): %v: %s", err, bytes.TrimSpace(out))
			}
			record, key := newKey(t, storeOn(t, tpm))
			path := func(name string) string { return filepath.Join(t.TempDir(), name) }
			keyFile, messageFile, sigFile := path("node.key"), path("message"), path("sig")
			for file, content := range map[string][]byte{keyFile: record, messageFile: []byte("message")} {
				if err := os.WriteFile(file, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			spki, err := x509.MarshalPKIXPublicKey(key.Public())
			if err != nil {
				t.Fatal(err)
			}
			pub := openssl(t, nil, "pkey", "-provider", "tpm2", "-provider", "default", "-propquery", "?provider=tpm2",
				"-in", keyFile, "-pubout", "-outform", "DER")
			if !strings.HasSuffix(pub, string(spki)) { // after what the provider says on standard error
				t.Error("openssl reads another public key")
			}
			openssl(t, nil, "dgst", "-provider", "tpm2", "-provider", "default", "-propquery", "?provider=tpm2",
				"-sha256", "-sign", keyFile, "-out", sigFile, messageFile)
			sig, err := os.ReadFile(sigFile)
			if err != nil {
				t.Fatal(err)
			}
			digest := sha256.Sum256([]byte("message"))
			if !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), digest[:], sig) {
				t.Error("openssl's signature with the record does not verify")
			}
		})
	}
}

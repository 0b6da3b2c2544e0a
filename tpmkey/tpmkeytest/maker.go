package tpmkeytest

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Maker makes software TPMs with endorsement key certificates, as the maker of a chip does: swtpm's own tools, with a root,
// an issuer below it, and the certificates in the TPM's NV memory (RSA 2048 at 0x01c00002, ECC P-384 at 0x01c00016).
type Maker struct {
	dir   string // of its authority; empty until the first TPM
	setup string // the swtpm_setup program
	swtpm string
}

// NewMaker returns a maker with an authority of its own.
func NewMaker(t testing.TB) *Maker {
	t.Helper()
	m := &Maker{dir: shortDir(t)}
	for program, path := range map[string]*string{"swtpm": &m.swtpm, "swtpm_setup": &m.setup} {
		found, err := exec.LookPath(program)
		if err != nil {
			Unavailable(t, "%s is not installed (apt-get install swtpm swtpm-tools): %v", program, err)
		}
		*path = found
	}
	localca, err := exec.LookPath("swtpm_localca")
	if err != nil {
		Unavailable(t, "swtpm_localca is not installed (apt-get install swtpm-tools): %v", err)
	}
	for name, content := range map[string]string{
		"ca.conf":    fmt.Sprintf("statedir = %[1]s\nsigningkey = %[1]s/issuer-key.pem\nissuercert = %[1]s/issuer.pem\ncertserial = %[1]s/serial\n", m.dir),
		"ca.options": "--platform-manufacturer Contoso\n--platform-version 1\n--platform-model Server\n",
		"setup.conf": fmt.Sprintf("create_certs_tool = %[2]s\ncreate_certs_tool_config = %[1]s/ca.conf\ncreate_certs_tool_options = %[1]s/ca.options\n", m.dir, localca),
	} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// Swtpm makes and starts a TPM. The arguments go to swtpm_setup, after its own ("--rsa-keysize", "3072").
func (m *Maker) Swtpm(t testing.TB, args ...string) *TPM {
	t.Helper()
	dir := shortDir(t)
	cmd := exec.Command(m.setup, append([]string{
		"--tpm2", "--tpmstate", dir, "--config", filepath.Join(m.dir, "setup.conf"), "--create-ek-cert", "--overwrite",
	}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		Unavailable(t, "swtpm_setup cannot make a TPM: %v: %s", err, out)
	}
	return startSwtpm(t, m.swtpm, dir)
}

// Root returns the root of the maker's authority, once it made a TPM.
func (m *Maker) Root(t testing.TB) *x509.Certificate {
	t.Helper()
	return m.certificate(t, "swtpm-localca-rootca-cert.pem")
}

// Issuer returns the certificate of what signs the TPMs' certificates, once it made a TPM. The TPMs do not hold it.
func (m *Maker) Issuer(t testing.TB) *x509.Certificate {
	t.Helper()
	return m.certificate(t, "issuer.pem")
}

func (m *Maker) certificate(t testing.TB, name string) *x509.Certificate {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(m.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s is not PEM", name)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatalf("cannot read %s: %v", name, err)
	}
	return cert
}

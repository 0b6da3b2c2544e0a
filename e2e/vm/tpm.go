package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Maker is a maker of TPMs: a certificate authority in a folder.
type Maker struct{ dir string }

// NewMaker makes a maker, in a folder that is made.
func NewMaker(dir string) (Maker, error) {
	m := Maker{dir}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return m, err
	}
	tool, err := exec.LookPath("swtpm_localca")
	if err != nil {
		return m, fmt.Errorf("cannot sign a TPM's certificate: %w", err)
	}
	for name, lines := range map[string][]string{
		"setup.conf": {
			"create_certs_tool=" + tool, "create_certs_tool_config=" + m.file("ca.conf"),
			"create_certs_tool_options=" + m.file("ca.options"), "active_pcr_banks=sha256",
		},
		"ca.conf":    {"statedir=" + dir, "signingkey=" + m.file("key.pem"), "issuercert=" + m.file(issuerFile), "certserial=" + m.file("serial")},
		"ca.options": {"--platform-manufacturer Example", "--platform-version 1.0", "--platform-model Server"},
	} {
		if err := os.WriteFile(m.file(name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return m, err
		}
	}
	return m, nil
}

// The authorities that swtpm_localca makes with the first certificate.
const (
	rootFile   = "swtpm-localca-rootca-cert.pem"
	issuerFile = "issuer.pem"
)

func (m Maker) file(name string) string { return filepath.Join(m.dir, name) }

// Roots returns the maker's root and the issuer below it, PEM. They exist once the maker has made a TPM.
func (m Maker) Roots() ([]byte, error) {
	root, err := os.ReadFile(m.file(rootFile))
	if err != nil {
		return nil, err
	}
	issuer, err := os.ReadFile(m.file(issuerFile))
	return append(root, issuer...), err
}

// NewTPM makes a TPM in a folder, which is made: with its endorsement keys and their certificates, at 0x01c00002 (RSA 2048) and
// 0x01c00016 (ECC P-384).
func (m Maker) NewTPM(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "swtpm_setup", "--tpm2", "--tpmstate", dir, "--config", m.file("setup.conf"),
		"--create-ek-cert", "--create-platform-cert", "--lock-nvram", "--pcr-banks", "sha256")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot make a TPM: %w\n%s", err, out)
	}
	return nil
}

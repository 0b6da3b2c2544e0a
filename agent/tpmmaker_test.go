package agent_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// A TPM with its maker's certificates, as a chip has them, is let in by its maker: the whole chain crosses, from NV memory to
// the control plane's roots. The machine shows the same to a person.
func TestJoinByTheTPMsMaker(t *testing.T) {
	maker := tpmkeytest.NewMaker(t)
	tpm := maker.Swtpm(t)
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	cp.Stop(t)
	var roots []byte
	for _, c := range []*x509.Certificate{maker.Root(t), maker.Issuer(t)} {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	if err := os.WriteFile(filepath.Join(cp.Dir, "makers.pem"), roots, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cp.Dir, "server.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const section = "[attestors.tpm]\n"
	text = bytes.Replace(text, []byte(section), []byte(section+"ek_roots = [\"makers.pem\"]\n"), 1)
	text = fmt.Appendf(text, "\n[attestors.tpm.pools]\n%s = %q\n", cp.Site, cp.Pool)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	cp.Restart(t)

	m := newMachine(t, cp)
	m.use(tpm)
	report, err := m.agent().TPMIdentity(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.EKKey != "RSA 2048" || report.EKIndex != "0x01c00002" || len(report.Certificates) == 0 || len(report.EKCertificates) != len(report.Certificates) {
		t.Errorf("report %+v", report)
	}
	own := report.Certificates[0]
	if !strings.Contains(own.Names, "model=swtpm") || own.Issuer != maker.Issuer(t).Subject.String() || own.NotAfter.Before(own.NotBefore) || own.Unreadable != "" {
		t.Errorf("certificate %+v", own)
	}
	result, err := m.joinByTPM(nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	m.namesItsAK()
	if id := m.connects(); id.NodeID != result.NodeID {
		t.Errorf("connected as %s", id.NodeID)
	}
	empty(t, tpm)
}

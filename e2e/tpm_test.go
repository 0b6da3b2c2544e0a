package e2e_test

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// softwareTPM is swtpm with a state that outlives it.
type softwareTPM struct {
	t       *testing.T
	dir     string
	process *process
}

func newSoftwareTPM(t *testing.T) *softwareTPM {
	t.Helper()
	if _, err := exec.LookPath("swtpm"); err != nil {
		tpmkeytest.Unavailable(t, "swtpm is not installed (apt-get install swtpm): %v", err)
	}
	s := &softwareTPM{t: t, dir: shortDir(t)}
	s.start()
	return s
}

func (s *softwareTPM) socket() string { return filepath.Join(s.dir, "socket") }

func (s *softwareTPM) start() {
	s.t.Helper()
	s.process = start(s.t, os.Environ(), "swtpm", "socket", "--tpm2", "--tpmstate", "dir="+s.dir, "--server", "type=unixio,path="+s.socket(),
		"--flags", "not-need-init,startup-clear")
	eventually(s.t, func() bool { _, err := os.Stat(s.socket()); return err == nil }, func() string { return "swtpm does not listen:\n" + s.process.String() })
}

// restart turns the TPM off and on, without a word before.
func (s *softwareTPM) restart() {
	s.t.Helper()
	s.process.kill()
	if err := os.Remove(s.socket()); err != nil && !os.IsNotExist(err) {
		s.t.Fatal(err)
	}
	s.start()
}

// With a TPM the key is made in it and stays there: through a restart of the daemon and of the TPM, and in renewals. The
// control plane gets no proof of it from a token join, and claims none.
// Req: JF-009 JF-010 JF-011 JF-013 JF-044 RN-031 RN-032 RN-033
func TestKeyInTPM(t *testing.T) {
	t.Parallel()
	tpm := newSoftwareTPM(t)
	p := startPlane(t, build(t, "./cmd/better-compute"), environment(), "--cert-ttl", "8s")
	m := newMachine(t, p, build(t, "./cmd/bcd"), fmt.Sprintf("[tpm]\ndevice = %q\n", "unix:"+tpm.socket()))
	node := m.join(p.token("token"))
	joinKey := m.state("node.key")
	m.mustBeRecord(joinKey)

	daemon := m.node()
	daemon.waitFor("msg=renewed", 1)
	daemon.stop()
	renewed := m.state("node.key")
	m.mustBeRecord(renewed)
	if renewed == joinKey {
		t.Error("the renewal kept the key")
	}
	leaf := m.chain()[0]
	if len(leaf.URIs) != 1 || !strings.HasSuffix(leaf.URIs[0].String(), "/node/"+node) {
		t.Errorf("the renewed certificate is for %v", leaf.URIs)
	}

	tpm.restart()
	daemon = m.node()
	daemon.waitFor(`msg="open session"`, 1)
	if got := m.status(0).Identity; got.NodeID != node || got.Key != "tpm" {
		t.Errorf("after the restart: %+v", got)
	}
	daemon.waitFor("msg=renewed", 1)
	daemon.stop()
	m.mustBeRecord(m.state("node.key"))
	for _, e := range p.events("node.joined") {
		if e.Data["nodeKey"] != "unattested" {
			t.Errorf("the join is recorded as %v", e.Data)
		}
	}
}

// mustBeRecord checks that node.key is a TPM's record, private to its owner, and no key.
func (m *machine) mustBeRecord(text string) {
	m.t.Helper()
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "TSS2 PRIVATE KEY" || len(strings.TrimSpace(string(rest))) != 0 {
		m.t.Fatalf("node.key is no record of a TPM key:\n%.40s…", text)
	}
	if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
		m.t.Error("node.key holds a private key")
	}
	if _, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		m.t.Error("node.key holds a private key")
	}
	if info, err := os.Stat(filepath.Join(m.data(), "node.key")); err != nil || info.Mode().Perm() != 0o600 {
		m.t.Errorf("node.key: %v, %v", info.Mode(), err)
	}
}

// chain is the machine's certificate chain, the leaf first.
func (m *machine) chain() (chain []*x509.Certificate) {
	m.t.Helper()
	var id struct {
		Chain [][]byte `json:"chain"`
	}
	if err := json.Unmarshal([]byte(m.state("identity.json")), &id); err != nil {
		m.t.Fatal(err)
	}
	for _, der := range id.Chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			m.t.Fatal(err)
		}
		chain = append(chain, c)
	}
	return chain
}

package agent_test

import (
	"crypto/x509"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// startTPM starts a control plane that takes machines by their TPM.
func startTPM(t *testing.T, c controlplane.TPMConfig, o controlplanetest.Options) *controlplanetest.ControlPlane {
	t.Helper()
	o.AnswerAtOnce, o.Attestors.TPM = true, &c
	return controlplanetest.Start(t, o)
}

// newTPMMachine returns a machine with a TPM.
func newTPMMachine(t *testing.T, cp *controlplanetest.ControlPlane) (*machine, *tpmkeytest.TPM) {
	t.Helper()
	m, tpm := newMachine(t, cp), tpmkeytest.Any(t)
	m.use(tpm)
	return m, tpm
}

// use puts a TPM into the machine.
func (m *machine) use(tpm *tpmkeytest.TPM) { m.tpm = "device = \"" + tpm.Device() + "\"" }

// allow lists the machine's endorsement key.
func (m *machine) allow() {
	m.t.Helper()
	report, err := m.agent().TPMIdentity(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	hash, err := ekallow.ParseHash(report.EKSHA256)
	if err != nil {
		m.t.Fatal(err)
	}
	_, err = (&ekallow.Service{Store: m.cp.Store()}).Add(m.t.Context(), "operator", ekallow.AddRequest{
		TenantID: m.cp.Tenant, PoolID: m.cp.Pool, EKSHA256: hash, IdempotencyKey: report.EKSHA256,
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

// untouched is a standard input that nobody may read.
type untouched struct{ t *testing.T }

func (u untouched) Read([]byte) (int, error) {
	u.t.Error("standard input is read")
	return 0, io.EOF
}

// joinByTPM joins with the attestor tpm.
func (m *machine) joinByTPM(change func(*agent.JoinOptions)) (agent.JoinResult, error) {
	m.t.Helper()
	o := agent.JoinOptions{Attestor: agent.AttestorTPM, Stdin: untouched{m.t}, Patience: 3 * time.Second}
	if change != nil {
		change(&o)
	}
	return m.agent().Join(m.t.Context(), o)
}

// joinedByTPM returns a machine that has joined by its TPM, and its node id.
func joinedByTPM(t *testing.T, cp *controlplanetest.ControlPlane) (*machine, *tpmkeytest.TPM, string) {
	t.Helper()
	m, tpm := newTPMMachine(t, cp)
	m.allow()
	result, err := m.joinByTPM(nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	return m, tpm, result.NodeID
}

// leaf is the machine's certificate.
func (m *machine) leaf() *x509.Certificate {
	m.t.Helper()
	text, err := os.ReadFile(filepath.Join(m.data(), identity.IdentityFile))
	if err != nil {
		m.t.Fatal(err)
	}
	var id identity.Identity
	if err := json.Unmarshal(text, &id); err != nil {
		m.t.Fatal(err)
	}
	return id.Leaf()
}

// statements are what the machine's certificate says of its key.
func (m *machine) statements() []string {
	m.t.Helper()
	says, err := identity.Statements(m.leaf())
	if err != nil {
		m.t.Fatal(err)
	}
	return says
}

// ak is what a certificate says of the machine's attestation key.
func (m *machine) ak() []string {
	m.t.Helper()
	report, err := m.agent().TPMIdentity(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return []string{report.AKStatement}
}

// namesItsAK checks that the machine's certificate names its attestation key and nothing else.
func (m *machine) namesItsAK() {
	m.t.Helper()
	if got, want := m.statements(), m.ak(); !slices.Equal(got, want) {
		m.t.Errorf("the certificate says %q, want %q", got, want)
	}
}

// empty checks that nothing is left loaded in a TPM.
func empty(t *testing.T, tpm *tpmkeytest.TPM) {
	t.Helper()
	if left := tpm.Handles(t); len(left) > 0 {
		t.Errorf("the TPM has %x loaded", left)
	}
}

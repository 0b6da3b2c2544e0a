package agent_test

import (
	"crypto/sha256"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// tpmAway is what a node says whose TPM cannot vouch for its next key. The words are the guide's.
const tpmAway = `level=ERROR msg="renewal failed: the TPM is unavailable or names another AK"`

// Each renewal of a certificate that names an attestation key carries that key's word for the next one.
// Req: RN-020 RN-024 RN-029
func TestRenewalByTPM(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{CertTTL: 5 * time.Second})
	relay := cp.Relay(t)
	m, tpm, node := joinedByTPM(t, cp)
	m.url = relay.URL
	ak := m.ak()
	stop := m.run()
	eventually(t, "renewed twice\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 2 })
	if s := m.status(); s.Identity.NodeID != node || s.Identity.Key != "tpm" {
		t.Errorf("status %+v", s.Identity)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	m.namesItsAK()
	for _, r := range relay.Renews() {
		csr, err := x509.ParseCertificateRequest(r.GetRequest().GetCsr())
		if err != nil {
			t.Fatal(err)
		}
		c := certified(r.GetRequest().GetKeyAttestation())
		if err := attest.VerifyCertification(c, ak[0], csr.PublicKey, sha256.Sum256(r.GetRequest().GetCsr())); err != nil {
			t.Error(err)
		}
	}
	if got := cp.Refusals(t); len(got) != 0 || m.log.count("renewal failed") != 0 {
		t.Errorf("refusals %q\n%s", got, m.log)
	}
	empty(t, tpm)
}

// dueByTPM returns a machine that joined by its TPM, through a relay, and whose certificate is to be renewed now: its life is
// so short by then that it is tried again after seconds.
func dueByTPM(t *testing.T) (*machine, *tpmkeytest.TPM, *controlplanetest.Relay) {
	t.Helper()
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{CertTTL: time.Minute})
	relay := cp.Relay(t)
	m, tpm := newTPMMachine(t, cp)
	m.url, m.now = relay.URL, cp.Clock.Now
	m.allow()
	if _, err := m.joinByTPM(nil); err != nil {
		t.Fatal(err)
	}
	cp.Clock.Advance(40 * time.Second)
	return m, tpm, relay
}

// failsByTPM waits until the node has said so twice, and checks what it says and that it sent nothing.
func (m *machine) failsByTPM(relay *controlplanetest.Relay, why, hint string) {
	m.t.Helper()
	serial := serialOf(m.leaf())
	eventually(m.t, "two failed renewals\n"+m.log.String(), 15*time.Second, func() bool { return m.log.count(tpmAway) >= 2 })
	if n := len(relay.Renews()); n > 0 {
		m.t.Errorf("%d renewals were sent", n)
	}
	for line := range strings.Lines(m.log.String()) {
		if strings.Contains(line, tpmAway) && (!strings.Contains(line, why) || !strings.Contains(line, hint) || !strings.Contains(line, "certificate_expires_in=")) {
			m.t.Errorf("the log lacks %q or %q: %s", why, hint, line)
		}
	}
	if s := m.status(); s.Renewal == nil || !strings.HasPrefix(s.Renewal.Error, "the TPM is unavailable or names another AK: ") || !strings.Contains(s.Renewal.Error, why) {
		m.t.Errorf("status %+v", s.Renewal)
	}
	if got := serialOf(m.leaf()); got != serial {
		m.t.Error("the certificate changed")
	}
}

func serialOf(c *x509.Certificate) string { return agent.SerialText(c) }

// renewsByTPM waits until the node, which runs, has renewed.
func (m *machine) renewsByTPM() {
	m.t.Helper()
	eventually(m.t, "renewed\n"+m.log.String(), 15*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	m.namesItsAK()
	if key, err := os.ReadFile(filepath.Join(m.data(), "node.key")); err != nil || !strings.Contains(string(key), "TSS2 PRIVATE KEY") {
		m.t.Errorf("node.key is not in the TPM: %.40s, %v", key, err)
	}
}

// Without its TPM such a node sends nothing and makes no key in a file. Once the TPM is back, the next try renews.
// Req: RN-030 RN-040 RN-041 RN-042
func TestRenewalWithoutTheTPM(t *testing.T) {
	m, tpm, relay := dueByTPM(t)
	tpm.Remove()
	m.run()
	m.failsByTPM(relay, "no such file or directory", "hint=")
	if files := m.files(); !slices.Equal(files, []string{"identity.json", "node.key"}) {
		t.Errorf("files %q", files)
	}
	tpm.Return(t)
	m.renewsByTPM()
}

// A TPM in another mode of bcd is no TPM either.
// Req: RN-041
func TestRenewalWithTheTPMOff(t *testing.T) {
	m, _, relay := dueByTPM(t)
	m.tpm = `mode = "off"`
	m.run()
	m.failsByTPM(relay, "[tpm] mode is ", "auto")
}

// Another TPM than the certificate's gives another attestation key: the node sees it by itself.
// Req: TP-003 RN-030 RN-040 RN-042
func TestRenewalWithAnotherTPM(t *testing.T) {
	m, own, relay := dueByTPM(t)
	other := tpmkeytest.Any(t)
	link := filepath.Join(m.dir, "tpm")
	plug := func(tpm *tpmkeytest.TPM) {
		_ = os.Remove(link)
		if err := os.Symlink(strings.TrimPrefix(tpm.Device(), "unix:"), link); err != nil {
			t.Fatal(err)
		}
	}
	m.tpm = `device = "unix:` + link + `"`
	ak := m.statements()[0]
	plug(other)
	m.run()
	m.failsByTPM(relay, ak, "bcd join --reset --yes --attestor tpm")
	if _, err := os.Stat(filepath.Join(m.data(), "node.key.next")); !os.IsNotExist(err) {
		t.Error("a key was made in the other TPM")
	}
	plug(own)
	m.renewsByTPM()
}

// A TPM that was cleared keeps its attestation key and loses the node's: no renewal, and only a new join helps, which gives
// the same node, because the endorsement key is the same.
// Req: RN-030 RN-040 TP-004 RS-010 RS-015
func TestClearedTPM(t *testing.T) {
	m, tpm, relay := dueByTPM(t)
	node := m.nodeID()
	tpm.Clear(t)
	stop := m.run()
	m.failsByTPM(relay, "the TPM was cleared or replaced", "bcd join --reset --yes --attestor tpm")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	result, err := m.joinByTPM(func(o *agent.JoinOptions) { o.Reset = true })
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	id := m.connects()
	if result.NodeID != node || id.NodeID != node || id.Generation != 2 {
		t.Errorf("joined as %+v, connected as %+v; it was %s", result, id, node)
	}
	m.namesItsAK()
	empty(t, tpm)
}

func (m *machine) nodeID() string {
	m.t.Helper()
	s, err := m.agent().StoppedStatus()
	if err != nil {
		m.t.Fatal(err)
	}
	return s.Identity.NodeID
}

// A node that joined with a token and a key in a file gets its next key in the TPM as soon as there is one, which is said
// once, and never goes back.
// Req: RN-032 RN-033
func TestKeyFileMovesIntoTheTPM(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 8 * time.Second})
	m, _ := joinedMachine(t, cp)
	tpm := tpmkeytest.Any(t)
	m.use(tpm)
	if s, err := m.agent().StoppedStatus(); err != nil || s.Identity.Key != "file" {
		t.Fatalf("status %+v, %v", s.Identity, err)
	}
	m.run()
	eventually(t, "renewed\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	if s := m.status(); s.Identity.Key != "tpm" {
		t.Errorf("status %+v", s.Identity)
	}
	m.waitFor(agent.Connected)
	tpm.Remove()
	eventually(t, "a failed renewal\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("renewal failed") >= 1 })
	if m.log.count(tpmAway) != 0 || m.log.count("make keys in files") != 0 {
		t.Errorf("what it says:\n%s", m.log)
	}
	tpm.Return(t)
	eventually(t, "renewed again\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 2 })
	if got := m.log.count(`msg="move key into TPM"`); got != 1 {
		t.Errorf("it is said %d times:\n%s", got, m.log)
	}
	if says := m.statements(); len(says) != 0 {
		t.Errorf("the certificate says %q", says)
	}
}

// A node whose certificate expired joins again by its TPM where that is allowed, as the same node; elsewhere it parks.
func TestAutoRejoin(t *testing.T) {
	for name, c := range map[string]struct {
		allowed, byTPM bool
		away           time.Duration // after which it comes back
		rejoins        bool
	}{
		"allowed, within 7 days": {true, true, 25 * time.Hour, true},
		"allowed, after 7 days":  {true, true, 10 * 24 * time.Hour, true},
		"not allowed":            {false, true, 10 * 24 * time.Hour, false},
		"joined with a token":    {true, false, 10 * 24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
			m, tpm := newTPMMachine(t, cp)
			m.allow()
			m.now = cp.Clock.Now
			var joined agent.JoinResult
			var err error
			if c.byTPM {
				joined, err = m.joinByTPM(nil)
			} else {
				joined, err = m.join(newToken(t, cp, 1))
			}
			if err != nil {
				t.Fatal(err)
			}
			serial := serialOf(m.leaf())
			if c.allowed {
				m.tpm += "\nauto_rejoin = true"
			}
			cp.Clock.Advance(c.away)
			m.url = cp.Gateway(t, nil)
			m.run()
			if !c.rejoins {
				if s := m.waitFor(agent.Parked); !strings.Contains(s.Problem, "the certificate expired at ") {
					t.Errorf("status %+v", s)
				}
				m.unlocked()
				return
			}
			id := m.waitFor(agent.Connected).Identity
			if id.NodeID != joined.NodeID || id.Generation != 2 || id.Key != "tpm" {
				t.Errorf("connected as %+v, joined as %+v", id, joined)
			}
			m.namesItsAK()
			if serialOf(m.leaf()) == serial || m.log.count(`msg="join again by TPM" node=`+joined.NodeID) != 1 {
				t.Errorf("it did not join again:\n%s", m.log)
			}
			if files := strings.Join(m.files(), " "); !strings.Contains(files, "identity.json.reset-") || !strings.Contains(files, "node.key.reset-") {
				t.Errorf("files %q", m.files())
			}
			empty(t, tpm)
		})
	}
}

// So does one whose TPM was cleared meanwhile, which no renewal and no proof of the old key would bring back; in another TPM's
// machine it stays what it is.
func TestAutoRejoinAfterTheTPMChanged(t *testing.T) {
	for name, replaced := range map[string]bool{"cleared": false, "replaced": true} {
		t.Run(name, func(t *testing.T) {
			cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
			m, tpm, node := joinedByTPM(t, cp)
			if replaced {
				m.use(tpmkeytest.Any(t))
			} else {
				tpm.Clear(t)
			}
			m.tpm += "\nauto_rejoin = true"
			m.now = cp.Clock.Now
			cp.Clock.Advance(25 * time.Hour)
			m.url = cp.Gateway(t, nil)
			m.run()
			if replaced {
				s := m.waitFor(agent.Parked)
				if !strings.Contains(s.Problem, "the TPM's attestation key is ") || !strings.Contains(s.Hint, "--attestor tpm") {
					t.Errorf("status %+v", s)
				}
				return
			}
			if id := m.waitFor(agent.Connected).Identity; id.NodeID != node || id.Generation != 2 {
				t.Errorf("connected as %+v, it was %s", id, node)
			}
		})
	}
}

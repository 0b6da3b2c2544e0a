package agent_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/internal/fault"
)

// joinedMachine returns a machine that has joined, and its node id.
func joinedMachine(t *testing.T, cp *controlplanetest.ControlPlane) (*machine, string) {
	t.Helper()
	m := newMachine(t, cp)
	result, err := m.join(newToken(t, cp, 1))
	if err != nil {
		t.Fatal(err)
	}
	return m, result.NodeID
}

// status asks the machine's daemon.
func (m *machine) status() agent.Status {
	m.t.Helper()
	s, err := agent.QueryStatus(m.t.Context(), m.socket())
	if err != nil {
		return agent.Status{}
	}
	return s
}

func (m *machine) waitFor(state agent.State) agent.Status {
	m.t.Helper()
	eventually(m.t, "the daemon is "+string(state)+"\n"+m.log.String(), 10*time.Second, func() bool { return m.status().State == state })
	return m.status()
}

// Req: JF-064 JF-002 SS-004 SS-006
func TestRunOpensASession(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, node := joinedMachine(t, cp)
	stop := m.run()
	s := m.waitFor(agent.Connected)
	if s.Identity.NodeID != node || s.Session.ID == "" || s.Problem != "" || s.Err() != nil {
		t.Errorf("status %+v", s)
	}
	cp.WaitForEvent(t, events.TypeNodeConnected, 1)
	if err := stop(); err != nil {
		t.Errorf("an order to stop ended with %v", err)
	}
	if _, err := agent.QueryStatus(t.Context(), m.socket()); !fault.Is(err, fault.Unreachable) {
		t.Errorf("the status socket of a stopped daemon: %v", err)
	}
}

// A short certificate is renewed at 60 % of its life, again and again, and each time the new session stands before the
// old one ends.
// Req: RN-001 RN-002 RN-004 RN-022 NC-018
func TestRenewal(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 5 * time.Second})
	m, node := joinedMachine(t, cp)
	m.run()
	first := m.waitFor(agent.Connected)
	eventually(t, "renewed twice", 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 2 })
	cp.WaitForEvent(t, events.TypeNodeConnected, 3)
	s := m.status()
	if s.Identity.NodeID != node || s.Identity.Serial == first.Identity.Serial || s.State != agent.Connected {
		t.Errorf("status %+v", s)
	}
	if strings.Contains(m.log.String(), "lose session") {
		t.Errorf("a session was lost:\n%s", m.log)
	}
	if got := cp.Refusals(t); len(got) != 0 {
		t.Errorf("refusals %q", got)
	}
}

// A renewal whose answer is lost gets the same certificate at the next try.
func TestLostRenewalAnswer(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 6 * time.Second})
	m, _ := joinedMachine(t, cp)
	cp.DropAnswer(controlplanetest.Renew, 1)
	m.run()
	eventually(t, "renewed", 15*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	if cp.Dropped(controlplanetest.Renew) != 1 || m.log.count("renewal failed") == 0 {
		t.Errorf("no answer was lost:\n%s", m.log)
	}
}

// A gateway that forges the answer to a renewal has no kill switch: the daemon stays, keeps its identity, tries again.
// Req: RN-043
func TestForgedRenewalIsAFailedRenewal(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 6 * time.Second})
	relay := cp.Relay(t)
	m := newMachine(t, cp)
	m.url = relay.URL
	if _, err := m.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	forged := 0
	relay.OnRenew(func(_ context.Context, req *joinv1.RenewRequest, next func(*joinv1.RenewRequest) (*daemonv1.RenewResponse, error)) (*daemonv1.RenewResponse, error) {
		resp, err := next(req)
		if err != nil || forged >= 2 {
			return resp, err
		}
		forged++
		resp = proto.Clone(resp).(*daemonv1.RenewResponse)
		resp.Body[len(resp.Body)-1] ^= 1
		return resp, nil
	})
	m.run()
	eventually(t, "renewed", 15*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	if got := m.log.count("renewal failed"); got != 2 {
		t.Errorf("%d failed renewals, want 2", got)
	}
	if !strings.Contains(m.log.String(), "check signature") {
		t.Errorf("the log does not name the check:\n%s", m.log)
	}
}

// Req: RN-003 RN-005 RN-006 RN-007 RN-009
func TestRenewRequestOnTheWire(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 4 * time.Second})
	relay := cp.Relay(t)
	m := newMachine(t, cp)
	m.url = relay.URL
	if _, err := m.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	m.run()
	eventually(t, "renewed", 15*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	req := relay.Renews()[0]
	r := req.GetRequest()
	if len(r.GetCsr()) == 0 || len(r.GetPopSig()) == 0 || len(r.GetChain()) == 0 || r.GetKeyAttestation() != nil {
		t.Errorf("request %v", r)
	}
	if d := time.Since(time.UnixMilli(r.GetClientTimeUnixMs())).Abs(); d > time.Minute {
		t.Errorf("client time is %s off", d)
	}
	if string(req.GetPeer().GetCertificate()) != string(r.GetChain()[0]) {
		t.Error("the connection does not present the current certificate")
	}
}

// A gateway that goes away and comes back finds its nodes again.
func TestReconnect(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	defer agent.SetAfterSession(100 * time.Millisecond)()
	m.run()
	m.waitFor(agent.Connected)
	cp.StopGateway(t)
	s := m.waitFor(agent.Connecting)
	if s.Problem == "" || !fault.Is(s.Err(), fault.Unreachable) {
		t.Errorf("status %+v", s)
	}
	cp.StartGateway(t)
	m.waitFor(agent.Connected)
}

// A revoked node parks: it stays up, says why, and holds no lock, so that an operator can join the machine again.
func TestRevokedNodeParks(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	revokeIdentity(t, cp, node)
	m.run()
	s := m.waitFor(agent.Parked)
	if !strings.Contains(s.Problem, "refuses this node") || !strings.Contains(s.Hint, fault.HintJoinAgain) {
		t.Errorf("status %+v", s)
	}
	if got := fault.CodeOf(s.Err()); got != fault.AccessDenied {
		t.Errorf("status has the code %s", got)
	}
	m.unlocked()
}

// unlocked fails the test where somebody holds the data directory's lock.
func (m *machine) unlocked() {
	m.t.Helper()
	eventually(m.t, "the lock is free", 5*time.Second, func() bool {
		release, err := openDir(m.t, m.data()).Lock()
		if err == nil {
			release()
		}
		return err == nil
	})
}

// A certificate that expired while the machine was off parks the node, which says so. Its identity still loads.
// Req: RN-038 RN-039 RS-002
func TestExpiredNodeParks(t *testing.T) {
	clock := &controlplanetest.Clock{}
	cp := controlplanetest.Start(t, controlplanetest.Options{Clock: clock, AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	m.now = clock.Now
	clock.Advance(25 * time.Hour)
	cp.Gateway(t, nil)
	m.run()
	s := m.waitFor(agent.Parked)
	if !strings.Contains(s.Problem, "the certificate expired at ") {
		t.Errorf("status %+v", s)
	}
	again, err := m.join("")
	if err != nil || !again.Already || again.NodeID != node {
		t.Errorf("join of an expired node: %+v, %v", again, err)
	}
}

// Another identity on disk, as a reset makes, ends the parking at once.
func TestParkedNodeFindsItsNewIdentity(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	defer agent.SetParkedLook(50 * time.Millisecond)()
	revokeIdentity(t, cp, node)
	m.run()
	m.waitFor(agent.Parked)
	fresh := newMachine(t, cp)
	fresh.host = anotherHost(t, "fresh")
	if _, err := fresh.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"node.key", "identity.json"} {
		if err := os.Rename(filepath.Join(fresh.data(), name), filepath.Join(m.data(), name)); err != nil {
			t.Fatal(err)
		}
	}
	m.waitFor(agent.Connected)
}

// A machine that never joined is told so, and nothing is written.
func TestRunWithoutIdentity(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	err := m.agent().Run(t.Context(), agent.Notifier{})
	if !fault.Is(err, fault.NoIdentity) || fault.CodeOf(err).Exit() != 78 {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(m.data()); !os.IsNotExist(err) {
		t.Error("the data directory exists")
	}
}

// The service manager hears that the daemon is ready, how it is, and that it lives.
func TestNotifier(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, node := joinedMachine(t, cp)
	said := make(chan string, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- m.agent().Run(ctx, agent.Notifier{Send: func(s string) { said <- s }, Watchdog: 20 * time.Millisecond})
	}()
	for _, want := range []string{"READY=1", "STATUS=connected as " + node, "WATCHDOG=1"} {
		for got := ""; got != want; {
			select {
			case got = <-said:
			case <-time.After(10 * time.Second):
				t.Fatalf("never heard %q", want)
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	last := ""
	for len(said) > 0 {
		last = <-said
	}
	if last != "STOPPING=1" {
		t.Errorf("the last word is %q", last)
	}
}

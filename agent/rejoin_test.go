package agent_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// expiredMachine is a machine whose certificate expired some time ago. The control plane takes x509pop, or does not.
func expiredMachine(t *testing.T, ago time.Duration, x509pop bool) (cp *controlplanetest.ControlPlane, m *machine, node string) {
	t.Helper()
	clock := &controlplanetest.Clock{}
	o := controlplanetest.Options{Clock: clock, AnswerAtOnce: true}
	if x509pop {
		o.Attestors.X509PoP = &controlplane.X509PoPConfig{}
	}
	cp = controlplanetest.Start(t, o)
	m, node = joinedMachine(t, cp)
	m.now = clock.Now
	clock.Advance(24*time.Hour + ago)
	m.url = cp.Gateway(t, nil)
	return cp, m, node
}

// A node whose certificate expired less than 7 days ago comes back by itself: as a renewal does, without moving anything.
// Req: AT-004
func TestExpiredNodeComesBack(t *testing.T) {
	for name, ago := range map[string]time.Duration{"minutes ago": time.Minute, "days ago": 6 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			cp, m, node := expiredMachine(t, ago, true)
			serial := m.storedSerial()
			id := m.connects()
			if id.NodeID != node || id.Generation != 1 || id.Serial == serial {
				t.Errorf("connected as %+v", id)
			}
			if got := m.files(); len(got) != 2 {
				t.Errorf("files %q", got)
			}
			if got := cp.Refusals(t); len(got) != 0 {
				t.Errorf("refusals %q", got)
			}
		})
	}
}

// Where the control plane does not take such joins, or it comes too late, the node parks and names the command.
func TestExpiredNodeParksWhereItCannotComeBack(t *testing.T) {
	for name, tc := range map[string]struct {
		ago      time.Duration
		x509pop  bool
		refusals int // of the join, at least
	}{
		"not configured": {time.Hour, false, 1},
		"too late":       {8 * 24 * time.Hour, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			cp, m, _ := expiredMachine(t, tc.ago, tc.x509pop)
			old := m.contents()
			m.run()
			s := m.waitFor(agent.Parked)
			if !strings.Contains(s.Problem, "the certificate expired at ") || !strings.Contains(s.Problem, "; join again as root: bcd join --reset --yes, then bcd join") ||
				!strings.Contains(s.Hint, "bcd join --reset --yes") || !fault.Is(s.Err(), fault.AccessDenied) {
				t.Errorf("status %+v", s)
			}
			if got := len(cp.Refusals(t)); got < tc.refusals || tc.refusals == 0 && got != 0 {
				t.Errorf("%d refusals", got)
			}
			m.unlocked()
			m.keeps(old)
		})
	}
}

// A machine whose clock is wrong learns the control plane's from the refusal of its first proof.
func TestExpiredNodeComesBackWithAWrongClock(t *testing.T) {
	cp, m, node := expiredMachine(t, 2*time.Hour, true)
	m.now = func() time.Time { return cp.Clock.Now().Add(10 * time.Minute) }
	if id := m.connects(); id.NodeID != node {
		t.Errorf("connected as %+v", id)
	}
	if got := len(cp.Refusals(t)); got != 1 {
		t.Errorf("%d refusals, want the one of the first proof's time", got)
	}
	cp2, m2, node2 := expiredMachine(t, 2*time.Hour, true)
	m2.euid = func() int { return 0 }
	m2.now = func() time.Time { return cp2.Clock.Now().Add(-10 * time.Minute) }
	if result, err := m2.reset("", byX509PoP); err != nil || result.NodeID != node2 {
		t.Errorf("%+v, %v", result, err)
	}
}

// A gateway that forges the answer, or is away, is no reason to park: the node tries again.
func TestExpiredNodeTriesAgain(t *testing.T) {
	cp, m, node := expiredMachine(t, time.Hour, true)
	relay := cp.Relay(t)
	m.url = relay.URL
	forged := 0
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)) (*daemonv1.JoinResponse, error) {
		resp, err := next(req)
		if err == nil && forged == 0 {
			forged++
			resp = proto.Clone(resp).(*daemonv1.JoinResponse)
			resp.Body[len(resp.Body)-1] ^= 1
		}
		return resp, err
	})
	m.run()
	eventually(t, "connected\n"+m.log.String(), 45*time.Second, func() bool { return m.status().State == agent.Connected })
	if s := m.status(); s.Identity.NodeID != node || forged != 1 || m.log.count("check signature") == 0 {
		t.Errorf("status %+v, %d forged", s, forged)
	}
}

// A gateway whose clock is days ahead calls each certificate expired. The node gets one new certificate for that, and parks: it
// must not take one after the other from the control plane.
func TestAGatewayThatCallsEachCertificateExpired(t *testing.T) {
	clock := &controlplanetest.Clock{}
	o := controlplanetest.Options{Clock: clock, AnswerAtOnce: true}
	o.Attestors.X509PoP = &controlplane.X509PoPConfig{}
	cp := controlplanetest.Start(t, o)
	m, _ := joinedMachine(t, cp)
	m.now = clock.Now
	m.url = cp.Gateway(t, func(o *gateway.Options) { o.Now = func() time.Time { return clock.Now().Add(48 * time.Hour) } })
	m.run()
	s := m.waitFor(agent.Parked)
	if !strings.Contains(s.Problem, "the gateway says that this node's certificate has expired") {
		t.Errorf("status %+v", s)
	}
	if got := m.log.count("join again with expired certificate"); got != 1 {
		t.Errorf("it joined again %d times", got)
	}
}

// The same by hand: the certificate's key joins the machine again as the node that it is, in its generation.
// Req: RS-015
func TestResetByTheOldCertificate(t *testing.T) {
	_, m, node := expiredMachine(t, time.Hour, true)
	asRoot(m)
	old := m.contents()
	result, err := m.reset("is not read", byX509PoP)
	if err != nil || result.NodeID != node {
		t.Fatalf("%+v, %v\n%s", result, err, m.log)
	}
	m.movedAside(old)
	if id := m.connects(); id.NodeID != node || id.Generation != 1 {
		t.Errorf("connected as %+v", id)
	}
}

func TestResetByTheOldCertificateIsRefused(t *testing.T) {
	for name, tc := range map[string]struct {
		ago     time.Duration
		x509pop bool
	}{"not configured": {time.Hour, false}, "too late": {8 * 24 * time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			_, m, _ := expiredMachine(t, tc.ago, tc.x509pop)
			asRoot(m)
			old := m.contents()
			if _, err := m.reset("", byX509PoP); !fault.Is(err, fault.AccessDenied) || !strings.Contains(fault.HintOf(err), "bcd join --reset --yes") {
				t.Errorf("%v (hint %q)", err, fault.HintOf(err))
			}
			m.keeps(old)
		})
	}
}

// A node of a tenant's cluster stays one.
func TestExpiredTenantNodeComesBack(t *testing.T) {
	clock := &controlplanetest.Clock{}
	cp := controlplanetest.Start(t, controlplanetest.Options{
		Clock: clock, AnswerAtOnce: true, Attestors: controlplane.AttestorsConfig{X509PoP: &controlplane.X509PoPConfig{}},
	})
	m := newMachine(t, cp)
	m.now = clock.Now
	if _, err := m.join(cp.NewToken(t, tokens.CreateRequest{Hosted: "kubernetes"})); err != nil {
		t.Fatal(err)
	}
	clock.Advance(25 * time.Hour)
	m.url = cp.Gateway(t, nil)
	if id := m.connects(); id.Role != "node-tenant" {
		t.Errorf("connected as %+v", id)
	}
}

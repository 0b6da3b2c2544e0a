package agent_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// joinSite joins a machine as a site agent and returns its node id.
func (m *machine) joinSite() string {
	m.t.Helper()
	token := m.cp.IssueToken(m.t, tokens.IssueRequest{Role: store.TokenSite})
	result, err := m.agent().Join(m.t.Context(), agent.JoinOptions{Stdin: strings.NewReader(token), Role: identity.RoleSite, Patience: 3 * time.Second})
	if err != nil {
		m.t.Fatal(err)
	}
	return result.NodeID
}

// runSite runs the site agent's daemon, as run runs a node's.
func (m *machine) runSite() (stop func() error) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	a := m.agent()
	go func() { ended <- a.RunSite(ctx, agent.Notifier{}) }()
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	m.t.Cleanup(func() { _ = stop() })
	return stop
}

// siteAgent returns a site agent with a session, and its node id.
func siteAgent(t *testing.T, cp *controlplanetest.ControlPlane, url string) (*machine, string) {
	t.Helper()
	m := newMachine(t, cp)
	m.url = url
	node := m.joinSite()
	m.runSite()
	m.waitFor(agent.Connected)
	return m, node
}

func (m *machine) vouch(mac string, epoch uint64) error {
	m.t.Helper()
	return agent.RequestVouch(m.t.Context(), m.socket(), agent.Vouch{BootMAC: mac, BootLeaseEpoch: epoch})
}

// vouched returns the lease of a MAC that the control plane has recorded; 0 is none.
func (m *machine) vouched(mac string) (v store.Vouch) {
	m.t.Helper()
	m.cp.Read(m.t, func(tx *store.Tx) (err error) {
		v, err = tx.Vouch(m.cp.Site, mac)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	return v
}

// A site agent joins with its own role, holds a session, and what it vouches for is recorded under its name.
// Req: SS-006
func TestSiteAgentVouches(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, node := siteAgent(t, cp, cp.GatewayURL)
	s := m.status()
	if s.Identity.Role != identity.RoleSite || s.VouchesWaiting == nil || *s.VouchesWaiting != 0 {
		t.Errorf("status %+v", s)
	}
	if err := m.vouch("B4-96-91-A7-00-01", 7); err != nil {
		t.Fatal(err)
	}
	if v := m.vouched(vouchMAC); v.BootLeaseEpoch != 7 || v.NodeID != node || time.Since(v.VouchedAt) > time.Minute {
		t.Errorf("recorded %+v", v)
	}
	if err := m.vouch(vouchMAC, 7); err != nil {
		t.Errorf("the same vouch again: %v", err)
	}
	err := m.vouch(vouchMAC, 6)
	if fault.CodeOf(err).Exit() != 77 || !strings.Contains(err.Error(), "refuses the vouch for "+vouchMAC) || fault.HintOf(err) == "" {
		t.Errorf("an older lease: %v", err)
	}
	if v := m.vouched(vouchMAC); v.BootLeaseEpoch != 7 {
		t.Errorf("recorded %+v", v)
	}
}

func TestManyVouchesAtOnce(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := siteAgent(t, cp, cp.GatewayURL)
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			if err := m.vouch(fmt.Sprintf("b4:96:91:a7:00:%02x", i), uint64(1+i)); err != nil {
				t.Errorf("machine %d: %v", i, err)
			}
		})
	}
	all.Wait()
	for i := range 40 {
		if v := m.vouched(fmt.Sprintf("b4:96:91:a7:00:%02x", i)); v.BootLeaseEpoch != int64(1+i) {
			t.Errorf("machine %d: %+v", i, v)
		}
	}
}

// After a renewal the next key signs, on the session that presents its certificate.
func TestVouchesAcrossRenewals(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 4 * time.Second})
	m, node := siteAgent(t, cp, cp.GatewayURL)
	for epoch := uint64(1); m.log.count("msg=renewed") < 2; epoch++ {
		if err := m.vouch(vouchMAC, epoch); err != nil {
			t.Fatalf("lease %d: %v\n%s", epoch, err, m.log)
		}
		if v := m.vouched(vouchMAC); v.BootLeaseEpoch != int64(epoch) || v.NodeID != node {
			t.Fatalf("lease %d: %+v", epoch, v)
		}
		time.Sleep(50 * time.Millisecond)
	}
	for _, e := range cp.Events(t) {
		if e.Type == events.TypeVouchRefused {
			t.Errorf("event %s", e.Data)
		}
	}
	if s := m.status(); s.Identity.NodeID != node || s.Identity.Role != identity.RoleSite {
		t.Errorf("status %+v", s)
	}
}

// What cannot be sent is kept, the newest lease of each machine, and sent when the gateway is back.
func TestVouchesAreKeptUntilThereIsASession(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	t.Cleanup(agent.SetAfterSession(100 * time.Millisecond))
	m, _ := siteAgent(t, cp, cp.GatewayURL)
	cp.StopGateway(t)
	m.waitFor(agent.Connecting)
	for epoch := uint64(1); epoch <= 2; epoch++ {
		err := m.vouch(vouchMAC, epoch)
		if fault.CodeOf(err).Exit() != 75 || !strings.Contains(err.Error(), "the site agent is connecting") || !strings.Contains(fault.HintOf(err), "keeps the vouch") {
			t.Errorf("without a session: %v", err)
		}
	}
	if err := m.vouch("b4:96:91:a7:00:02", 1); fault.CodeOf(err).Exit() != 75 {
		t.Errorf("without a session: %v", err)
	}
	if n := m.status().VouchesWaiting; n == nil || *n != 2 {
		t.Errorf("%v wait, want 2", n)
	}
	cp.StartGateway(t)
	eventually(t, "recorded\n"+m.log.String(), 10*time.Second, func() bool {
		return m.vouched(vouchMAC).BootLeaseEpoch == 2 && m.vouched("b4:96:91:a7:00:02").BootLeaseEpoch == 1
	})
	eventually(t, "none waits", 5*time.Second, func() bool { return *m.status().VouchesWaiting == 0 })
}

// A revoked site agent parks, and its vouches are not recorded.
func TestRevokedSiteAgent(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	t.Cleanup(agent.SetAfterSession(100 * time.Millisecond))
	m, node := siteAgent(t, cp, cp.GatewayURL)
	revokeIdentity(t, cp, node)
	eventually(t, "parked\n"+m.log.String(), 90*time.Second, func() bool { return m.status().State != agent.Connected })
	if err := m.vouch(vouchMAC, 1); fault.CodeOf(err).Exit() != 75 {
		t.Errorf("error %v", err)
	}
	if v := m.vouched(vouchMAC); v.BootLeaseEpoch != 0 {
		t.Errorf("recorded %+v", v)
	}
}

// Each daemon ends on the other's identity, and says which command fits.
func TestTheRoleSaysWhichDaemonRuns(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	site := newMachine(t, cp)
	site.joinSite()
	node := newMachine(t, cp)
	node.host = anotherHost(t, "node")
	if _, err := node.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	for hint, err := range map[string]error{
		`run "bcd site"`: site.agent().Run(t.Context(), agent.Notifier{}),
		`run "bcd node"`: node.agent().RunSite(t.Context(), agent.Notifier{}),
	} {
		if fault.CodeOf(err).Exit() != 78 || fault.HintOf(err) != hint {
			t.Errorf("error %v with hint %q, want %q", err, fault.HintOf(err), hint)
		}
		site.unlocked()
		node.unlocked()
	}
	if err := newMachine(t, cp).agent().RunSite(t.Context(), agent.Notifier{}); !fault.Is(err, fault.NoIdentity) {
		t.Errorf("a machine that has not joined: %v", err)
	}
	node.run()
	node.waitFor(agent.Connected)
	if err := node.vouch(vouchMAC, 1); fault.CodeOf(err).Exit() != 78 || !strings.Contains(err.Error(), "is no site agent") {
		t.Errorf("a vouch by a node: %v", err)
	}
	if node.status().VouchesWaiting != nil {
		t.Error("a node counts vouches")
	}
}

// A token of another role admits no site agent, and a site token no node.
func TestSiteTokensAdmitSiteAgents(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	for role, token := range map[string]string{
		identity.RoleSite: newToken(t, cp, 1),
		identity.RoleNode: cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenSite}),
	} {
		m := newMachine(t, cp)
		_, err := m.agent().Join(t.Context(), agent.JoinOptions{Stdin: strings.NewReader(token), Role: role, Patience: time.Second})
		if !fault.Is(err, fault.AccessDenied) {
			t.Errorf("role %s: %v", role, err)
		}
	}
	for _, reason := range cp.Refusals(t) {
		if reason != "join-token:role-mismatch" {
			t.Errorf("reason %s", reason)
		}
	}
}

func TestVouchWithoutADaemon(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	err := newMachine(t, cp).vouch(vouchMAC, 1)
	if fault.CodeOf(err).Exit() != 75 || fault.HintOf(err) != "start it: bcd site" {
		t.Errorf("error %v, hint %q", err, fault.HintOf(err))
	}
}

// The status socket takes a vouch and nothing else.
func TestVouchesThatAreNone(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := siteAgent(t, cp, cp.GatewayURL)
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", m.socket())
	}}}
	defer client.CloseIdleConnections()
	for _, body := range []string{
		``, `{`, `null`, `[]`, `{}`, `{"boot_mac":"b4:96:91:a7:00:01"}`, `{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":0}`,
		`{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":9223372036854775808}`, `{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":-1}`,
		`{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":1.5}`, `{"boot_mac":"ff:ff:ff:ff:ff:ff","boot_lease_epoch":1}`,
		`{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":1,"more":1}`, `{"boot_mac":"b4:96:91:a7:00:01","boot_lease_epoch":1} {}`,
		`{"boot_mac":"` + strings.Repeat("b", 1<<20) + `","boot_lease_epoch":1}`,
	} {
		resp, err := client.Post("http://bcd/v1/vouch", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), `"code":"INVALID_ARGUMENT"`) {
			t.Errorf("%.60s: %s %s", body, resp.Status, text)
		}
	}
	if n := *m.status().VouchesWaiting; n != 0 || m.vouched(vouchMAC).BootLeaseEpoch != 0 {
		t.Errorf("%d wait", n)
	}
}

// A gateway that has its way with vouches can keep them from being recorded, and nothing else: it cannot make one, change
// one, or say of one machine what was said of another.
func TestRelayCanOnlyDenyVouches(t *testing.T) {
	const other = "b4:96:91:a7:00:02"
	type next = func(*joinv1.VouchRequest) (*daemonv1.VouchAck, error)
	change := func(req *joinv1.VouchRequest, f func(*daemonv1.VouchBody)) *joinv1.VouchRequest {
		var body daemonv1.VouchBody
		if err := proto.Unmarshal(req.GetVouch().GetBody(), &body); err != nil {
			t.Error(err)
		}
		f(&body)
		b, err := proto.Marshal(&body)
		if err != nil {
			t.Error(err)
		}
		req.Vouch.Body = b
		return req
	}
	falseAck := func(req *joinv1.VouchRequest, recorded bool) *daemonv1.VouchAck {
		sum := sha256.Sum256(req.GetVouch().GetBody())
		return &daemonv1.VouchAck{VouchSha256: sum[:], Recorded: recorded}
	}
	for name, c := range map[string]struct {
		hook func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error)
		exit int // of the command
		// recorded says that the truth is recorded all the same.
		recorded bool
	}{
		"drops": {func(*joinv1.VouchRequest, next) (*daemonv1.VouchAck, error) {
			return nil, status.Error(codes.Unavailable, "dropped")
		}, 75, false},
		"says that it is recorded": {func(req *joinv1.VouchRequest, _ next) (*daemonv1.VouchAck, error) {
			return falseAck(req, true), nil
		}, 0, false},
		"says that it is refused": {func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
			_, _ = next(req)
			return falseAck(req, false), nil
		}, 77, true},
		"answers another": {func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
			_, err := next(req)
			return &daemonv1.VouchAck{VouchSha256: []byte("another"), Recorded: true}, err
		}, 75, true},
		"changes the MAC": {func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
			return next(change(req, func(b *daemonv1.VouchBody) { b.Mac = other }))
		}, 75, false},
		"changes the lease": {func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
			return next(change(req, func(b *daemonv1.VouchBody) { b.BootLeaseEpoch = 99 }))
		}, 75, false},
		"changes the site": {func(req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
			return next(change(req, func(b *daemonv1.VouchBody) { b.Site = "site_other" }))
		}, 75, false},
		"plays it many times": {func(req *joinv1.VouchRequest, next next) (ack *daemonv1.VouchAck, err error) {
			for range 5 {
				ack, err = next(req)
			}
			return ack, err
		}, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
			t.Cleanup(agent.SetVouchAnswer(300 * time.Millisecond))
			t.Cleanup(agent.SetVouchDeadline(400 * time.Millisecond))
			relay := cp.Relay(t)
			m, node := siteAgent(t, cp, relay.URL)
			t.Cleanup(func() { relay.OnVouch(nil) })
			relay.OnVouch(func(_ context.Context, req *joinv1.VouchRequest, next next) (*daemonv1.VouchAck, error) {
				return c.hook(req, next)
			})
			if err := m.vouch(vouchMAC, 7); (err != nil) != (c.exit != 0) || err != nil && fault.CodeOf(err).Exit() != c.exit {
				t.Errorf("error %v, want exit status %d", err, c.exit)
			}
			v := m.vouched(vouchMAC)
			if v.BootLeaseEpoch != map[bool]int64{true: 7}[c.recorded] || c.recorded && v.NodeID != node {
				t.Errorf("recorded %+v", v)
			}
			if v := m.vouched(other); v.BootLeaseEpoch != 0 {
				t.Errorf("recorded %+v", v)
			}
			if s := m.status(); s.State != agent.Connected {
				t.Errorf("the session is %s", s.State)
			}
			if c.exit != 75 {
				return
			}
			relay.OnVouch(nil) // an honest gateway again: what was kept is recorded
			eventually(t, "recorded\n"+m.log.String(), 10*time.Second, func() bool { return m.vouched(vouchMAC).BootLeaseEpoch == 7 })
		})
	}
}

// A relay with a node's certificate at hand cannot make it vouch: the key that signs is not its.
func TestRelayCannotVouchByItself(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	m, node := siteAgent(t, cp, relay.URL)
	var kept atomic.Pointer[joinv1.VouchRequest]
	relay.OnVouch(func(_ context.Context, req *joinv1.VouchRequest, next func(*joinv1.VouchRequest) (*daemonv1.VouchAck, error)) (*daemonv1.VouchAck, error) {
		kept.Store(proto.CloneOf(req))
		return next(req)
	})
	if err := m.vouch(vouchMAC, 1); err != nil {
		t.Fatal(err)
	}
	body, err := proto.Marshal(&daemonv1.VouchBody{
		NodeId: node, Site: cp.Site, Mac: vouchMAC, BootLeaseEpoch: 2, IssuedAtUnixMs: time.Now().UnixMilli(),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, sig := range [][]byte{nil, kept.Load().GetVouch().GetSig()} {
		ack, err := relay.JoinService.Vouch(t.Context(), &joinv1.VouchRequest{Peer: kept.Load().GetPeer(), Vouch: &daemonv1.Vouch{Body: body, Sig: sig}})
		if err != nil || ack.GetRecorded() {
			t.Errorf("answer %v, %v", ack, err)
		}
	}
	if v := m.vouched(vouchMAC); v.BootLeaseEpoch != 1 {
		t.Errorf("recorded %+v", v)
	}
	for _, e := range cp.Events(t) {
		if e.Type == events.TypeVouchRefused {
			t.Errorf("the relay wrote the event %s", e.Data)
		}
	}
}

// A machine whose clock is wrong vouches all the same, by the time that the gateway hints at; and where that is wrong, by its
// own.
func TestVouchesWithAWrongClock(t *testing.T) {
	for name, c := range map[string]struct{ machine, gateway time.Duration }{
		"the machine's": {20 * time.Minute, 0}, "the gateway's": {0, 20 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
			relay := cp.Relay(t)
			relay.OnSession(nil, func(e *joinv1.SessionEvent) *joinv1.SessionEvent {
				if w := e.GetOpened().GetWelcome(); w != nil {
					w.ServerTimeUnixMs += c.gateway.Milliseconds()
				}
				return e
			})
			m := newMachine(t, cp)
			m.url = relay.URL
			m.joinSite()
			m.now = func() time.Time { return time.Now().Add(c.machine) } // a new daemon has no signed time
			m.runSite()
			m.waitFor(agent.Connected)
			if err := m.vouch(vouchMAC, 1); err != nil {
				t.Errorf("%v\n%s", err, m.log)
			}
			if v := m.vouched(vouchMAC); v.BootLeaseEpoch != 1 {
				t.Errorf("recorded %+v", v)
			}
		})
	}
}

// Whoever decides on a discovered machine sees which site agent saw it boot, whether the vouch or the machine came first; and
// nothing of an agent that saw another boot.
// Req: AP-042
func TestAJoinRequestNamesWhoVouched(t *testing.T) {
	for name, c := range map[string]struct {
		before, after uint64 // the boot leases that are vouched for before and after the machine asks with lease 7; 0 is none
		want          bool
	}{
		"nobody": {0, 0, false}, "before": {7, 0, true}, "after": {0, 7, true}, "an earlier boot": {6, 0, false},
		"a later boot": {0, 8, false}, "the earlier boot first": {6, 7, true},
	} {
		t.Run(name, func(t *testing.T) {
			cp := startDiscovery(t, joinservice.ApproveUnknown, controlplanetest.Options{})
			site, node := siteAgent(t, cp, cp.GatewayURL)
			vouch := func(epoch uint64) {
				if epoch == 0 {
					return
				}
				if err := site.vouch(bootMAC, epoch); err != nil {
					t.Fatal(err)
				}
			}
			m := newMachine(t, cp)
			m.host = anotherHost(t, "discovered")
			vouch(c.before)
			o := agent.JoinOptions{Stdin: strings.NewReader(discoveryToken(t, cp)), NoWait: true}
			discovering(&o)
			if _, err := m.agent().Join(t.Context(), o); !fault.Is(err, fault.Pending) {
				t.Fatalf("the join ended with %v", err)
			}
			vouch(c.after)
			got := pendingRequest(t, cp)
			if vouched := got.VouchedBy == node && got.BootLeaseEpoch == 7; vouched != c.want || !c.want && (got.VouchedBy != "" || got.BootLeaseEpoch != 0) {
				t.Errorf("vouched by %q for %d, want %v", got.VouchedBy, got.BootLeaseEpoch, c.want)
			}
		})
	}
}

// What --node-id names is in the request, under the machine's signature.
// Req: AT-012
func TestNodeIDReachesTheRequest(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	m, node := joinedMachine(t, cp)
	again := newMachine(t, cp)
	again.url = relay.URL
	token := cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenProvisioned, NodeID: node})
	result, err := again.agent().Join(t.Context(), agent.JoinOptions{Stdin: strings.NewReader(token), NodeID: node, Patience: 3 * time.Second})
	if err != nil || result.NodeID != node {
		t.Errorf("joined as %q, %v, want %q", result.NodeID, err, node)
	}
	var body daemonv1.JoinRequestBody
	if err := proto.Unmarshal(relay.Joins()[0].GetRequest().GetBody(), &body); err != nil {
		t.Fatal(err)
	}
	if body.GetNodeId() != node || body.GetRole() != identity.RoleNode {
		t.Errorf("the request names %q as %q, want %q", body.GetNodeId(), body.GetRole(), node)
	}
	m.run() // whose identity was replaced
	m.waitFor(agent.Parked)
}

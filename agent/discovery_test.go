package agent_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// bootMAC is a permanent address of the recorded server.
const bootMAC = "70:b5:e8:00:50:28"

// startDiscovery starts a control plane that takes ramdisks by a rule.
func startDiscovery(t *testing.T, rule joinservice.ApprovalRule, o controlplanetest.Options) *controlplanetest.ControlPlane {
	t.Helper()
	o.AnswerAtOnce = true
	o.Attestors = controlplane.AttestorsConfig{Discovery: &controlplane.DiscoveryConfig{Approval: rule, PendingTTLSeconds: 60}}
	return controlplanetest.Start(t, o)
}

// discoveryToken makes a token for the machine with bootMAC.
func discoveryToken(t *testing.T, cp *controlplanetest.ControlPlane) string {
	t.Helper()
	return cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: bootMAC})
}

func discovering(o *agent.JoinOptions) {
	o.Attestor, o.BootMAC, o.BootLeaseEpoch = agent.AttestorDiscovery, bootMAC, 7
}

// discover joins as a ramdisk. during is called at each wait.
func (m *machine) discover(token string, during func(wait int)) (result agent.JoinResult, said []agent.JoinWait, err error) {
	m.t.Helper()
	n := 0
	m.sleep = func(ctx context.Context, _ time.Duration) error {
		n++
		during(n)
		return context.Cause(ctx)
	}
	defer func() { m.sleep = nil }()
	o := agent.JoinOptions{Stdin: strings.NewReader(token), OnWait: func(w agent.JoinWait) { said = append(said, w) }}
	discovering(&o)
	result, err = m.agent().Join(m.t.Context(), o)
	return result, said, err
}

// pendingRequest is the one join request that waits.
func pendingRequest(t *testing.T, cp *controlplanetest.ControlPlane) store.JoinRequest {
	t.Helper()
	page, err := (&approvals.Service{Store: cp.Store()}).List(t.Context(), approvals.ListRequest{TenantID: cp.Tenant, PoolID: cp.Pool})
	if err != nil || len(page.Requests) != 1 {
		t.Fatalf("join requests %+v, %v", page.Requests, err)
	}
	return page.Requests[0]
}

func approve(t *testing.T, cp *controlplanetest.ControlPlane) {
	t.Helper()
	r := pendingRequest(t, cp)
	if _, err := (&approvals.Service{Store: cp.Store()}).Approve(t.Context(), "operator", approvals.ApproveRequest{TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: r.ID, CSRSHA256: &r.CSRSHA256}); err != nil {
		t.Fatal(err)
	}
}

func reject(t *testing.T, cp *controlplanetest.ControlPlane) {
	t.Helper()
	if _, err := (&approvals.Service{Store: cp.Store()}).Reject(t.Context(), "operator", approvals.RejectRequest{TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: pendingRequest(t, cp).ID, Reason: "unknown"}); err != nil {
		t.Fatal(err)
	}
}

// A machine that booted from the network and that nobody expected waits, through a restart of the control plane, until an
// operator lets it in as a ramdisk. The next boot, without a disk, is that of a known machine.
// Req: AP-002 AP-004 AP-005
func TestDiscoveredMachineIsApproved(t *testing.T) {
	cp := startDiscovery(t, joinservice.ApproveUnknown, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := discoveryToken(t, cp)
	var request store.JoinRequest
	result, said, err := m.discover(token, func(wait int) {
		switch wait {
		case 1:
			request = pendingRequest(t, cp)
			if left := usesLeft(t, cp, token); left != 1 {
				t.Errorf("%d uses left", left)
			}
		case 2:
			cp.Restart(t)
		case 3:
			cp.StopGateway(t)
		case 6:
			cp.StartGateway(t)
		case 7:
			approve(t, cp)
		}
	})
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	if want := []agent.JoinWait{{RequestID: request.ID}}; !slices.Equal(said, want) || !strings.HasPrefix(request.ID, "jreq_") {
		t.Errorf("said %v, want %v", said, want)
	}
	if request.Attestor != "discovery" || request.MAC != bootMAC || request.Role != store.RoleRamdisk || request.ClaimedEpoch != 7 {
		t.Errorf("join request %+v", request)
	}
	if left := usesLeft(t, cp, token); left != 0 {
		t.Errorf("%d uses left", left)
	}
	if id := m.connects(); id.NodeID != result.NodeID || id.Role != "ramdisk" || id.NotAfter.Sub(id.NotBefore) > identity.MaxRamdiskLifetime {
		t.Errorf("connected as %+v", id)
	}

	again := newMachine(t, cp)
	known, said, err := again.discover(discoveryToken(t, cp), func(int) { t.Error("it waits") })
	if err != nil || known.NodeID != result.NodeID || len(said) != 0 {
		t.Errorf("the next boot: %+v, %v, %v", known, said, err)
	}
}

// An operator's no ends the wait; the next run asks again, and its request is another one.
func TestDiscoveredMachineIsRejected(t *testing.T) {
	cp := startDiscovery(t, joinservice.ApproveAlways, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := discoveryToken(t, cp)
	_, first, err := m.discover(token, func(int) { reject(t, cp) })
	if fault.CodeOf(err).Exit() != 77 || len(first) != 1 || !strings.Contains(err.Error(), "the join request "+first[0].RequestID+" was not approved") {
		t.Fatalf("error %v after %v", err, first)
	}
	result, second, err := m.discover(token, func(int) { approve(t, cp) })
	if err != nil || len(second) != 1 || second[0] == first[0] {
		t.Fatalf("%v after %v\n%s", err, second, m.log)
	}
	if id := m.connects(); id.NodeID != result.NodeID {
		t.Errorf("connected as %s", id.NodeID)
	}
	if got := cp.Refusals(t); !slices.Equal(got, []string{"discovery:rejected", "discovery:rejected"}) {
		t.Errorf("refusals %q", got)
	}
}

// A request that nobody decided in time is followed by another one.
func TestDiscoveredMachineWaitsForTheNextRequest(t *testing.T) {
	cp := startDiscovery(t, joinservice.ApproveAlways, controlplanetest.Options{})
	m := newMachine(t, cp)
	m.now = cp.Clock.Now
	_, said, err := m.discover(discoveryToken(t, cp), func(wait int) {
		if wait == 1 {
			cp.Clock.Advance(2 * time.Minute)
		} else {
			approve(t, cp)
		}
	})
	if err != nil || len(said) != 2 || said[1].Replaces != said[0].RequestID || said[1].RequestID == said[0].RequestID {
		t.Errorf("%v after %v", err, said)
	}
}

// A hardware address that is not the machine's ends the join before anything is sent or written; its own may be spelled in
// every way.
func TestBootMAC(t *testing.T) {
	cp := startDiscovery(t, joinservice.ApproveNever, controlplanetest.Options{})
	token := discoveryToken(t, cp)
	join := func(m *machine, mac string) error {
		_, _, _, err := m.waiting(token, func(o *agent.JoinOptions) {
			discovering(o)
			o.BootMAC = mac
		})
		return err
	}
	m := newMachine(t, cp)
	m.url = "https://127.0.0.1:1"
	for _, mac := range []string{"70:b5:e8:00:50:2a", "d0:8e:79:00:00:3b", "02:00:00:00:00:01"} { // another, the BMC's, a local one
		err := join(m, mac)
		if !fault.Is(err, fault.Usage) || !strings.Contains(err.Error(), mac) || !strings.Contains(fault.HintOf(err), bootMAC) {
			t.Errorf("%s: error %v, hint %q", mac, err, fault.HintOf(err))
		}
	}
	m.host = t.TempDir()
	if err := join(m, bootMAC); !fault.Is(err, fault.Usage) || !strings.Contains(fault.HintOf(err), "bcd claims") {
		t.Errorf("without any: error %v, hint %q", err, fault.HintOf(err))
	}
	if got := m.files(); len(got) != 0 {
		t.Errorf("files %q", got)
	}
	m = newMachine(t, cp)
	if err := join(m, "70-B5-E8-00-50-28"); err != nil {
		t.Errorf("in capitals: %v", err)
	}
}

// A join with another attestor is another join, with another key. That the one before waits for an operator is said.
func TestAnotherAttestorIsAnotherJoin(t *testing.T) {
	cp := startDiscovery(t, joinservice.ApproveAlways, controlplanetest.Options{})
	m := newMachine(t, cp)
	_, _, _, err := m.waiting(discoveryToken(t, cp), func(o *agent.JoinOptions) {
		discovering(o)
		o.NoWait = true
	})
	if !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	request := pendingRequest(t, cp)
	if _, err := m.join(""); !fault.Is(err, fault.Token) || strings.Contains(err.Error(), request.ID) {
		t.Errorf("without a token: %v", err)
	}
	if !strings.Contains(m.pendingFile(), request.ID) {
		t.Error("the join that waits is gone before the other one began")
	}
	result, err := m.join(newToken(t, cp, 1))
	if err != nil {
		t.Fatal(err)
	}
	if id := m.connects(); id.NodeID != result.NodeID || id.Role != "node" {
		t.Errorf("connected as %+v", id)
	}
	if got := m.log.count(`msg="begin another join than the one that waits" request=` + request.ID + " attestor=discovery"); got != 2 {
		t.Errorf("it is said %d times:\n%s", got, m.log)
	}
}

// Options that do not go together are refused before anything is read.
// The names of the flags are those of bcd join.
func TestJoinOptions(t *testing.T) {
	for name, c := range map[string]struct {
		o  agent.JoinOptions
		ok bool
	}{
		"nothing":                      {agent.JoinOptions{}, true},
		"a join token":                 {agent.JoinOptions{Attestor: "join-token", Role: "site"}, true},
		"discovery":                    {agent.JoinOptions{Attestor: "discovery", BootMAC: bootMAC}, true},
		"discovery as a ramdisk":       {agent.JoinOptions{Attestor: "discovery", BootMAC: bootMAC, Role: "ramdisk", BootLeaseEpoch: 1<<63 - 1}, true},
		"another attestor":             {agent.JoinOptions{Attestor: "password"}, false},
		"an attestor in capitals":      {agent.JoinOptions{Attestor: "Discovery", BootMAC: bootMAC}, false},
		"discovery without an address": {agent.JoinOptions{Attestor: "discovery"}, false},
		"no hardware address":          {agent.JoinOptions{Attestor: "discovery", BootMAC: "70:b5:e8:00:50"}, false},
		"discovery as a node":          {agent.JoinOptions{Attestor: "discovery", BootMAC: bootMAC, Role: "node"}, false},
		"a ramdisk by a join token":    {agent.JoinOptions{Role: "ramdisk"}, false},
		"an address for a join token":  {agent.JoinOptions{BootMAC: bootMAC}, false},
		"a lease for a join token":     {agent.JoinOptions{BootLeaseEpoch: 1}, false},
		"a lease that is too late":     {agent.JoinOptions{Attestor: "discovery", BootMAC: bootMAC, BootLeaseEpoch: 1 << 63}, false},
		"the old certificate":          {agent.JoinOptions{Attestor: "x509pop", Reset: true}, true},
		"the old one of a site agent":  {agent.JoinOptions{Attestor: "x509pop", Reset: true, Role: "site"}, true},
		"it without a reset":           {agent.JoinOptions{Attestor: "x509pop"}, false},
		"it with a token":              {agent.JoinOptions{Attestor: "x509pop", Reset: true, TokenFile: "token"}, false},
		"a reset":                      {agent.JoinOptions{Reset: true}, true},
		"a reset without a join":       {agent.JoinOptions{Reset: true, NoJoin: true}, true},
		"no join and a token":          {agent.JoinOptions{Reset: true, NoJoin: true, TokenFile: "token"}, false},
		"no join without a reset":      {agent.JoinOptions{NoJoin: true}, false},
		"no patience":                  {agent.JoinOptions{Patience: -1}, false},
	} {
		if err := c.o.Validate(); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	if _, err := m.agent().Join(t.Context(), agent.JoinOptions{Attestor: "password"}); !fault.Is(err, fault.Usage) || !strings.Contains(err.Error(), "join-token, tpm, discovery and x509pop") {
		t.Errorf("error %v", err)
	}
}

// The daemon runs a ramdisk as any node: session, and renewals that keep role and lifetime.
func TestRamdiskRenews(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := startDiscovery(t, joinservice.ApproveNever, controlplanetest.Options{CertTTL: 5 * time.Second})
	m := newMachine(t, cp)
	if _, _, err := m.discover(discoveryToken(t, cp), func(int) { t.Error("it waits") }); err != nil {
		t.Fatal(err)
	}
	first := m.storedSerial()
	stop := m.run()
	eventually(t, "renewed\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	if id := m.waitFor(agent.Connected).Identity; id.Role != "ramdisk" || id.Serial == first {
		t.Errorf("identity %+v", id)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}

	// Where the control plane's certificates last a day, a ramdisk's last two hours, at once and after a renewal.
	cp = startDiscovery(t, joinservice.ApproveNever, controlplanetest.Options{})
	m = newMachine(t, cp)
	m.now = cp.Clock.Now
	if _, _, err := m.discover(discoveryToken(t, cp), func(int) { t.Error("it waits") }); err != nil {
		t.Fatal(err)
	}
	node, serial := m.connects().NodeID, m.storedSerial()
	cp.Clock.Advance(dueAfter)
	m.mustRenew(node, serial)
	s, err := m.agent().StoppedStatus()
	if err != nil || s.Identity.NotAfter.Sub(s.Identity.NotBefore) > identity.MaxRamdiskLifetime || s.Identity.Role != "ramdisk" {
		t.Errorf("status %+v, %v", s.Identity, err)
	}
}

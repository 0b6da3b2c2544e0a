package joinservice_test

import (
	"context"
	"encoding/hex"
	"slices"
	"strings"
	"testing"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// discovery switches on the attestor discovery beside the join token.
func discovery(rule joinservice.ApprovalRule, change ...func(*joinservice.Discovery)) func(*joinservice.Options) {
	return func(o *joinservice.Options) {
		d := joinservice.Discovery{Keys: o.Keys.Decryption, Approval: rule}
		for _, c := range change {
			c(&d)
		}
		o.Attestors = []joinservice.Attestor{joinservice.JoinToken{Keys: o.Keys.Decryption}, d}
	}
}

func pendingTTL(ttl time.Duration) func(*joinservice.Discovery) {
	return func(d *joinservice.Discovery) { d.PendingTTL = ttl }
}

// booted makes a Join that of a ramdisk which the machine booted by its first NIC, with boot lease 7.
func booted(m *machine) func(*call) { return bootedBy(m.claims.GetMacs()[0], 7) }

func bootedBy(mac string, epoch uint64) func(*call) {
	return func(c *call) {
		c.body.Attestor, c.body.Role = "discovery", "ramdisk"
		c.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Discovery{
			Discovery: &daemonv1.DiscoveryEvidence{BootMac: mac, BootLeaseEpoch: epoch},
		}}
	}
}

// discoveryToken is a token for the machine's first NIC, good for the pool.
func (w *world) discoveryToken(m *machine) token {
	w.t.Helper()
	return w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: w.pool, MAC: m.claims.GetMacs()[0], WorkflowID: "wf_intake"})
}

// siteDiscoveryToken is one that leaves the pool to whoever approves.
func (w *world) siteDiscoveryToken(m *machine) token {
	w.t.Helper()
	return w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, SiteID: w.site, MAC: m.claims.GetMacs()[0]})
}

// deferred sends a Join that must be deferred, and returns the deferral.
func (w *world) deferred(req *joinv1.JoinRequest) *daemonv1.Deferral {
	w.t.Helper()
	resp, err := w.svc.Join(context.Background(), req)
	if err != nil {
		w.t.Fatalf("join: %v%s", err, w.lastRefusal())
	}
	d := w.openBody(req, resp).GetDeferral()
	if d == nil {
		w.t.Fatal("the join is not deferred")
	}
	return d
}

func (w *world) joinRequest(id string) store.JoinRequest {
	w.t.Helper()
	return query(w, func(tx *store.Tx) (store.JoinRequest, error) { return tx.JoinRequest(id) })
}

// joinRequests are all requests of the pool and of its site.
func (w *world) joinRequests() []store.JoinRequest {
	w.t.Helper()
	return query(w, func(tx *store.Tx) ([]store.JoinRequest, error) {
		p, err := tx.Pool(w.pool)
		if err != nil {
			return nil, err
		}
		return tx.JoinRequestsOfPool(p, "", "", 10_000)
	})
}

func (w *world) approvals() *approvals.Service { return &approvals.Service{Store: w.store} }

func (w *world) approve(id string, change ...func(*approvals.ApproveRequest)) store.JoinRequest {
	w.t.Helper()
	r := approvals.ApproveRequest{TenantID: w.root, PoolID: w.pool, RequestID: id}
	for _, c := range change {
		c(&r)
	}
	made, err := w.approvals().Approve(context.Background(), "key_operator", r)
	if err != nil {
		w.t.Fatal(err)
	}
	return made
}

func (w *world) reject(id string) {
	w.t.Helper()
	if _, err := w.approvals().Reject(context.Background(), "key_operator", approvals.RejectRequest{
		TenantID: w.root, PoolID: w.pool, RequestID: id,
	}); err != nil {
		w.t.Fatal(err)
	}
}

// holdsNoSecret checks that no event, audit row, token or request holds the token's secret.
func (w *world) holdsNoSecret(tok token) {
	w.t.Helper()
	_, secret, _ := strings.Cut(string(tok.bearer), ".")
	for _, text := range w.everything() {
		if strings.Contains(text, secret) || strings.Contains(text, "bcjt_") {
			w.t.Errorf("a secret stands in %.200q", text)
		}
	}
}

// Which rule asks a person about which machine. This is discovery's half of AT-006; the other is the attestor tpm's, which is
// not there yet.
//
// Req: AT-006 AT-007 AP-046 AP-047 AP-003
func TestWhoIsAskedAboutADiscoveredMachine(t *testing.T) {
	for _, c := range []struct {
		rule   joinservice.ApprovalRule
		known  bool
		defers bool
	}{
		{joinservice.ApproveNever, false, false},
		{joinservice.ApproveNever, true, false},
		{joinservice.ApproveUnknown, false, true},
		{joinservice.ApproveUnknown, true, false},
		{"", false, true}, // the default
		{"", true, false},
		{joinservice.ApproveAlways, false, true},
		{joinservice.ApproveAlways, true, true},
	} {
		for _, pooled := range []bool{true, false} {
			w, m := newWorld(t, discovery(c.rule)), newMachine(t)
			if c.known {
				n := w.nodeRow("node_known", m.claims)
				n.Role = store.RoleRamdisk
				w.write(func(tx *store.Tx) error { return tx.InsertNode(n) })
			}
			tok := w.discoveryToken(m)
			if !pooled {
				tok = w.siteDiscoveryToken(m)
			}
			before := w.nodes()
			req := w.request(m, tok, booted(m))
			switch {
			case c.defers:
				d := w.deferred(req)
				r := w.joinRequest(d.GetRequestId())
				if wantPool := pooled || c.known; (r.PoolID == w.pool) != wantPool || r.PoolID != "" && !wantPool {
					t.Errorf("%q, known %v, pool %v: the request's pool is %q", c.rule, c.known, pooled, r.PoolID)
				}
				if len(w.nodes()) != len(before) || w.usesLeft(tok.ID) != 1 {
					t.Errorf("%q: %d nodes, %d uses left after a deferral", c.rule, len(w.nodes()), w.usesLeft(tok.ID))
				}
			case !pooled && !c.known:
				if e := w.refusedJoin(req, w.root); e.Reason != "join:pool" {
					t.Errorf("%q without a pool: reason %q", c.rule, e.Reason)
				}
			default:
				a := w.mustAdmit(req)
				n := w.node(a.GetNodeId())
				if (n.ID == "node_known") != c.known || n.PoolID != w.pool || w.usesLeft(tok.ID) != 0 || len(w.joinRequests()) != 0 {
					t.Errorf("%q, known %v: node %+v", c.rule, c.known, n)
				}
			}
			w.holdsNoSecret(tok)
		}
	}
}

// A machine is known as a ramdisk of the same tenant, site and pool. What is known as anything else is never asked about.
func TestAMachineThatIsAnotherNodeIsNotDeferred(t *testing.T) {
	for name, change := range map[string]func(w *world, n *store.Node){
		"a node":         func(_ *world, n *store.Node) { n.Role = store.RoleNode },
		"another pool":   func(w *world, n *store.Node) { n.PoolID = w.otherPool() },
		"another tenant": func(w *world, n *store.Node) { n.TenantID = w.other },
		"another site":   func(w *world, n *store.Node) { n.SiteID = w.otherSite() },
		"a retired one":  func(_ *world, n *store.Node) { n.State = store.NodeRetired },
	} {
		for _, rule := range joinservice.ApprovalRules {
			w, m := newWorld(t, discovery(rule)), newMachine(t)
			n := w.nodeRow("node_known", m.claims)
			n.Role = store.RoleRamdisk
			change(w, &n)
			w.write(func(tx *store.Tx) error {
				if err := tx.InsertNode(n); err != nil || n.State != store.NodeRetired {
					return err
				}
				return tx.SetNodeState(n.ID, store.NodeRetired)
			})
			if e := w.refusedJoin(w.request(m, w.discoveryToken(m), booted(m)), w.root); e.Reason != "join:reclaim" {
				t.Errorf("%s, %s: reason %q", name, rule, e.Reason)
			}
			if len(w.joinRequests()) != 0 {
				t.Errorf("%s, %s: a request was written", name, rule)
			}
		}
	}
}

// Req: RF-004 RF-005 RF-032
func TestDiscoveryRefusals(t *testing.T) {
	mac := func(s string) func(*world, *machine, *call) {
		return func(_ *world, _ *machine, c *call) { bootedBy(s, 1)(c) }
	}
	for name, c := range map[string]struct {
		reason string
		change func(w *world, m *machine, c *call)
	}{
		"no evidence": {"discovery:mac", func(_ *world, _ *machine, c *call) { c.body.Evidence = nil }},
		"other evidence": {"discovery:mac", func(_ *world, _ *machine, c *call) {
			c.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Tpm{}}
		}},
		"no MAC":               {"discovery:mac", mac("")},
		"no MAC at all":        {"discovery:mac", mac("b4:96:91")},
		"another MAC":          {"discovery:mac", mac("b4:96:91:ff:ff:01")},
		"a MAC not claimed":    {"discovery:mac", func(_ *world, m *machine, _ *call) { m.claims.Macs = []string{"b4:96:91:ff:ff:01"} }},
		"no token":             {"join:token", func(_ *world, _ *machine, c *call) { c.body.SealedToken = "x" }},
		"no bearer":            {"discovery:malformed", func(_ *world, _ *machine, c *call) { c.token = []byte("bcjt_x") }},
		"a node that it names": {"join:node-id", func(_ *world, _ *machine, c *call) { c.body.NodeId = "node_x" }},
		"another role":         {"discovery:role-mismatch", func(_ *world, _ *machine, c *call) { c.body.Role = "node" }},
		"another site":         {"join:site", func(_ *world, _ *machine, c *call) { c.body.Site = "site_x" }},
		"a gateway's site":     {"join:site", func(_ *world, _ *machine, c *call) { c.peer.GatewaySites = []string{"site_x"} }},
	} {
		w, m := newWorld(t, discovery(joinservice.ApproveAlways)), newMachine(t)
		tok := w.discoveryToken(m)
		e := w.refusedJoin(w.request(m, tok, booted(m), func(call *call) { c.change(w, m, call) }), w.root)
		if e.Reason != c.reason || e.Attestor != "discovery" {
			t.Errorf("%s: attestor %q, reason %q, want %q", name, e.Attestor, e.Reason, c.reason)
		}
		if len(w.joinRequests()) != 0 || w.usesLeft(tok.ID) != 1 {
			t.Errorf("%s: a request was written, or a use spent", name)
		}
	}
	// What is wrong with the token is the attestor's reason, and is told to whom a join token's is.
	w, m := newWorld(t, discovery(joinservice.ApproveAlways)), newMachine(t)
	w.giveToOther()
	tok := w.discoveryToken(m)
	unknown := withSecret(token{bearer: []byte("bcjt_" + store.NewID(store.PrefixToken, epoch) + ".x")}, [32]byte{})
	for _, c := range []struct {
		reason, tenant string
		bearer         []byte
		before         func()
	}{
		{"discovery:unknown", w.root, unknown, func() {}},
		{"discovery:secret-mismatch", w.root, withSecret(tok, [32]byte{1}), func() {}},
		{"discovery:expired", w.other, tok.bearer, func() { w.clock.add(time.Hour) }},
		{"discovery:revoked", w.other, tok.bearer, func() { w.revoke(tok) }},
	} {
		c.before()
		req := w.request(m, tok, booted(m), func(call *call) { call.token = c.bearer })
		if e := w.refusedJoin(req, c.tenant); e.Reason != c.reason {
			t.Errorf("reason %q, want %q", e.Reason, c.reason)
		}
	}
}

// The token's MAC, the evidence's and the claims' are compared by what they mean, not by how they are written.
func TestMACsAreComparedNormalised(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveNever)), newMachine(t)
	mac := m.claims.GetMacs()[0]
	tok := w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: w.pool, MAC: strings.ToUpper(mac)})
	m.claims.Macs = []string{"b4:96:91:ff:ff:01", strings.ToUpper(strings.ReplaceAll(mac, ":", "-"))}
	a := w.mustJoin(m, tok, bootedBy(strings.ReplaceAll(mac, ":", "-"), 0))
	if a.GetRole() != "ramdisk" {
		t.Errorf("role %q", a.GetRole())
	}
}

// Req: AP-001 AP-002 AP-004 AP-007 AP-008 AP-009 AP-040
func TestADeferralRecordsTheMachine(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	tok := w.discoveryToken(m)
	req := w.request(m, tok, booted(m), func(c *call) { c.peer = &joinv1.Peer{Address: "::ffff:192.0.2.77"} })
	d := w.deferred(req) // which verifies the signature, and whose request it answers
	if d.GetRetryAfterSeconds() != 30 || hex.EncodeToString(d.GetCsrSha256()) != hexOf(m.csr) {
		t.Errorf("deferral %v", d)
	}
	if err := store.CheckID(store.PrefixJoinRequest, d.GetRequestId()); err != nil {
		t.Error(err)
	}
	r := w.joinRequest(d.GetRequestId())
	if r.State != store.JoinRequestPending || r.Attestor != "discovery" || r.Role != "ramdisk" || r.TenantID != w.root ||
		r.SiteID != w.site || r.PoolID != w.pool || r.TokenID != tok.ID || r.WorkflowID != "wf_intake" || r.IP != "192.0.2.77" ||
		r.MAC != m.claims.GetMacs()[0] || r.ClaimedEpoch != 7 || r.VouchedBy != "" || r.BootLeaseEpoch != 0 ||
		hex.EncodeToString(r.CSRSHA256[:]) != hexOf(m.csr) || !r.CreatedAt.Equal(epoch) || !r.ExpiresAt.Equal(epoch.Add(24*time.Hour)) ||
		!r.DecidedAt.IsZero() || r.DecidedBy != "" || !r.ConsumedAt.IsZero() {
		t.Errorf("request %+v", r)
	}
	if r.MachineKey != "hw:"+hex.EncodeToString(r.HardwareKey) || len(r.HardwareKey) != 32 {
		t.Errorf("machine key %q", r.MachineKey)
	}
	if r.Claims.ProductSerial != m.claims.GetProductSerial() || !slices.Equal(r.Claims.MACs, m.claims.GetMacs()) {
		t.Errorf("claims %+v", r.Claims)
	}
	want := events.JoinRequestCreated{
		RequestID: r.ID, PoolID: w.pool, SiteID: w.site, Attestor: "discovery", Role: "ramdisk", TokenID: tok.ID,
		CSRSHA256: hexOf(m.csr), HardwareKey: hex.EncodeToString(r.HardwareKey),
	}
	if all := eventsOf[events.JoinRequestCreated](w, w.root); len(all) != 1 || all[0] != want {
		t.Errorf("events %+v, want %+v", all, want)
	}
	// An address that is none is not kept.
	odd := newMachine(t)
	d = w.deferred(w.request(odd, w.discoveryToken(odd), bootedBy(odd.claims.GetMacs()[0], 1<<63), func(c *call) {
		c.peer = &joinv1.Peer{Address: "\x1b[31m"}
	}))
	if r := w.joinRequest(d.GetRequestId()); r.IP != "" || r.ClaimedEpoch != 0 {
		t.Errorf("ip %q, epoch %d", r.IP, r.ClaimedEpoch)
	}
	w.holdsNoSecret(tok)
}

// A machine whose claims do not tell it from others waits for a person, whatever its token says, and is known by its MAC.
//
// Req: HC-022 AP-007
func TestPlaceholderHardwareNeedsAPerson(t *testing.T) {
	placeholder := func(m *machine) {
		m.claims.ProductUuid, m.claims.ProductSerial = "00000000-0000-0000-0000-000000000000", "To Be Filled By O.E.M."
	}
	never, m := newWorld(t, discovery(joinservice.ApproveNever)), newMachine(t)
	placeholder(m)
	if e := never.refusedJoin(never.request(m, never.discoveryToken(m), booted(m)), never.root); e.Reason != "join:placeholder-hardware" {
		t.Errorf("reason %q", e.Reason)
	}
	w := newWorld(t, discovery(joinservice.ApproveUnknown))
	m.newKey(t)
	req := w.request(m, w.discoveryToken(m), booted(m))
	d := w.deferred(req)
	if r := w.joinRequest(d.GetRequestId()); r.MachineKey != "mac:"+m.claims.GetMacs()[0] {
		t.Errorf("machine key %q", r.MachineKey)
	}
	w.approve(d.GetRequestId())
	a := w.mustAdmit(req)
	if n := w.node(a.GetNodeId()); n.HardwareKeyTrusted {
		t.Errorf("node %+v", n)
	}
	// The system that it installs does: its token is bound to the machine's MAC.
	installed := newMachine(t)
	placeholder(installed)
	tok := w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool, NodeID: a.GetNodeId()})
	named := func(c *call) { c.body.NodeId = a.GetNodeId() }
	if e := w.refusedJoin(w.request(installed, tok, named), w.root); e.Reason != "join:expect" {
		t.Errorf("another machine: reason %q", e.Reason)
	}
	m.newKey(t)
	if b := w.mustJoin(m, tok, named); b.GetNodeId() != a.GetNodeId() || b.GetIdentityGeneration() != 2 {
		t.Errorf("the installed system: %v", b)
	}
	// It never becomes that node again: each boot is another decision, and another node.
	m.newKey(t)
	req = w.request(m, w.discoveryToken(m), booted(m))
	w.approve(w.deferred(req).GetRequestId())
	if b := w.mustAdmit(req); b.GetNodeId() == a.GetNodeId() {
		t.Error("reclaimed without a trusted key")
	}
}

// Req: AP-042
func TestAVouchForThisVeryBootIsShown(t *testing.T) {
	for name, c := range map[string]struct {
		claimed uint64
		vouched int64
		age     time.Duration
		want    bool
	}{
		"this boot":          {7, 7, 0, true},
		"a day ago":          {7, 7, 24 * time.Hour, true},
		"more than a day":    {7, 7, 24*time.Hour + time.Millisecond, false},
		"another boot":       {7, 8, 0, false},
		"no boot is claimed": {0, 7, 0, false},
	} {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		agent := w.mustJoin(newMachine(t), w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: w.site}), role("site"))
		mac := m.claims.GetMacs()[0]
		w.write(func(tx *store.Tx) error {
			return tx.PutVouch(store.Vouch{SiteID: w.site, MAC: mac, BootLeaseEpoch: c.vouched, NodeID: agent.GetNodeId()})
		})
		w.clock.add(c.age)
		r := w.joinRequest(w.deferred(w.request(m, w.discoveryToken(m), bootedBy(mac, c.claimed))).GetRequestId())
		if got := r.VouchedBy == agent.GetNodeId() && r.BootLeaseEpoch == c.vouched; got != c.want || !got && (r.VouchedBy != "" || r.BootLeaseEpoch != 0) {
			t.Errorf("%s: vouched by %q for %d", name, r.VouchedBy, r.BootLeaseEpoch)
		}
	}
}

// A known ramdisk becomes its node again, with a new generation; so does one that was approved.
func TestARamdiskReclaimsItsNode(t *testing.T) {
	for _, rule := range joinservice.ApprovalRules {
		w, m := newWorld(t, discovery(rule)), newMachine(t)
		var ids []string
		for boot := range 3 {
			m.newKey(t)
			req := w.request(m, w.siteDiscoveryToken(m), booted(m))
			if boot == 0 { // whose pool is nobody's to decide but a person's, and never asks none
				req = w.request(m, w.discoveryToken(m), booted(m))
			}
			if rule == joinservice.ApproveAlways || rule == joinservice.ApproveUnknown && boot == 0 {
				w.approve(w.deferred(req).GetRequestId())
			}
			ids = append(ids, w.mustAdmit(req).GetNodeId())
		}
		if ids[1] != ids[0] || ids[2] != ids[0] {
			t.Errorf("%s: nodes %q", rule, ids)
		}
		if n := w.node(ids[0]); n.IdentityGeneration != 3 || n.Role != store.RoleRamdisk {
			t.Errorf("%s: node %+v", rule, n)
		}
	}
}

// The operating system that a deploy installed joins as the node that its ramdisk was, by a provisioned token for it and by
// nothing else.
func TestARamdiskBecomesANode(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveNever)), newMachine(t)
	a := w.mustJoin(m, w.discoveryToken(m), booted(m))
	m.newKey(t)
	if e := w.refusedJoin(w.request(m, w.token(allowReclaim)), w.root); e.Reason != "join:reclaim" {
		t.Errorf("a node token: reason %q", e.Reason)
	}
	other := w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool})
	if e := w.refusedJoin(w.request(m, other), w.root); e.Reason != "join:reclaim" {
		t.Errorf("a provisioned token for no node: reason %q", e.Reason)
	}
	tok := w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool, NodeID: a.GetNodeId()})
	b := w.mustJoin(m, tok, func(c *call) { c.body.NodeId = a.GetNodeId() })
	n := w.node(a.GetNodeId())
	if b.GetNodeId() != a.GetNodeId() || b.GetRole() != "node" || n.Role != store.RoleNode || n.IdentityGeneration != 2 {
		t.Errorf("admission %v, node %+v", b, n)
	}
	authz := query(w, func(tx *store.Tx) (store.NodeAuthz, error) { return tx.NodeAuthz(n.ID) })
	if authz.Role != store.RoleNode {
		t.Errorf("authorization %+v", authz)
	}
	// There is no way back: a node is not a ramdisk.
	m.newKey(t)
	if e := w.refusedJoin(w.request(m, w.discoveryToken(m), booted(m)), w.root); e.Reason != "join:reclaim" {
		t.Errorf("a node that boots a ramdisk: reason %q", e.Reason)
	}
}

package joinservice_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/hwclaims"
)

// Every statement of the admission's transaction is failed in turn. Nothing of the admission is left each time, and in
// the end the same request is admitted.
//
// Req: JF-020 RF-028
func TestAdmissionIsAllOrNothing(t *testing.T) {
	for name, reclaim := range map[string]bool{"join": false, "reclaim": true} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			w.updatePool(func(p *store.Pool) { p.Acceptance = false })
			if reclaim {
				w.mustJoin(m, w.token())
				m.newKey(t)
			}
			tok := w.token(allowReclaim)
			req := w.request(m, tok)
			failed := w.failEachStep(req)
			want := []string{
				"spend the token", "insert the node", "project the node's authorization", "insert the certificate", "insert the join",
				"publish node.joined", "record node.joined", "queue the node", "set the node's state",
				"publish node.adopted", "record node.adopted",
			}
			if reclaim {
				want = slices.Replace(want, 1, 2, "revoke the certificate", "publish security.certificate-revoked", "reclaim the node")
				want[8] = "record node.reclaimed"
			}
			if !slices.Equal(failed, want) {
				t.Errorf("failed %q,\nwant %q", failed, want)
			}
			if w.usesLeft(tok.ID) != 0 || len(w.nodes()) != 1 {
				t.Errorf("%d uses left, %d nodes", w.usesLeft(tok.ID), len(w.nodes()))
			}
		})
	}
}

// dump is all that an admission may change, as text.
func (w *world) dump() string {
	w.t.Helper()
	return query(w, func(tx *store.Tx) (string, error) {
		nodes, err := tx.NodesOfTenant(w.root, "", 100)
		text := fmt.Sprintf("%+v\n", nodes)
		for _, n := range nodes {
			certs, err := tx.CertsOfNode(n.ID)
			if err != nil {
				return "", err
			}
			authz, err := tx.NodeAuthz(n.ID)
			if err != nil {
				return "", err
			}
			text += fmt.Sprintf("%+v %+v\n", certs, authz)
		}
		all, err2 := tx.TokensOfPool(w.pool, true, "", 100)
		tokens, err6 := json.Marshal(all)
		evs, err3 := tx.Events(w.root, 0, 1000)
		audit, err4 := tx.Audit(w.root, "", 1000)
		queue, err5 := tx.Queue(100)
		return text + fmt.Sprintf("%s\n%+v\n%+v\n%+v", tokens, evs, audit, queue), errors.Join(err, err2, err3, err4, err5, err6)
	})
}

// Req: JF-022 JF-028 JT-001 JT-065
func TestConcurrentJoinsSpendEachUseOnce(t *testing.T) {
	for _, n := range []int64{1, 7} {
		w := newWorld(t)
		tok := w.token(uses(n))
		var wg sync.WaitGroup
		errs := make([]error, 20)
		for i := range errs {
			req := w.request(newMachine(t), tok)
			wg.Go(func() { _, errs[i] = w.svc.Join(context.Background(), req) })
		}
		wg.Wait()
		var joined int64
		for _, err := range errs {
			if err == nil {
				joined++
			} else if wire(t, err) != joinRefused {
				t.Errorf("answer %v", err)
			}
		}
		if joined != n || int64(len(w.nodes())) != n || w.usesLeft(tok.ID) != 0 {
			t.Errorf("%d joined, %d nodes, %d uses left, want %d, %d and 0", joined, len(w.nodes()), w.usesLeft(tok.ID), n, n)
		}
		for _, e := range eventsOf[events.JoinRefused](w, w.root) {
			if e.Reason != "join-token:exhausted" {
				t.Errorf("reason %q", e.Reason)
			}
		}
	}
}

// meeting makes the issuer wait until n admissions are between their snapshot and their transaction.
type meeting struct {
	joinservice.Issuer
	wg *sync.WaitGroup
}

func (m meeting) IssueNode(r pki.NodeRequest) (*x509.Certificate, error) {
	m.wg.Done()
	m.wg.Wait()
	return m.Issuer.IssueNode(r)
}

// Req: JF-066
func TestRacingJoinsOfOneMachineEndWithOneConflict(t *testing.T) {
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("known=%v", known), func(t *testing.T) {
			var both sync.WaitGroup
			w := newWorld(t, func(o *joinservice.Options) { o.Keys.Issuer = meeting{o.Keys.Issuer, &both} })
			tok, m := w.token(uses(10), allowReclaim), newMachine(t)
			generation := int64(1)
			if known {
				both.Add(1)
				w.mustJoin(m, tok)
				generation = 2
			}
			left := w.usesLeft(tok.ID)
			m.newKey(t)
			first := w.request(m, tok)
			m.newKey(t)
			second := w.request(m, tok)
			both.Add(2)
			var wg sync.WaitGroup
			var errs [2]error
			wg.Go(func() { _, errs[0] = w.svc.Join(context.Background(), first) })
			wg.Go(func() { _, errs[1] = w.svc.Join(context.Background(), second) })
			wg.Wait()
			conflict := errs[0]
			if conflict == nil {
				conflict = errs[1]
			}
			if (errs[0] == nil) == (errs[1] == nil) {
				t.Fatalf("answers %v and %v, want one success", errs[0], errs[1])
			}
			wantCode(t, conflict, codes.Aborted, "This machine joined concurrently; retry")
			if nodes := w.nodes(); len(nodes) != 1 || nodes[0].IdentityGeneration != generation {
				t.Errorf("nodes %+v", nodes)
			}
			if got := w.usesLeft(tok.ID); got != left-1 {
				t.Errorf("%d uses left, want %d", got, left-1)
			}
			if got := len(eventsOf[events.JoinRefused](w, w.root)); got != 0 {
				t.Errorf("%d refusals", got)
			}
		})
	}
}

// The same request sent twice at once: one certificate, one use.
func TestRacingRepeatsGetOneCertificate(t *testing.T) {
	var both sync.WaitGroup
	w := newWorld(t, func(o *joinservice.Options) { o.Keys.Issuer = meeting{o.Keys.Issuer, &both} })
	tok := w.token(uses(10))
	req := w.request(newMachine(t), tok)
	both.Add(2)
	var wg sync.WaitGroup
	var errs [2]error
	for i := range errs {
		wg.Go(func() { _, errs[i] = w.svc.Join(context.Background(), req) })
	}
	wg.Wait()
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Errorf("answers %v and %v, want one success", errs[0], errs[1])
	}
	if w.usesLeft(tok.ID) != 9 || len(w.nodes()) != 1 {
		t.Errorf("%d uses left, %d nodes", w.usesLeft(tok.ID), len(w.nodes()))
	}
	if _, err := w.svc.Join(t.Context(), req); err != nil {
		t.Errorf("the retry: %v", err)
	}
}

// Req: JF-039 JF-040 JF-067 JF-073 JF-074 JF-075 JF-076 JF-077 JF-085
func TestReclaim(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	first := w.mustJoin(m, w.token())
	w.write(func(tx *store.Tx) error { return tx.SetNodeState(first.GetNodeId(), store.NodeAdopted) })
	m.newKey(t)
	m.claims.Hostname = "renamed"
	tok := w.token(allowReclaim)
	second := w.mustJoin(m, tok)

	n := w.node(first.GetNodeId())
	if second.GetNodeId() != n.ID || second.GetIdentityGeneration() != 2 || n.IdentityGeneration != 2 ||
		n.State != store.NodeAdopting || n.Claims.Hostname != "renamed" || len(w.nodes()) != 1 {
		t.Errorf("admission %v, node %+v", second, n)
	}
	certs := w.certs(n.ID)
	old := leafOf(t, first).SerialNumber.Text(16)
	for _, c := range certs {
		if revoked := !c.RevokedAt.IsZero(); revoked != (c.Serial == old) || revoked && c.RevokeReason != "reclaimed" ||
			(c.Generation == 1) != (c.Serial == old) {
			t.Errorf("certificate %+v", c)
		}
	}
	wantRevoked := []events.CertificateRevoked{{NodeID: n.ID, Serial: old, IdentityGeneration: 1, Reason: "reclaimed"}}
	if got := eventsOf[events.CertificateRevoked](w, w.root); !slices.Equal(got, wantRevoked) {
		t.Errorf("events %+v", got)
	}
	joined := eventsOf[events.NodeJoined](w, w.root)
	if len(joined) != 2 || joined[0].Reclaim || !joined[1].Reclaim || joined[1].IdentityGeneration != 2 {
		t.Errorf("events %+v", joined)
	}
	audit := query(w, func(tx *store.Tx) ([]events.Audit, error) { return tx.Audit(w.root, "", 100) })
	if last := audit[len(audit)-1]; last.Action != events.ActionNodeReclaimed || last.Actor != tok.ID {
		t.Errorf("audit %+v", last)
	}
}

// Req: JF-068 JF-069 JF-070 JF-071 JF-072 JF-078 RF-023
func TestReclaimIsRefusedElsewhere(t *testing.T) {
	anotherPool := func(w *world, site string) string {
		id := store.NewID(store.PrefixPool, epoch)
		w.write(func(tx *store.Tx) error {
			return tx.InsertPool(store.Pool{ID: id, TenantID: w.root, SiteID: site, Name: "p", Agent: store.AgentBCD})
		})
		return id
	}
	for name, c := range map[string]struct {
		reason string
		tenant func(w *world) string
		make   func(w *world) (token, []func(*call))
	}{
		"without allowReclaim": {"join:reclaim", nil, func(w *world) (token, []func(*call)) { return w.token(), nil }},
		"another tenant": {"join:reclaim", func(w *world) string { return w.other }, func(w *world) (token, []func(*call)) {
			ofOther(w)
			return w.token(inOther(w), allowReclaim), nil
		}},
		"another site": {"join:reclaim", nil, func(w *world) (token, []func(*call)) {
			site := w.moveSite()
			return w.token(allowReclaim), []func(*call){func(c *call) { c.body.Site = site }}
		}},
		"another pool": {"join:reclaim", nil, func(w *world) (token, []func(*call)) {
			pool := anotherPool(w, w.site)
			return w.token(allowReclaim, func(r *tokens.CreateRequest) { r.PoolID = pool }), nil
		}},
		"another role": {"join:reclaim", nil, func(w *world) (token, []func(*call)) {
			tok := w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: w.site})
			return tok, []func(*call){role("site")}
		}},
		"retired": {"join:reclaim", nil, func(w *world) (token, []func(*call)) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(w.nodes()[0].ID, store.NodeRetired) })
			return w.token(allowReclaim), nil
		}},
		"pool without token joins": {"join:pool-attestor", nil, func(w *world) (token, []func(*call)) {
			w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{} })
			return w.token(allowReclaim), nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			a := w.mustJoin(m, w.token())
			m.newKey(t)
			tok, change := c.make(w)
			tenant := w.root
			if c.tenant != nil {
				tenant = c.tenant(w)
			}
			if name != "pool without token joins" && name != "another role" {
				change = append(change, func(*call) {})
			}
			if e := w.refusedJoin(w.request(m, tok, change...), tenant); e.Reason != c.reason {
				t.Errorf("reason %q, want %q", e.Reason, c.reason)
			}
			if n := w.node(a.GetNodeId()); n.IdentityGeneration != 1 {
				t.Errorf("node %+v", n)
			}
		})
	}
}

// Req: HC-020 HC-021 HC-023
func TestPlaceholderHardwareJoinsWithExpectAsANewNode(t *testing.T) {
	for name, c := range map[string]struct {
		claims *daemonv1.HardwareClaims
		expect hwclaims.Expect
	}{
		"one class": {
			&daemonv1.HardwareClaims{ProductUuid: "9f0c2b1e-7a44-4d3c-b1a5-3ca82a1f9999"},
			hwclaims.Expect{ProductUUID: "9F0C2B1E7A444D3CB1A53CA82A1F9999"},
		},
		"no UUID and no serial": {
			&daemonv1.HardwareClaims{
				Macs: []string{"b4:96:91:a7:00:77"}, GpuUuids: []string{"GPU-8c1d2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6"},
			},
			hwclaims.Expect{MAC: "b4:96:91:a7:00:77"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			ids := map[string]bool{}
			for range 2 {
				m := newMachine(t)
				m.claims = c.claims
				a := w.mustJoin(m, w.token(expect(c.expect), allowReclaim))
				ids[a.GetNodeId()] = true
			}
			if len(ids) != 2 {
				t.Errorf("nodes %v, want two", ids)
			}
			for _, e := range eventsOf[events.NodeJoined](w, w.root) {
				if e.HardwareKeyTrusted || e.Reclaim {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// The hardware key is derived from the claims by the one function that everybody uses, and filler does not change it.
//
// Req: HC-013 HC-015
func TestHardwareKeyIsDerivedFromTheClaims(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	a := w.mustJoin(m, w.token())
	want := hwclaims.Assess(hwclaims.Claims{
		ProductUUID: m.claims.GetProductUuid(), ProductSerial: m.claims.GetProductSerial(), MACs: m.claims.GetMacs(),
	}).HardwareKey
	if got := w.node(a.GetNodeId()).HardwareKey; string(got) != string(want) {
		t.Errorf("key %x, want %x", got, want)
	}
	m.newKey(t)
	m.claims.BoardSerial, m.claims.ChassisSerial = "Default string", "To Be Filled By O.E.M."
	if again := w.mustJoin(m, w.token(allowReclaim)); again.GetNodeId() != a.GetNodeId() {
		t.Error("filler made the machine another one")
	}
}

// Req: JT-052 JT-053 JT-054 JT-057 JT-058 JT-059 JT-060 JT-061 JT-062 JF-046 AT-009 AT-010 NC-004
func TestTokenRoles(t *testing.T) {
	mint := map[store.TokenRole]func(w *world, m *machine) token{
		store.TokenNode: func(w *world, _ *machine) token { return w.token() },
		store.TokenSite: func(w *world, _ *machine) token {
			return w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: w.site})
		},
		store.TokenProvisioned: func(w *world, _ *machine) token {
			return w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool})
		},
		store.TokenDiscovery: func(w *world, m *machine) token {
			return w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: w.pool, MAC: m.claims.GetMacs()[0]})
		},
	}
	admitted := map[store.TokenRole]string{
		store.TokenNode: "node", store.TokenSite: "site", store.TokenProvisioned: "node", store.TokenDiscovery: "ramdisk",
	}
	for tokenRole, mintOne := range mint {
		for _, asked := range []string{"node", "site", "ramdisk", "provisioned", "discovery", ""} {
			t.Run(string(tokenRole)+" for "+asked, func(t *testing.T) {
				w, m := newWorld(t, discovery(joinservice.ApproveNever)), newMachine(t)
				tok := mintOne(w, m)
				attestor := "join-token"
				if tokenRole == store.TokenDiscovery {
					attestor = "discovery"
					// It is good for its own attestor alone.
					if e := w.refusedJoin(w.request(m, tok, role(asked)), w.root); e.Reason != "join-token:role-mismatch" {
						t.Errorf("as a join token: reason %q", e.Reason)
					}
				}
				ask := func(m *machine) *joinv1.JoinRequest {
					if attestor == "discovery" {
						return w.request(m, tok, booted(m), role(asked))
					}
					return w.request(m, tok, role(asked))
				}
				if asked != admitted[tokenRole] {
					if e := w.refusedJoin(ask(m), w.root); e.Reason != attestor+":role-mismatch" {
						t.Errorf("reason %q", e.Reason)
					}
					return
				}
				a := w.mustAdmit(ask(m))
				leaf := leafOf(t, a)
				if a.GetRole() != asked || leaf.Subject.OrganizationalUnit[0] != "bc-role:"+asked {
					t.Errorf("role %q, subject %v", a.GetRole(), leaf.Subject)
				}
				lifetime := 24 * time.Hour
				if asked == "ramdisk" {
					lifetime = 2 * time.Hour
				}
				if got := leaf.NotAfter.Sub(leaf.NotBefore); got != lifetime {
					t.Errorf("lifetime %v, want %v", got, lifetime)
				}
				if n := w.node(a.GetNodeId()); (n.State == store.NodeAdopted) != (asked == "site") || n.SiteID != w.site {
					t.Errorf("node %+v", n)
				}
				second := newMachine(t)
				second.claims.Macs = m.claims.GetMacs() // a discovery token is bound to them
				if e := w.refusedJoin(ask(second), w.root); e.Reason != attestor+":exhausted" {
					t.Errorf("a second use: reason %q", e.Reason)
				}
			})
		}
	}
	w := newWorld(t, discovery(joinservice.ApproveNever))
	tok := w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: w.pool, MAC: "b4:96:91:ff:00:01"})
	m := newMachine(t)
	if e := w.refusedJoin(w.request(m, tok, booted(m)), w.root); e.Reason != "discovery:mac" {
		t.Errorf("another MAC: reason %q", e.Reason)
	}
	for _, other := range []token{w.token(), w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool})} {
		if e := w.refusedJoin(w.request(m, other, booted(m)), w.root); e.Reason != "discovery:role-mismatch" {
			t.Errorf("a %s token: reason %q", other.Role, e.Reason)
		}
	}
}

// A provisioned token names the node that the machine becomes again, and only its bearer may name a node.
func TestProvisionedTokenNamesTheNode(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	a := w.mustJoin(m, w.token())
	tok := w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool, NodeID: a.GetNodeId()})
	m.newKey(t)
	if e := w.refusedJoin(w.request(m, tok), w.root); e.Reason != "join:node-id" {
		t.Errorf("without the id: reason %q", e.Reason)
	}
	other := newMachine(t)
	w.mustJoin(other, w.token())
	other.newKey(t)
	named := func(c *call) { c.body.NodeId = a.GetNodeId() }
	if e := w.refusedJoin(w.request(other, tok, named), w.root); e.Reason != "join:reclaim" {
		t.Errorf("another node's machine: reason %q", e.Reason)
	}
	again := w.mustJoin(m, tok, named)
	if again.GetNodeId() != a.GetNodeId() || again.GetIdentityGeneration() != 2 {
		t.Errorf("admission %v", again)
	}
}

// The operating system may see other hardware than the ramdisk did, a GPU in the place of a MAC for instance. The node is
// then known by what joined last, as its claims are that.
func TestAMachineThatATokenNamesIsKnownByWhatItShows(t *testing.T) {
	w, before := newWorld(t), newMachine(t)
	a := w.mustJoin(before, w.token())
	named := func(c *call) { c.body.NodeId = a.GetNodeId() }
	provisioned := w.issue(tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: w.pool, NodeID: a.GetNodeId()})
	now := newMachine(t)
	if b := w.mustJoin(now, provisioned, named); b.GetNodeId() != a.GetNodeId() {
		t.Fatalf("admission %v", b)
	}
	// It joins again as the same node, and what it was known by before is free.
	now.newKey(t)
	if c := w.mustJoin(now, w.token(allowReclaim)); c.GetNodeId() != a.GetNodeId() {
		t.Errorf("it joined again as %q, not as %q", c.GetNodeId(), a.GetNodeId())
	}
	if n := w.node(a.GetNodeId()); n.Claims.ProductUUID != now.claims.GetProductUuid() || !n.HardwareKeyTrusted {
		t.Errorf("node %+v", n)
	}
	before.newKey(t)
	if d := w.mustJoin(before, w.token()); d.GetNodeId() == a.GetNodeId() {
		t.Error("a machine with the hardware of before became the node")
	}
}

// Req: K8-003 K8-004 K8-006 K8-007 K8-008 K8-009 K8-010 K8-012 K8-013 K8-016
func TestTrust(t *testing.T) {
	operated := func(p *store.Pool) { p.Policy.Kubernetes.PlatformOperated = true }
	for name, c := range map[string]struct {
		hosted   bool
		site     func(w *world, s *store.Site)
		pool     func(w *world, p *store.Pool)
		trust    store.Trust
		certRole string
	}{
		"platform":        {trust: store.TrustPlatform, certRole: "node"},
		"hosted":          {hosted: true, trust: store.TrustTenantControlled, certRole: "node-tenant"},
		"hosted operated": {hosted: true, pool: func(_ *world, p *store.Pool) { operated(p) }, trust: store.TrustPlatform, certRole: "node"},
		"hosted operated, another owner": {
			hosted: true, pool: func(w *world, p *store.Pool) { operated(p); p.TenantID = w.other },
			trust: store.TrustTenantControlled, certRole: "node-tenant",
		},
		"hosted operated, site and pool of a tenant": {
			hosted: true, site: func(w *world, s *store.Site) { s.TenantID = w.other },
			pool:  func(w *world, p *store.Pool) { operated(p); p.TenantID = w.other },
			trust: store.TrustTenantControlled, certRole: "node-tenant",
		},
		"hosted operated, custom site": {
			hosted: true, site: func(_ *world, s *store.Site) { s.Custom = true }, pool: func(_ *world, p *store.Pool) { operated(p) },
			trust: store.TrustTenantControlled, certRole: "node-tenant",
		},
		"a tenant's own site": {
			site: func(w *world, s *store.Site) { s.TenantID, s.Custom = w.other, true },
			pool: func(w *world, p *store.Pool) { p.TenantID = w.other }, trust: store.TrustTenantOwned, certRole: "node",
		},
		"hosted in a tenant's own site": {
			hosted: true, site: func(w *world, s *store.Site) { s.TenantID, s.Custom = w.other, true },
			pool: func(w *world, p *store.Pool) { operated(p); p.TenantID = w.other }, trust: store.TrustTenantOwned, certRole: "node",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			owner := w.root
			if c.site != nil {
				w.write(func(tx *store.Tx) error {
					s, err := tx.Site(w.site)
					if err != nil {
						return err
					}
					c.site(w, &s)
					return tx.UpdateSite(s)
				})
			}
			if c.pool != nil {
				w.updatePool(func(p *store.Pool) { c.pool(w, p); owner = p.TenantID })
			}
			a := w.mustJoin(m, w.token(func(r *tokens.CreateRequest) {
				r.TenantID = owner
				if c.hosted {
					r.Hosted = tokens.HostedKubernetes
				}
			}))
			if n := w.node(a.GetNodeId()); n.Trust != c.trust || a.GetRole() != c.certRole {
				t.Errorf("trust %q, role %q, want %q and %q", n.Trust, a.GetRole(), c.trust, c.certRole)
			}
			authz := query(w, func(tx *store.Tx) (store.NodeAuthz, error) { return tx.NodeAuthz(a.GetNodeId()) })
			if authz.Trust != c.trust {
				t.Errorf("authorization %+v", authz)
			}
		})
	}
	t.Run("a hosted reclaim lowers", func(t *testing.T) {
		w, m := newWorld(t), newMachine(t)
		w.mustJoin(m, w.token())
		m.newKey(t)
		a := w.mustJoin(m, w.token(allowReclaim, hosted))
		if n := w.node(a.GetNodeId()); n.Trust != store.TrustTenantControlled || a.GetRole() != "node-tenant" {
			t.Errorf("trust %q, role %q", n.Trust, a.GetRole())
		}
	})
}

// Empty text in place of the configured site is a bootstrap: the signed answer names the site.
func TestBootstrapHasNoSite(t *testing.T) {
	w := newWorld(t)
	a := w.mustJoin(newMachine(t), w.token(), func(c *call) { c.body.Site = ""; c.peer.GatewaySites = []string{w.site} })
	if a.GetSite() != w.site {
		t.Errorf("site %q", a.GetSite())
	}
}

// shortLived is an attestor that shortens certificates and restricts their kinds.
type shortLived struct{ joinservice.Attestor }

func (a shortLived) Open(ctx context.Context, r *joinservice.Request) (joinservice.Credential, error) {
	c, err := a.Attestor.Open(ctx, r)
	return shortCredential{c}, err
}

type shortCredential struct{ joinservice.Credential }

func (c shortCredential) Prove(tx *store.Tx) (*joinservice.Grant, error) {
	g, err := c.Credential.Prove(tx)
	if err == nil {
		g.MaxLifetime, g.AllowedKinds = 10*time.Minute, []string{"disk.*"}
	}
	return g, err
}

func shortening(o *joinservice.Options) {
	o.Attestors = []joinservice.Attestor{shortLived{joinservice.JoinToken{Keys: o.Keys.Decryption}}}
}

// Req: NC-005 NC-022
func TestAttestorShortensTheLifetime(t *testing.T) {
	w := newWorld(t, shortening)
	m := newMachine(t)
	site := w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: w.site})
	for _, a := range []*daemonv1.Admission{w.mustJoin(newMachine(t), w.token()), w.mustJoin(m, site, role("site"))} {
		leaf := leafOf(t, a)
		if got := leaf.NotAfter.Sub(leaf.NotBefore); got != 10*time.Minute {
			t.Errorf("lifetime %v of a %s, want 10m", got, a.GetRole())
		}
		if !slices.Equal(a.GetAllowedKinds(), []string{"disk.*"}) {
			t.Errorf("allowed kinds %q", a.GetAllowedKinds())
		}
	}
}

// proving is an attestor that proved where the node key lives.
type proving struct{ joinservice.JoinToken }

const statement = "urn:bc:tpm-ak:sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

func (a proving) Open(ctx context.Context, r *joinservice.Request) (joinservice.Credential, error) {
	c, err := a.JoinToken.Open(ctx, r)
	return provingCredential{c}, err
}

type provingCredential struct{ joinservice.Credential }

func (c provingCredential) Prove(tx *store.Tx) (*joinservice.Grant, error) {
	g, err := c.Credential.Prove(tx)
	if err == nil {
		g.NodeKeyInTPM, g.Statements = true, []string{statement}
	}
	return g, err
}

// Req: JF-043 NC-010 NC-011
func TestProvenNodeKeyIsToldAndStated(t *testing.T) {
	w := newWorld(t, func(o *joinservice.Options) {
		o.Attestors = []joinservice.Attestor{proving{joinservice.JoinToken{Keys: o.Keys.Decryption}}}
	})
	leaf := leafOf(t, w.mustJoin(newMachine(t), w.token()))
	if len(leaf.URIs) != 2 || leaf.URIs[0].Scheme != "spiffe" || leaf.URIs[1].String() != statement {
		t.Errorf("names %v, want the SPIFFE ID and the statement", leaf.URIs)
	}
	audit := query(w, func(tx *store.Tx) ([]events.Audit, error) { return tx.Audit(w.root, "", 100) })
	var told events.NodeJoined
	if err := json.Unmarshal(audit[len(audit)-1].Data, &told); err != nil {
		t.Fatal(err)
	}
	if all := eventsOf[events.NodeJoined](w, w.root); len(all) != 1 || all[0].NodeKey != "tpm" || told.NodeKey != "tpm" {
		t.Errorf("events %+v, audit %+v, want node key tpm", all, told)
	}
	// Without the proof neither is there.
	plain := newWorld(t)
	if leaf := leafOf(t, plain.mustJoin(newMachine(t), plain.token())); len(leaf.URIs) != 1 {
		t.Errorf("names %v of a join that proved nothing", leaf.URIs)
	}
	if all := eventsOf[events.NodeJoined](plain, plain.root); len(all) != 1 || all[0].NodeKey != "unattested" {
		t.Errorf("events %+v, want node key unattested", all)
	}
}

// issuing runs a function before a certificate is issued, between an admission's two decisions.
type issuing struct {
	joinservice.Issuer
	before func()
}

func (i issuing) IssueNode(r pki.NodeRequest) (*x509.Certificate, error) {
	i.before()
	return i.Issuer.IssueNode(r)
}

// A certificate was issued for what was decided first. Where the second decision would give the machine less, it is not the
// machine's.
func TestPolicyThatChangesDuringAJoinIsAConflict(t *testing.T) {
	var w *world
	vouch := func(vouched bool) func() {
		return func() {
			w.updatePool(func(p *store.Pool) { p.Policy.Kubernetes.PlatformOperated = vouched })
		}
	}
	w = newWorld(t, func(o *joinservice.Options) { o.Keys.Issuer = issuing{o.Keys.Issuer, func() { vouch(false)() }} })
	vouch(true)()
	m, tok := newMachine(t), w.token(hosted)
	_, err := w.join(m, tok)
	wantCode(t, err, codes.Aborted, "This machine joined concurrently; retry")
	if len(w.nodes()) != 0 || w.usesLeft(tok.ID) != 1 {
		t.Errorf("nodes %v, %d uses left", w.nodes(), w.usesLeft(tok.ID))
	}
	if a := w.mustJoin(m, tok); a.GetRole() != "node-tenant" {
		t.Errorf("role %q after the retry", a.GetRole())
	}
}

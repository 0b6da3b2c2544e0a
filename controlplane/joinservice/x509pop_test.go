package joinservice_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/signing"
)

// x509pop switches on the attestor x509pop beside the ones that are there.
func x509pop(o *joinservice.Options) {
	if o.Attestors == nil {
		o.Attestors = []joinservice.Attestor{joinservice.JoinToken{Keys: o.Keys.Decryption}}
	}
	o.Attestors = append(o.Attestors, joinservice.X509PoP{})
}

// rejoinCall is a join by a certificate in the making. What it changes in the body is signed, but for the proof.
type rejoinCall struct {
	renewCall

	body *daemonv1.JoinRequestBody
}

// rejoin returns the Join of a machine that proves its certificate's key, for the next key.
func (w *world) rejoin(m *member, next *ecdsa.PrivateKey, change ...func(*rejoinCall)) *joinv1.JoinRequest {
	w.t.Helper()
	c := &rejoinCall{
		renewCall: renewCall{
			csr: newCSR(w.t, next), chain: [][]byte{m.leaf}, nodeID: m.nodeID, clientTime: w.clock.now(), signer: m.key, purpose: signing.X509PoP,
		},
		body: &daemonv1.JoinRequestBody{Attestor: "x509pop", SealedToken: "none"},
	}
	for _, f := range change {
		f(c)
	}
	sig, err := signing.Sign(c.signer, c.purpose, signing.PoP(sha256.Sum256(c.csr), c.clientTime, c.nodeID))
	if err != nil {
		w.t.Fatal(err)
	}
	return w.request(&machine{claims: &daemonv1.HardwareClaims{Hostname: "rack-b7"}, key: next, csr: c.csr}, token{}, func(call *call) {
		call.body.Attestor, call.body.SealedToken, call.body.NodeId = c.body.GetAttestor(), c.body.GetSealedToken(), c.body.GetNodeId()
		if c.body.GetRole() != "" {
			call.body.Role = c.body.GetRole()
		}
		switch c.body.GetSite() {
		case "":
		case "none":
			call.body.Site = ""
		default:
			call.body.Site = c.body.GetSite()
		}
		call.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_X509Pop{X509Pop: &daemonv1.X509PopEvidence{
			Chain: c.chain, ClientTimeUnixMs: c.clientTime.UnixMilli(), PopSig: sig,
		}}}
	})
}

func (w *world) mustRejoin(m *member, change ...func(*rejoinCall)) *member {
	w.t.Helper()
	next := newKey(w.t)
	a := w.mustAdmit(w.rejoin(m, next, change...))
	return &member{nodeID: a.GetNodeId(), key: next, leaf: a.GetChain()[0]}
}

// Req: AT-004
func TestAnExpiredCertificateJoinsAgainWithinAWeek(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for ago, admitted := range map[time.Duration]bool{
		-time.Hour: true, 0: true, time.Second: true, week - time.Hour: true, week: true, week + time.Second: false, 365 * 24 * time.Hour: false,
	} {
		w := newWorld(t, x509pop)
		m := w.member()
		leaf, err := x509.ParseCertificate(m.leaf)
		if err != nil {
			t.Fatal(err)
		}
		w.clock.add(leaf.NotAfter.Add(ago).Sub(w.now()))
		if admitted {
			if next := w.mustRejoin(m); next.nodeID != m.nodeID {
				t.Errorf("%v after its end: node %q", ago, next.nodeID)
			}
			continue
		}
		if e := w.refusedJoin(w.rejoin(m, newKey(t)), w.root); e.Reason != "x509pop:expired" || e.Attestor != "x509pop" {
			t.Errorf("%v after its end: %+v", ago, e)
		}
	}
	w := newWorld(t) // without the attestor
	if e := w.refusedJoin(w.rejoin(w.member(), newKey(t)), w.root); e.Reason != "join:attestor" {
		t.Errorf("not configured: reason %q", e.Reason)
	}
}

// The node stays what it is: only its certificate is another.
func TestARejoinChangesNothingOfTheNode(t *testing.T) {
	w := newWorld(t, shortening, x509pop)
	m := w.member()
	w.write(func(tx *store.Tx) error {
		return errors.Join(tx.SetNodeState(m.nodeID, store.NodeAdopted), tx.CordonNode(m.nodeID),
			tx.SetNodeConditions(m.nodeID, []store.Condition{{Type: "AcceptanceFailed", Message: "fan", Since: epoch}}))
	})
	before, queue := w.node(m.nodeID), query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) })
	w.clock.add(3 * 24 * time.Hour)
	next := w.mustRejoin(m)
	if diff := cmp.Diff(before, w.node(m.nodeID)); diff != "" {
		t.Errorf("the node changed:\n%s", diff)
	}
	if diff := cmp.Diff(queue, query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) })); diff != "" {
		t.Errorf("the queue changed:\n%s", diff)
	}
	certs := w.certs(m.nodeID)
	if len(certs) != 2 {
		t.Fatalf("%d certificates", len(certs))
	}
	old, c := certs[0], certs[1]
	if c.Predecessor != old.Serial || c.Generation != 1 || c.Role != old.Role || !slices.Equal(c.AllowedKinds, []string{"disk.*"}) ||
		c.MaxLifetime != 10*time.Minute || c.NotAfter.Sub(c.NotBefore) != 10*time.Minute || !c.RevokedAt.IsZero() || !old.RevokedAt.IsZero() ||
		old.FirstUsedAt.IsZero() {
		t.Errorf("certificates %+v", certs)
	}
	joined := eventsOf[events.NodeJoined](w, w.root)
	want := events.NodeJoined{
		NodeID: m.nodeID, PoolID: w.pool, SiteID: w.site, Role: "node", Attestor: "x509pop", HardwareKeyTrusted: true,
		Serial: c.Serial, IdentityGeneration: 1, NodeKey: "unattested",
	}
	if len(joined) != 2 || joined[1] != want {
		t.Errorf("events %+v, want %+v", joined, want)
	}
	audit := query(w, func(tx *store.Tx) ([]events.Audit, error) { return tx.Audit(w.root, "", 100) })
	last := audit[len(audit)-1]
	var told events.NodeJoined
	if err := json.Unmarshal(last.Data, &told); err != nil {
		t.Fatal(err)
	}
	if last.Action != events.ActionNodeJoined || last.Actor != m.nodeID || last.Subject != m.nodeID || told != want {
		t.Errorf("audit %+v", last)
	}
	// The new certificate renews as any other, and the old one joins no more once the new one was told of as lost: it forks.
	w.mustRenew(next)
	w.mustRejoin(m)
	if forked := eventsOf[events.RenewForked](w, w.root); len(forked) != 1 || forked[0].Serial != old.Serial || forked[0].Successor != c.Serial {
		t.Errorf("events %+v", forked)
	}
}

// A machine that its tenant controls stays one, and a site agent too.
func TestARejoinKeepsTheRole(t *testing.T) {
	w := newWorld(t, x509pop)
	machine := newMachine(t)
	a := w.mustJoin(machine, w.token(hosted))
	tenants := &member{nodeID: a.GetNodeId(), key: machine.key, leaf: a.GetChain()[0]}
	// The pool's policy would make it the platform's now; the certificate keeps what it says.
	w.updatePool(func(p *store.Pool) { p.Policy.Kubernetes.PlatformOperated = true })
	if b := w.mustAdmit(w.rejoin(tenants, newKey(t))); b.GetRole() != "node-tenant" {
		t.Errorf("role %q", b.GetRole())
	}
	agent := newMachine(t)
	a = w.mustJoin(agent, w.issue(tokens.IssueRequest{Role: store.TokenSite, SiteID: w.site}), role("site"))
	m := &member{nodeID: a.GetNodeId(), key: agent.key, leaf: a.GetChain()[0]}
	if b := w.mustAdmit(w.rejoin(m, newKey(t), func(c *rejoinCall) { c.body.Role = "site" })); b.GetRole() != "site" {
		t.Errorf("role %q", b.GetRole())
	}
}

// Each fault alone is the reason, and with later faults beside it still is. The owner is told from the proof on.
func TestRejoinRefusalsInOrder(t *testing.T) {
	faults := []struct {
		reason string
		owner  bool
		add    func(w *world, m *member, c *rejoinCall)
	}{
		{"join:node-id", true, func(_ *world, m *member, c *rejoinCall) { c.body.NodeId = m.nodeID }},
		{"x509pop:key-attestation-missing", true, nil}, // the member's
		{"x509pop:identity-mismatch", true, func(_ *world, _ *member, c *rejoinCall) { c.body.Role = "site" }},
		{"x509pop:retired", true, func(w *world, m *member, _ *rejoinCall) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(m.nodeID, store.NodeRetired) })
		}},
		{"x509pop:generation", true, func(w *world, m *member, _ *rejoinCall) {
			w.write(func(tx *store.Tx) error {
				n, err := tx.Node(m.nodeID)
				if err != nil {
					return err
				}
				n.IdentityGeneration++
				return tx.ReclaimNode(n)
			})
		}},
		{"x509pop:expired", true, func(w *world, _ *member, c *rejoinCall) {
			w.clock.add(9 * 24 * time.Hour)
			c.clientTime = w.clock.now()
		}},
		{"x509pop:revoked", true, func(w *world, m *member, _ *rejoinCall) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(m.nodeID, 1, "operator"); return err })
		}},
		{"x509pop:client-time", true, func(w *world, _ *member, c *rejoinCall) { c.clientTime = w.clock.now().Add(61 * time.Second) }},
		{"x509pop:pop", false, func(w *world, _ *member, c *rejoinCall) { c.signer = newKey(w.t) }},
		{"x509pop:unknown-certificate", false, func(w *world, m *member, c *rejoinCall) { c.chain = [][]byte{foreignLeaf(w, m)} }},
	}
	for n := 1; n <= len(faults); n++ {
		for _, alone := range []bool{true, false} {
			want, from := faults[n-1], 0
			if alone {
				from = n - 1
			}
			w := newWorld(t, x509pop)
			ofOther(w)
			m := w.memberOf(w.other)
			if from <= 1 && n > 1 {
				m = w.memberWithStatement()
			}
			req := w.rejoin(m, newKey(t), func(c *rejoinCall) {
				for _, f := range faults[from:n] {
					if f.add != nil {
						f.add(w, m, c)
					}
				}
			})
			tenant := w.root
			if want.owner {
				tenant = w.other
			}
			if e := w.refusedJoin(req, tenant); e.Reason != want.reason || e.Attestor != "x509pop" {
				t.Errorf("reason %q, want %q (alone %v)", e.Reason, want.reason, alone)
			}
		}
	}
}

func TestRejoinIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		change func(w *world, m *member, c *rejoinCall)
	}{
		"no chain":          {"x509pop:unknown-certificate", func(_ *world, _ *member, c *rejoinCall) { c.chain = nil }},
		"garbage":           {"x509pop:unknown-certificate", func(_ *world, _ *member, c *rejoinCall) { c.chain = [][]byte{{1}} }},
		"a renewal's proof": {"x509pop:pop", func(_ *world, _ *member, c *rejoinCall) { c.purpose = signing.RenewPoP }},
		"another's node id": {"x509pop:pop", func(w *world, _ *member, c *rejoinCall) { c.nodeID = w.member().nodeID }},
		"another's chain":   {"x509pop:pop", func(w *world, _ *member, c *rejoinCall) { c.chain = [][]byte{w.member().leaf} }},
		"too late":          {"x509pop:client-time", func(w *world, _ *member, c *rejoinCall) { c.clientTime = w.now().Add(-61 * time.Second) }},
		"no site":           {"join:site", func(_ *world, _ *member, c *rejoinCall) { c.body.Site = "none" }},
		"another site":      {"join:site", func(w *world, _ *member, c *rejoinCall) { c.body.Site = w.otherSite() }},
		"a ramdisk":         {"x509pop:identity-mismatch", func(_ *world, _ *member, c *rejoinCall) { c.body.Role = "ramdisk" }},
		"no role":           {"x509pop:identity-mismatch", func(_ *world, _ *member, c *rejoinCall) { c.body.Role = "nobody" }},
		"a policy without it": {"join:pool-attestor", func(w *world, _ *member, _ *rejoinCall) {
			w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{"join-token"} })
		}},
		"an archived pool": {"join:pool", func(w *world, _ *member, _ *rejoinCall) {
			w.updatePool(func(p *store.Pool) { p.ArchivedAt = epoch })
		}},
		"another's pool": {"join:tenant", func(w *world, _ *member, _ *rejoinCall) { w.giveToOther() }},
	} {
		w := newWorld(t, x509pop)
		m := w.member()
		req := w.rejoin(m, newKey(t), func(call *rejoinCall) { c.change(w, m, call) })
		if e := w.refusedJoin(req, w.root); e.Reason != c.reason {
			t.Errorf("%s: reason %q, want %q", name, e.Reason, c.reason)
		}
		if len(w.certs(m.nodeID)) != 1 {
			t.Errorf("%s: a certificate was issued", name)
		}
	}
	// A key that ever had a certificate is no next key: its own neither.
	w := newWorld(t, x509pop)
	m := w.member()
	if e := w.refusedJoin(w.rejoin(m, m.key), w.root); e.Reason != "join:replayed" {
		t.Errorf("its own key: reason %q", e.Reason)
	}
	next := w.mustRenew(m)
	if e := w.refusedJoin(w.rejoin(m, next.key), w.root); e.Reason != "join:replayed" {
		t.Errorf("the renewal's key: reason %q", e.Reason)
	}
	// A ramdisk keeps no key.
	w = newWorld(t, discovery(joinservice.ApproveNever), x509pop)
	ramdisk := newMachine(t)
	a := w.mustJoin(ramdisk, w.discoveryToken(ramdisk), booted(ramdisk))
	m = &member{nodeID: a.GetNodeId(), key: ramdisk.key, leaf: a.GetChain()[0]}
	for _, role := range []string{"ramdisk", "node"} {
		req := w.rejoin(m, newKey(t), func(c *rejoinCall) { c.body.Role = role })
		if e := w.refusedJoin(req, w.root); e.Reason != "x509pop:identity-mismatch" {
			t.Errorf("a ramdisk as %s: reason %q", role, e.Reason)
		}
	}
}

// A repeat by the same CSR, with evidence of its own, gets the same certificate. Evidence is good once.
func TestARejoinIsIdempotentByItsCSR(t *testing.T) {
	w := newWorld(t, x509pop)
	m := w.member()
	w.clock.add(2 * 24 * time.Hour)
	next := newKey(t)
	var csr []byte
	first := w.rejoin(m, next, func(c *rejoinCall) { csr = c.csr })
	a := w.mustAdmit(first)
	if e := w.refusedJoin(first, w.root); e.Reason != "x509pop:replay" {
		t.Errorf("the same evidence: reason %q", e.Reason)
	}
	w.clock.add(time.Second)
	again := w.rejoin(m, next, func(c *rejoinCall) { c.csr = csr })
	b := w.mustAdmit(again)
	if string(b.GetChain()[0]) != string(a.GetChain()[0]) || len(w.certs(m.nodeID)) != 2 || len(eventsOf[events.NodeJoined](w, w.root)) != 2 {
		t.Errorf("the repeat got another certificate")
	}
	if e := w.refusedJoin(again, w.root); e.Reason != "x509pop:replay" {
		t.Errorf("the repeat's evidence: reason %q", e.Reason)
	}
	w.clock.add(121 * time.Second)
	if e := w.refusedJoin(first, w.root); e.Reason != "x509pop:client-time" {
		t.Errorf("a captured request, later: reason %q", e.Reason)
	}
	// Another machine's evidence opens nothing of it.
	other := w.member()
	req := w.rejoin(other, next, func(c *rejoinCall) { c.csr = csr })
	if e := w.refusedJoin(req, w.root); e.Reason != "join:replayed" {
		t.Errorf("another node's evidence: reason %q", e.Reason)
	}
	// The certificate was revoked: it is not issued afresh.
	w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(m.nodeID, 1, "operator"); return err })
	req = w.rejoin(m, next, func(c *rejoinCall) { c.csr = csr })
	if e := w.refusedJoin(req, w.root); e.Reason != "join:replayed" {
		t.Errorf("after its revocation: reason %q", e.Reason)
	}
}

func TestConcurrentRejoinsGetOneCertificateForOneCSR(t *testing.T) {
	w := newWorld(t, x509pop)
	m := w.member()
	next := newKey(t)
	csr := newCSR(t, next)
	var wg sync.WaitGroup
	for i := range 16 {
		req := w.rejoin(m, next, func(c *rejoinCall) { c.csr, c.clientTime = csr, w.now().Add(time.Duration(i)*time.Second) })
		wg.Go(func() {
			if _, err := w.svc.Join(context.Background(), req); err != nil && status.Code(err) != codes.Aborted {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if certs := w.certs(m.nodeID); len(certs) != 2 {
		t.Errorf("%d certificates, want 2", len(certs))
	}
}

func TestARejoinIsAllOrNothing(t *testing.T) {
	w := newWorld(t, x509pop)
	m := w.member()
	w.clock.add(25 * time.Hour)
	req := w.rejoin(m, newKey(t))
	failed := w.failEachStep(req)
	want := []string{
		"forget old proofs", "record the proof", "mark the certificate used", "insert the certificate", "insert the join",
		"publish node.joined", "record node.joined",
	}
	if !slices.Equal(failed, want) {
		t.Errorf("failed %q,\nwant %q", failed, want)
	}
}

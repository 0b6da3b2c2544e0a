package joinservice_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

func hexOf(der []byte) string {
	digest := sha256.Sum256(der)
	return hex.EncodeToString(digest[:])
}

func (w *world) otherPool() string {
	id := store.NewID(store.PrefixPool, epoch)
	w.write(func(tx *store.Tx) error {
		return tx.InsertPool(store.Pool{ID: id, TenantID: w.root, SiteID: w.site, Name: "other", Agent: store.AgentBCD})
	})
	return id
}

func (w *world) otherSite() string {
	id := store.NewID(store.PrefixSite, epoch)
	w.write(func(tx *store.Tx) error { return tx.InsertSite(store.Site{ID: id, TenantID: w.root, Name: "us"}) })
	return id
}

// giveToOther makes the pool the other tenant's.
func (w *world) giveToOther() { w.updatePool(func(p *store.Pool) { p.TenantID = w.other }) }

func (w *world) revoke(tok token) {
	w.write(func(tx *store.Tx) error { _, err := tx.RevokeToken(tok.ID); return err })
}

// everything is all that the database tells anybody, row by row.
func (w *world) everything() []string {
	w.t.Helper()
	return query(w, func(tx *store.Tx) (all []string, err error) {
		for _, tenant := range []string{w.root, w.other} {
			evs, err := tx.Events(tenant, 0, 10_000)
			if err != nil {
				return nil, err
			}
			for _, e := range evs {
				all = append(all, string(e.Data))
			}
			audit, err := tx.Audit(tenant, "", 10_000)
			if err != nil {
				return nil, err
			}
			for _, a := range audit {
				all = append(all, fmt.Sprintf("%+v %s", a, a.Data))
			}
		}
		return all, nil
	})
}

// Req: AP-006 AP-012 AP-021 AP-048
func TestAnApprovalAdmitsOneJoin(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	tok := w.discoveryToken(m)
	req := w.request(m, tok, booted(m))
	d := w.deferred(req)
	if again := w.deferred(req); again.GetRequestId() != d.GetRequestId() || w.usesLeft(tok.ID) != 1 {
		t.Errorf("deferred as %q, then as %q", d.GetRequestId(), again.GetRequestId())
	}
	w.approve(d.GetRequestId())
	w.clock.add(time.Minute)
	a := w.mustAdmit(req)
	r := w.joinRequest(d.GetRequestId())
	if r.State != store.JoinRequestConsumed || !r.ConsumedAt.Equal(epoch.Add(time.Minute)) || w.usesLeft(tok.ID) != 0 {
		t.Errorf("request %+v, %d uses left", r, w.usesLeft(tok.ID))
	}
	// The same again is the same admission, and another key is not admitted by it.
	if b := w.mustAdmit(req); b.GetNodeId() != a.GetNodeId() || len(w.certs(a.GetNodeId())) != 1 {
		t.Errorf("repeat %v", b)
	}
	m.newKey(t)
	if e := w.refusedJoin(w.request(m, tok, booted(m)), w.root); e.Reason != "discovery:exhausted" {
		t.Errorf("reason %q", e.Reason)
	}
	fresh := newMachine(t)
	fresh.claims = m.claims
	w.write(func(tx *store.Tx) error { return tx.FreeMachine(a.GetNodeId()) })
	if got := w.deferred(w.request(fresh, w.discoveryToken(m), booted(m))); got.GetRequestId() == d.GetRequestId() {
		t.Error("a consumed request waits again")
	}
}

// Req: AP-009
func TestAnApprovalIsForItsRequestAlone(t *testing.T) {
	for name, change := range map[string]func(w *world, m *machine) *joinv1.JoinRequest{
		"another CSR": func(w *world, m *machine) *joinv1.JoinRequest { return nil },
		"another token": func(w *world, m *machine) *joinv1.JoinRequest {
			return w.request(m, w.discoveryToken(m), booted(m))
		},
	} {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		tok := w.discoveryToken(m)
		d := w.deferred(w.request(m, tok, booted(m)))
		w.approve(d.GetRequestId())
		req := change(w, m)
		if req == nil {
			m.newKey(t)
			req = w.request(m, tok, booted(m))
		}
		if other := w.deferred(req); other.GetRequestId() == d.GetRequestId() {
			t.Errorf("%s: the approved request was changed", name)
		}
		if r := w.joinRequest(d.GetRequestId()); r.State != store.JoinRequestApproved || r.TokenID != tok.ID {
			t.Errorf("%s: request %+v", name, r)
		}
	}
}

// Req: AP-010 AP-011
func TestANewerAttemptRefreshesTheRequest(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	first := w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
	w.clock.add(time.Hour)
	m.newKey(t)
	m.claims.Hostname = "renamed"
	tok := w.discoveryToken(m)
	second := w.deferred(w.request(m, tok, bootedBy(m.claims.GetMacs()[0], 8)))
	r := w.joinRequest(first.GetRequestId())
	if second.GetRequestId() != first.GetRequestId() || len(w.joinRequests()) != 1 {
		t.Fatalf("requests %+v", w.joinRequests())
	}
	if hex.EncodeToString(r.CSRSHA256[:]) != hexOf(m.csr) || r.TokenID != tok.ID || r.Claims.Hostname != "renamed" || r.ClaimedEpoch != 8 ||
		!r.CreatedAt.Equal(epoch) || !r.ExpiresAt.Equal(epoch.Add(25*time.Hour)) {
		t.Errorf("request %+v", r)
	}
	if n := len(eventsOf[events.JoinRequestCreated](w, w.root)); n != 1 {
		t.Errorf("%d requests were told", n)
	}
}

// Two tenants of one site cannot put their requests in each other's place.
func TestARequestIsItsTenants(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	first := w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
	pool := store.NewID(store.PrefixPool, epoch)
	w.write(func(tx *store.Tx) error {
		return tx.InsertPool(store.Pool{ID: pool, TenantID: w.other, SiteID: w.site, Name: "theirs", Agent: store.AgentBCD})
	})
	same := newMachine(t)
	same.claims = m.claims
	theirs := w.issue(tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: m.claims.GetMacs()[0]})
	second := w.deferred(w.request(same, theirs, booted(m)))
	if second.GetRequestId() == first.GetRequestId() || w.joinRequest(first.GetRequestId()).TenantID != w.root ||
		w.joinRequest(second.GetRequestId()).TenantID != w.other {
		t.Errorf("requests %q and %q", first.GetRequestId(), second.GetRequestId())
	}
	if n := len(eventsOf[events.JoinRequestCreated](w, w.other)); n != 1 {
		t.Errorf("%d requests were told to the other tenant", n)
	}
}

// Two machines with the same MAC: each is decided, and the token is good for one.
func TestTwoMachinesWithOneMAC(t *testing.T) {
	w, m, n := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t), newMachine(t)
	n.claims.Macs = m.claims.GetMacs()
	tok := w.discoveryToken(m)
	first, second := w.request(m, tok, booted(m)), w.request(n, tok, booted(m))
	w.approve(w.deferred(first).GetRequestId())
	w.approve(w.deferred(second).GetRequestId())
	w.mustAdmit(second)
	if e := w.refusedJoin(first, w.root); e.Reason != "discovery:exhausted" {
		t.Errorf("reason %q", e.Reason)
	}
}

// Req: AP-014 AP-019 AP-033
func TestARejectedMachineIsRefused(t *testing.T) {
	for _, approved := range []bool{false, true} {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		tok := w.discoveryToken(m)
		req := w.request(m, tok, booted(m))
		d := w.deferred(req)
		if approved {
			w.approve(d.GetRequestId())
		}
		w.reject(d.GetRequestId())
		for range 2 {
			if e := w.refusedJoin(req, w.root); e.Reason != "discovery:rejected" {
				t.Errorf("reason %q", e.Reason)
			}
		}
		if w.usesLeft(tok.ID) != 1 || len(w.nodes()) != 0 {
			t.Errorf("%d uses left, nodes %v", w.usesLeft(tok.ID), w.nodes())
		}
		w.clock.add(48 * time.Hour)
		if e := w.refusedJoin(w.request(m, w.discoveryToken(m), booted(m)), w.root); e.Reason != "discovery:rejected" {
			t.Errorf("with another token, two days later: reason %q", e.Reason)
		}
		// The rejection is of this key; the machine may ask with another one.
		m.newKey(t)
		w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
	}
}

// Req: AP-015 AP-016 AP-020
func TestAPendingRequestExpires(t *testing.T) {
	for _, ttl := range []time.Duration{0, time.Minute, 7 * 24 * time.Hour} {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown, pendingTTL(ttl))), newMachine(t)
		live := ttl
		if ttl == 0 {
			live = 24 * time.Hour
		}
		d := w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
		w.clock.add(live - time.Millisecond)
		if got := w.joinRequest(d.GetRequestId()).StateAt(w.now()); got != store.JoinRequestPending {
			t.Errorf("%v: %s before its end", live, got)
		}
		w.clock.add(time.Millisecond)
		if got := w.joinRequest(d.GetRequestId()).StateAt(w.now()); got != store.JoinRequestExpired {
			t.Errorf("%v: %s at its end", live, got)
		}
		next := w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
		if next.GetRequestId() == d.GetRequestId() || w.joinRequest(d.GetRequestId()).State != store.JoinRequestExpired {
			t.Errorf("%v: the expired request waits again", live)
		}
	}
}

// Req: AP-017 AP-020
func TestAnApprovalExpires(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	tok := w.discoveryToken(m)
	req := w.request(m, tok, booted(m))
	d := w.deferred(req)
	w.approve(d.GetRequestId(), func(r *approvals.ApproveRequest) { r.TTL = time.Minute })
	w.clock.add(time.Minute)
	if got := w.joinRequest(d.GetRequestId()).StateAt(w.now()); got != store.JoinRequestExpired {
		t.Errorf("state %s", got)
	}
	if next := w.deferred(req); next.GetRequestId() == d.GetRequestId() {
		t.Error("the expired approval waits again")
	}
	if w.usesLeft(tok.ID) != 1 || len(w.nodes()) != 0 {
		t.Errorf("%d uses left, nodes %v", w.usesLeft(tok.ID), w.nodes())
	}
}

// The token was good when the machine asked: it may end while a person thinks. What ended it otherwise counts.
//
// Req: AP-048
func TestARequestRemembersThatItsTokenVerified(t *testing.T) {
	start := func() (*world, *machine, token, *joinv1.JoinRequest, string) {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		tok := w.discoveryToken(m)
		req := w.request(m, tok, booted(m))
		id := w.deferred(req).GetRequestId()
		w.clock.add(2 * time.Hour) // the token was good for one
		return w, m, tok, req, id
	}
	w, m, tok, req, id := start()
	if d := w.deferred(req); d.GetRequestId() != id {
		t.Error("the machine does not wait any more")
	}
	other := newMachine(t)
	other.claims = m.claims
	if e := w.refusedJoin(w.request(other, tok, booted(m)), w.root); e.Reason != "discovery:expired" {
		t.Errorf("another key: reason %q", e.Reason)
	}
	w.approve(id)
	bad := w.request(m, token{tok.Token, withSecret(tok, [32]byte{1})}, booted(m))
	if e := w.refusedJoin(bad, w.root); e.Reason != "discovery:secret-mismatch" {
		t.Errorf("another secret: reason %q", e.Reason)
	}
	w.mustAdmit(req)
	if w.usesLeft(tok.ID) != 0 {
		t.Errorf("%d uses left", w.usesLeft(tok.ID))
	}

	for reason, end := range map[string]func(*world, token){
		"discovery:revoked": func(w *world, tok token) { w.revoke(tok) },
		"discovery:exhausted": func(w *world, tok token) {
			w.write(func(tx *store.Tx) error { return tx.SpendToken(tok.ID) })
		},
	} {
		w, _, tok, req, id := start()
		w.approve(id)
		end(w, tok)
		if e := w.refusedJoin(req, w.root); e.Reason != reason {
			t.Errorf("reason %q, want %q", e.Reason, reason)
		}
		if r := w.joinRequest(id); r.State != store.JoinRequestApproved {
			t.Errorf("%s: request %+v", reason, r)
		}
	}
}

// What holds of a join's pool holds of an approval's when the machine comes.
func TestThePoolOfAnApprovalIsJudgedAtTheJoin(t *testing.T) {
	for reason, change := range map[string]func(*world, *store.Pool){
		"join:pool":          func(_ *world, p *store.Pool) { p.ArchivedAt = epoch },
		"join:tenant":        func(w *world, p *store.Pool) { p.TenantID = w.other },
		"join:site":          func(w *world, p *store.Pool) { p.SiteID = w.otherSite() },
		"join:pool-attestor": func(_ *world, p *store.Pool) { p.Policy.JoinAttestors = []string{"join-token"} },
	} {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		req := w.request(m, w.siteDiscoveryToken(m), booted(m))
		id := w.deferred(req).GetRequestId()
		w.approve(id)
		pool := query(w, func(tx *store.Tx) (store.Pool, error) { return tx.Pool(w.pool) })
		change(w, &pool)
		w.write(func(tx *store.Tx) error { return tx.UpdatePool(pool) })
		if e := w.refusedJoin(req, w.root); e.Reason != reason {
			t.Errorf("reason %q, want %q", e.Reason, reason)
		}
		if r := w.joinRequest(id); r.State != store.JoinRequestApproved {
			t.Errorf("%s: request %+v", reason, r)
		}
	}
}

func TestRequestsOfASiteAreLimited(t *testing.T) {
	w := newWorld(t, discovery(joinservice.ApproveUnknown))
	first := newMachine(t)
	w.deferred(w.request(first, w.discoveryToken(first), booted(first)))
	for range 19 {
		m := newMachine(t)
		w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
	}
	m := newMachine(t)
	req := w.request(m, w.discoveryToken(m), booted(m))
	if e := w.refusedJoin(req, w.root); e.Reason != "join:requests" {
		t.Errorf("the 21st in a minute: reason %q", e.Reason)
	}
	first.newKey(t) // a refresh is no new one
	w.deferred(w.request(first, w.discoveryToken(first), booted(first)))
	w.clock.add(time.Minute)
	w.deferred(req)

	w.write(func(tx *store.Tx) error {
		for i := len(w.pendingIn(tx)); i < 1000; i++ {
			if err := tx.InsertJoinRequest(store.JoinRequest{
				ID: tx.NewID(store.PrefixJoinRequest), TenantID: w.root, SiteID: w.site, Attestor: "discovery", Role: "ramdisk",
				MachineKey: fmt.Sprintf("mac:%d", i), ExpiresAt: tx.Now().Add(time.Hour),
			}); err != nil {
				return err
			}
		}
		return nil
	})
	w.clock.add(2 * time.Minute)
	m = newMachine(t)
	req = w.request(m, w.discoveryToken(m), booted(m))
	if e := w.refusedJoin(req, w.root); e.Reason != "join:requests" {
		t.Errorf("beside 1000 that wait: reason %q", e.Reason)
	}
	w.clock.add(time.Hour) // most of them expire
	w.deferred(w.request(m, w.discoveryToken(m), booted(m)))
}

func (w *world) pendingIn(tx *store.Tx) []store.JoinRequest {
	p, err := tx.Pool(w.pool)
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := tx.JoinRequestsOfPool(p, store.JoinRequestPending, "", 10_000)
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// Every statement of a deferral's transaction, and of an approved join's, is failed in turn. Nothing is left each time, the
// request stays approved, and in the end the same request is deferred and admitted.
//
// Req: AP-013
func TestDeferralAndApprovedJoinAreAllOrNothing(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	tok := w.discoveryToken(m)
	req := w.request(m, tok, booted(m))
	faulty := func(want []string, state store.JoinRequestState) *daemonv1.JoinResponseBody {
		t.Helper()
		before := w.dump() + fmt.Sprintf("%+v", w.joinRequests())
		var failed []string
		for n := 1; ; n++ {
			left := n
			w.step = func(step string) error {
				if left--; left == 0 {
					failed = append(failed, step)
					return errors.New("power cut")
				}
				return nil
			}
			resp, err := w.svc.Join(t.Context(), req)
			w.step = nil
			if err == nil {
				if !slices.Equal(failed, want) {
					t.Errorf("failed %q,\nwant %q", failed, want)
				}
				return w.openBody(req, resp)
			}
			wantCode(t, err, codes.Unavailable, "The control plane is not available")
			if after := w.dump() + fmt.Sprintf("%+v", w.joinRequests()); after != before {
				t.Fatalf("after a fault at %q:\n%s\nbefore:\n%s", failed[n-1], after, before)
			}
			for _, r := range w.joinRequests() {
				if r.State != state {
					t.Fatalf("after a fault at %q: request %+v", failed[n-1], r)
				}
			}
		}
	}
	d := faulty([]string{"expire join requests", "insert the join request", "publish security.join-request.created"}, "").GetDeferral()
	m.newKey(t)
	req = w.request(m, tok, booted(m))
	d2 := faulty([]string{"refresh the join request"}, store.JoinRequestPending).GetDeferral()
	if d.GetRequestId() != d2.GetRequestId() {
		t.Errorf("requests %q and %q", d.GetRequestId(), d2.GetRequestId())
	}
	w.approve(d.GetRequestId())
	a := faulty([]string{
		"spend the token", "consume the join request", "insert the node", "project the node's authorization", "insert the certificate",
		"insert the join", "publish node.joined", "record node.joined",
	}, store.JoinRequestApproved).GetAdmission()
	if a == nil || w.usesLeft(tok.ID) != 0 || w.joinRequest(d.GetRequestId()).State != store.JoinRequestConsumed {
		t.Errorf("admission %v", a)
	}
}

// Req: AP-012
func TestConcurrentRetriesOfAnApprovalAreOneAdmission(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	tok := w.discoveryToken(m)
	req := w.request(m, tok, booted(m))
	id := w.deferred(req).GetRequestId()
	w.approve(id)
	var wg sync.WaitGroup
	var mu sync.Mutex
	ids := map[string]int{}
	for range 64 {
		wg.Go(func() {
			for {
				resp, err := w.svc.Join(context.Background(), req)
				if status.Code(err) == codes.Aborted {
					continue // as a daemon does, but for the wait
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				ids[w.open(req, resp).GetNodeId()]++
				mu.Unlock()
				return
			}
		})
	}
	wg.Wait()
	if len(ids) != 1 || len(w.nodes()) != 1 || len(w.certs(w.nodes()[0].ID)) != 1 || w.usesLeft(tok.ID) != 0 ||
		len(eventsOf[events.NodeJoined](w, w.root)) != 1 {
		t.Errorf("nodes %v, %d uses left", ids, w.usesLeft(tok.ID))
	}
	if r := w.joinRequest(id); r.State != store.JoinRequestConsumed {
		t.Errorf("request %+v", r)
	}
}

// Many first attempts at once, of one machine by one key: one request.
func TestConcurrentFirstAttemptsAreOneRequest(t *testing.T) {
	w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
	req := w.request(m, w.discoveryToken(m), booted(m))
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if _, err := w.svc.Join(context.Background(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all := w.joinRequests(); len(all) != 1 || len(eventsOf[events.JoinRequestCreated](w, w.root)) != 1 {
		t.Errorf("requests %+v", all)
	}
}

// A rejection races with the retry: either the machine is admitted and the rejection fails, or it is rejected and refused.
func TestARejectionRacesWithTheRetry(t *testing.T) {
	for range 20 {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		tok := w.discoveryToken(m)
		req := w.request(m, tok, booted(m))
		id := w.deferred(req).GetRequestId()
		w.approve(id)
		var wg sync.WaitGroup
		var joinErr, rejectErr error
		wg.Go(func() { _, joinErr = w.svc.Join(context.Background(), req) })
		wg.Go(func() {
			_, rejectErr = w.approvals().Reject(context.Background(), "key_operator", approvals.RejectRequest{
				TenantID: w.root, PoolID: w.pool, RequestID: id,
			})
		})
		wg.Wait()
		r, joined := w.joinRequest(id), len(w.nodes()) == 1
		if (joinErr == nil) == (rejectErr == nil) || joined != (joinErr == nil) || (r.State == store.JoinRequestConsumed) != joined ||
			(w.usesLeft(tok.ID) == 0) != joined {
			t.Fatalf("join %v, reject %v, request %+v", joinErr, rejectErr, r)
		}
	}
}

// An approval races with the retry: it is deferred, or admitted, or told to come again at once.
func TestAnApprovalRacesWithTheRetry(t *testing.T) {
	for range 20 {
		w, m := newWorld(t, discovery(joinservice.ApproveUnknown)), newMachine(t)
		req := w.request(m, w.discoveryToken(m), booted(m))
		id := w.deferred(req).GetRequestId()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := w.svc.Join(context.Background(), req); err != nil && status.Code(err) != codes.Aborted {
				t.Errorf("join: %v", err)
			}
		})
		wg.Go(func() { w.approve(id) })
		wg.Wait()
		w.mustAdmit(req)
		if len(w.nodes()) != 1 {
			t.Fatalf("nodes %+v", w.nodes())
		}
	}
}

// enrolling is an attestor that asks a person about each machine, and knows one by its TPM's endorsement key.
type enrolling struct {
	joinservice.JoinToken

	withEK crypto.PublicKey
}

func (a enrolling) Open(ctx context.Context, r *joinservice.Request) (joinservice.Credential, error) {
	c, err := a.JoinToken.Open(ctx, r)
	return enrollingCredential{c, r.CSR().PublicKey.(*ecdsa.PublicKey).Equal(a.withEK)}, err
}

type enrollingCredential struct {
	joinservice.Credential

	ek bool
}

func (c enrollingCredential) Prove(tx *store.Tx) (*joinservice.Grant, error) {
	g, err := c.Credential.Prove(tx)
	if err == nil {
		ek := sha256.Sum256([]byte("endorsement key"))
		g.Approval = &joinservice.Approval{Rule: joinservice.ApproveAlways, PendingTTL: time.Hour, MAC: "b4:96:91:a7:00:01"}
		if c.ek {
			g.Approval.EKSHA256 = ek[:]
		}
	}
	return g, err
}

// Req: AP-007
func TestMachinesAreKeyedByTheirBestName(t *testing.T) {
	proved := newMachine(t)
	w := newWorld(t, func(o *joinservice.Options) {
		o.Attestors = []joinservice.Attestor{enrolling{joinservice.JoinToken{Keys: o.Keys.Decryption}, proved.key.Public()}}
	})
	trusted, untrusted := newMachine(t), newMachine(t)
	untrusted.claims.ProductUuid = ""
	untrusted.claims.Macs = nil
	ek := hexOf([]byte("endorsement key"))
	for m, want := range map[*machine]string{proved: "ek:" + ek, trusted: "hw:", untrusted: "mac:b4:96:91:a7:00:01"} {
		r := w.joinRequest(w.deferred(w.request(m, w.token())).GetRequestId())
		if want == "hw:" {
			want += hex.EncodeToString(r.HardwareKey)
		}
		if r.MachineKey != want || (hex.EncodeToString(r.EKSHA256) == ek) != (m == proved) {
			t.Errorf("machine key %q, want %q", r.MachineKey, want)
		}
	}
	w.approve(w.joinRequests()[0].ID)
}

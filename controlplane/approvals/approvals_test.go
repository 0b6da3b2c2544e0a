package approvals_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

const (
	tenant, other = "tn_a", "tn_b"
	site, site2   = "site_a", "site_b"
	pool, pool2   = "pool_a", "pool_b" // of the site
	elsewhere     = "pool_c"           // of the other site
	archived      = "pool_old"         // of the site
	unmanned      = "pool_none"        // of the site
	tokensOnly    = "pool_tokens"      // of the site
	theirs        = "pool_theirs"      // of the other tenant, at the site
	operator      = "key_1"
)

type world struct {
	*approvals.Service
	t   *testing.T
	now time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, now: epoch}
	s, err := store.Open(t.Context(), store.Options{
		Path: filepath.Join(t.TempDir(), "control.db"), Now: func() time.Time { return w.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w.Service = &approvals.Service{Store: s}
	w.write(func(tx *store.Tx) error {
		for _, id := range []string{tenant, other} {
			if err := tx.InsertTenant(store.Tenant{ID: id, Name: id}); err != nil {
				return err
			}
		}
		for _, id := range []string{site, site2} {
			if err := tx.InsertSite(store.Site{ID: id, TenantID: tenant, Name: id}); err != nil {
				return err
			}
		}
		for _, p := range []store.Pool{
			{ID: pool, SiteID: site},
			{ID: pool2, SiteID: site},
			{ID: elsewhere, SiteID: site2},
			{ID: archived, SiteID: site, ArchivedAt: epoch},
			{ID: unmanned, SiteID: site, Agent: store.AgentNone},
			{ID: tokensOnly, SiteID: site, Policy: store.PoolPolicy{JoinAttestors: []string{"join-token"}}},
			{ID: theirs, SiteID: site, TenantID: other},
		} {
			if p.TenantID == "" {
				p.TenantID = tenant
			}
			if p.Agent == "" {
				p.Agent = store.AgentBCD
			}
			if err := tx.InsertPool(p); err != nil {
				return err
			}
		}
		return nil
	})
	return w
}

func (w *world) write(fn func(*store.Tx) error) {
	w.t.Helper()
	if err := w.Store.Write(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) request(id string) (r store.JoinRequest) {
	w.t.Helper()
	if err := w.Store.Read(context.Background(), func(tx *store.Tx) (err error) {
		r, err = tx.JoinRequest(id)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// pend writes a pending request that no pool claims, which expires in a day.
func (w *world) pend(change ...func(*store.JoinRequest)) string {
	w.t.Helper()
	r := store.JoinRequest{TenantID: tenant, SiteID: site, Attestor: "discovery", Role: "ramdisk", ExpiresAt: w.now.Add(24 * time.Hour)}
	w.write(func(tx *store.Tx) error {
		r.ID = tx.NewID(store.PrefixJoinRequest)
		r.MachineKey, r.CSRSHA256 = "mac:"+r.ID, sha256.Sum256([]byte(r.ID))
		for _, c := range change {
			c(&r)
		}
		return tx.InsertJoinRequest(r)
	})
	return r.ID
}

func of(p string) func(*store.JoinRequest) { return func(r *store.JoinRequest) { r.PoolID = p } }

func (w *world) approve(id string, change ...func(*approvals.ApproveRequest)) (store.JoinRequest, error) {
	r := approvals.ApproveRequest{TenantID: tenant, PoolID: pool, RequestID: id}
	for _, c := range change {
		c(&r)
	}
	return w.Approve(context.Background(), operator, r)
}

func (w *world) reject(id string) (store.JoinRequest, error) {
	return w.Reject(context.Background(), operator, approvals.RejectRequest{TenantID: tenant, PoolID: pool, RequestID: id})
}

// must fails the test where a decision that is only a step of it fails.
func (w *world) must(r store.JoinRequest, err error) store.JoinRequest {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func ttl(d time.Duration) func(*approvals.ApproveRequest) {
	return func(r *approvals.ApproveRequest) { r.TTL = d }
}

func in(p string) func(*approvals.ApproveRequest) {
	return func(r *approvals.ApproveRequest) { r.PoolID = p }
}

// in each state there is one request.
func (w *world) oneInEachState() map[store.JoinRequestState]string {
	w.t.Helper()
	ids := map[store.JoinRequestState]string{}
	ids[store.JoinRequestExpired] = w.pend(func(r *store.JoinRequest) { r.ExpiresAt = w.now })
	ids[store.JoinRequestPending] = w.pend()
	ids[store.JoinRequestApproved] = w.must(w.approve(w.pend())).ID
	ids[store.JoinRequestRejected] = w.must(w.reject(w.pend())).ID
	ids[store.JoinRequestConsumed] = w.must(w.approve(w.pend())).ID
	w.write(func(tx *store.Tx) error { return tx.ConsumeJoinRequest(ids[store.JoinRequestConsumed]) })
	return ids
}

// Req: AP-018 AP-028 AP-043
func TestApprove(t *testing.T) {
	for name, c := range map[string]struct {
		ttl, lives time.Duration
	}{
		"default": {0, time.Hour}, "least": {time.Minute, time.Minute}, "most": {24 * time.Hour, 24 * time.Hour},
	} {
		w := newWorld(t)
		id := w.pend()
		w.now = w.now.Add(time.Hour)
		got := w.must(w.approve(id, ttl(c.ttl), func(r *approvals.ApproveRequest) { r.Reason = "rack B7 intake, ticket 4411" }))
		if got.State != store.JoinRequestApproved || got.PoolID != pool || !got.ExpiresAt.Equal(w.now.Add(c.lives)) ||
			!got.DecidedAt.Equal(w.now) || got.DecidedBy != operator || got.Reason != "rack B7 intake, ticket 4411" || !got.ConsumedAt.IsZero() {
			t.Errorf("%s: %+v", name, got)
		}
		if diff := cmp.Diff(w.request(id), got); diff != "" {
			t.Errorf("%s: - recorded, + returned:\n%s", name, diff)
		}
	}
}

// Req: AP-018
func TestApproveRefusesBadArguments(t *testing.T) {
	w := newWorld(t)
	id := w.pend()
	for name, change := range map[string]func(*approvals.ApproveRequest){
		"too short":     ttl(59 * time.Second),
		"too long":      ttl(24*time.Hour + time.Second),
		"negative":      ttl(-time.Hour),
		"half a second": ttl(90*time.Second + 500*time.Millisecond),
		"a long reason": func(r *approvals.ApproveRequest) { r.Reason = strings.Repeat("x", 1025) },
		"an escape":     func(r *approvals.ApproveRequest) { r.Reason = "ok\x1b[31m" },
		"two lines":     func(r *approvals.ApproveRequest) { r.Reason = "a\nb" },
		"no UTF-8":      func(r *approvals.ApproveRequest) { r.Reason = "\xff" },
	} {
		if _, err := w.approve(id, change); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := w.request(id); got.State != store.JoinRequestPending {
		t.Errorf("%+v", got)
	}
	w.must(w.approve(id, func(r *approvals.ApproveRequest) { r.Reason = strings.Repeat("ä", 512) }))
	if _, err := w.Reject(t.Context(), operator, approvals.RejectRequest{TenantID: tenant, PoolID: pool, RequestID: id, Reason: "\x00"}); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("reject: %v", err)
	}
}

// Req: AP-029
func TestApprovingTwiceReturnsTheApproval(t *testing.T) {
	w := newWorld(t)
	first := w.must(w.approve(w.pend(), ttl(10*time.Minute)))
	w.now = w.now.Add(time.Minute)
	again, err := w.Approve(t.Context(), "key_2", approvals.ApproveRequest{
		TenantID: tenant, PoolID: pool, RequestID: first.ID, TTL: time.Hour, Reason: "again", CSRSHA256: &first.CSRSHA256,
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, again); diff != "" {
		t.Errorf("the second approval differs:\n%s", diff)
	}
	if n := w.told(events.TypeJoinRequestApproved); n != 1 {
		t.Errorf("told %d times", n)
	}
	if _, err := w.approve(first.ID, in(pool2)); !fault.Is(err, fault.NotFound) {
		t.Errorf("by another pool: %v", err)
	}
}

// told counts the tenant's events of a type.
func (w *world) told(typ events.Type) (n int) {
	w.t.Helper()
	for _, e := range w.events(tenant) {
		if e.Type == typ {
			n++
		}
	}
	return n
}

func (w *world) events(tenant string) (all []events.Event) {
	w.t.Helper()
	if err := w.Store.Read(context.Background(), func(tx *store.Tx) (err error) {
		all, err = tx.Events(tenant, 0, 1000)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return all
}

// What each state allows.
//
// Req: AP-019 AP-030 AP-033
func TestDecisionsInEachState(t *testing.T) {
	for _, state := range store.JoinRequestStates {
		for name, decide := range map[string]func(*world, string) (store.JoinRequest, error){
			"approve": func(w *world, id string) (store.JoinRequest, error) { return w.approve(id) },
			"reject":  (*world).reject,
		} {
			w := newWorld(t)
			id := w.oneInEachState()[state]
			before := w.request(id)
			got, err := decide(w, id)
			want := map[string]map[store.JoinRequestState]store.JoinRequestState{
				"approve": {store.JoinRequestPending: store.JoinRequestApproved, store.JoinRequestApproved: store.JoinRequestApproved},
				"reject": {
					store.JoinRequestPending: store.JoinRequestRejected, store.JoinRequestApproved: store.JoinRequestRejected,
					store.JoinRequestRejected: store.JoinRequestRejected,
				},
			}[name][state]
			if want == "" {
				if !fault.Is(err, fault.InvalidState) || !strings.Contains(err.Error(), "is "+string(state)) {
					t.Errorf("%s of a request that is %s: %v", name, state, err)
				}
				if diff := cmp.Diff(before, w.request(id)); diff != "" {
					t.Errorf("%s of a request that is %s changed it:\n%s", name, state, diff)
				}
				continue
			}
			if err != nil || got.State != want {
				t.Errorf("%s of a request that is %s: %s, %v, want %s", name, state, got.State, err, want)
			}
			if diff := cmp.Diff(w.request(id), got); diff != "" {
				t.Errorf("- recorded, + returned:\n%s", diff)
			}
		}
	}
	// An approval that ran out is no approval.
	w := newWorld(t)
	id := w.must(w.approve(w.pend(), ttl(time.Minute))).ID
	w.now = w.now.Add(time.Minute)
	for _, err := range []error{second(w.approve(id)), second(w.reject(id))} {
		if !fault.Is(err, fault.InvalidState) || !strings.Contains(err.Error(), "is expired") {
			t.Errorf("an approval that ran out: %v", err)
		}
	}
}

func second(_ store.JoinRequest, err error) error { return err }

// Req: AP-031
func TestApproveIntoAPoolThatTakesNobody(t *testing.T) {
	w := newWorld(t)
	for _, p := range []string{archived, unmanned, tokensOnly} {
		id := w.pend()
		if _, err := w.approve(id, in(p)); !fault.Is(err, fault.InvalidState) {
			t.Errorf("%s: %v", p, err)
		}
		if got := w.request(id); got.State != store.JoinRequestPending || got.PoolID != "" {
			t.Errorf("%s: %+v", p, got)
		}
		// Its operators may still reject.
		if _, err := w.Reject(t.Context(), operator, approvals.RejectRequest{TenantID: tenant, PoolID: p, RequestID: id}); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
}

// Req: AP-009
func TestApproveCanPinTheCSR(t *testing.T) {
	w := newWorld(t)
	id := w.pend()
	seen := w.request(id)
	w.write(func(tx *store.Tx) error {
		next := seen
		next.CSRSHA256 = sha256.Sum256([]byte("another key"))
		return tx.RefreshJoinRequest(next)
	})
	pin := func(digest [32]byte) func(*approvals.ApproveRequest) {
		return func(r *approvals.ApproveRequest) { r.CSRSHA256 = &digest }
	}
	if _, err := w.approve(id, pin(seen.CSRSHA256)); !fault.Is(err, fault.Conflict) {
		t.Errorf("the CSR that was seen: %v", err)
	}
	if got := w.request(id); got.State != store.JoinRequestPending {
		t.Errorf("%+v", got)
	}
	w.must(w.approve(id, pin(w.request(id).CSRSHA256)))
	if _, err := w.approve(id, pin([32]byte{})); !fault.Is(err, fault.Conflict) {
		t.Errorf("an approved request, another CSR: %v", err)
	}
}

// Nobody else sees a request, and nobody hears that it exists.
func TestRequestsOfOthersDoNotExist(t *testing.T) {
	w := newWorld(t)
	unclaimed, claimed := w.pend(), w.pend(of(pool))
	foreign := w.pend(func(r *store.JoinRequest) { r.TenantID = other })
	for name, c := range map[string]struct{ tenant, pool, id string }{
		"another tenant":           {other, pool, unclaimed},
		"another tenant's pool":    {other, theirs, unclaimed},
		"a foreign pool":           {tenant, theirs, unclaimed},
		"another site's pool":      {tenant, elsewhere, unclaimed},
		"another pool's request":   {tenant, pool2, claimed},
		"another tenant's request": {tenant, pool, foreign},
		"no pool":                  {tenant, "pool_x", unclaimed},
		"no request":               {tenant, pool, store.NewID(store.PrefixJoinRequest, epoch)},
		"no id":                    {tenant, pool, ""},
	} {
		_, approve := w.Approve(t.Context(), operator, approvals.ApproveRequest{TenantID: c.tenant, PoolID: c.pool, RequestID: c.id})
		_, reject := w.Reject(t.Context(), operator, approvals.RejectRequest{TenantID: c.tenant, PoolID: c.pool, RequestID: c.id})
		if !fault.Is(approve, fault.NotFound) || !fault.Is(reject, fault.NotFound) {
			t.Errorf("%s: approve %v, reject %v", name, approve, reject)
		}
	}
	for _, id := range []string{unclaimed, claimed, foreign} {
		if got := w.request(id); got.State != store.JoinRequestPending {
			t.Errorf("%+v", got)
		}
	}
	for _, c := range []struct{ tenant, pool string }{{other, pool}, {tenant, theirs}, {tenant, "pool_x"}} {
		if _, err := w.List(t.Context(), approvals.ListRequest{TenantID: c.tenant, PoolID: c.pool}); !fault.Is(err, fault.NotFound) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func (w *world) list(r approvals.ListRequest) (ids []string) {
	w.t.Helper()
	r.TenantID = tenant
	page, err := w.List(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, r := range page.Requests {
		ids = append(ids, r.ID)
	}
	return ids
}

// Req: AP-026
func TestListShowsThePoolsAndTheUnclaimed(t *testing.T) {
	w := newWorld(t)
	unclaimed, mine, others := w.pend(), w.pend(of(pool)), w.pend(of(pool2))
	w.pend(func(r *store.JoinRequest) { r.SiteID = site2 })
	w.pend(func(r *store.JoinRequest) { r.TenantID = other })
	w.pend(func(r *store.JoinRequest) { r.TenantID = other }, of(theirs))
	for p, want := range map[string][]string{pool: {unclaimed, mine}, pool2: {unclaimed, others}} {
		if got := w.list(approvals.ListRequest{PoolID: p}); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", p, got, want)
		}
	}
	// An approval claims it.
	w.must(w.approve(unclaimed))
	if got := w.list(approvals.ListRequest{PoolID: pool2, State: "all"}); !slices.Equal(got, []string{others}) {
		t.Errorf("after another pool approved: %q", got)
	}
}

// Req: AP-020 AP-021 AP-024 AP-025
func TestListByState(t *testing.T) {
	w := newWorld(t)
	ids := w.oneInEachState()
	for _, state := range store.JoinRequestStates {
		if got := w.list(approvals.ListRequest{PoolID: pool, State: string(state)}); !slices.Equal(got, []string{ids[state]}) {
			t.Errorf("%s: %q, want %q", state, got, ids[state])
		}
	}
	if got := w.list(approvals.ListRequest{PoolID: pool}); !slices.Equal(got, []string{ids[store.JoinRequestPending]}) {
		t.Errorf("without a state: %q", got)
	}
	page, err := w.List(t.Context(), approvals.ListRequest{TenantID: tenant, PoolID: pool, State: "all"})
	if err != nil || len(page.Requests) != 5 || !slices.IsSortedFunc(page.Requests, func(a, b store.JoinRequest) int { return strings.Compare(a.ID, b.ID) }) {
		t.Errorf("all: %+v, %v", page, err)
	}
	for _, r := range page.Requests {
		if ids[r.State] != r.ID {
			t.Errorf("%s is shown as %s", r.ID, r.State)
		}
	}
	// A day later everything undecided has expired.
	w.now = w.now.Add(24 * time.Hour)
	want := []string{ids[store.JoinRequestExpired], ids[store.JoinRequestPending], ids[store.JoinRequestApproved]}
	if got := w.list(approvals.ListRequest{PoolID: pool, State: "expired"}); !slices.Equal(got, want) {
		t.Errorf("expired: %q, want %q", got, want)
	}
	if got := w.list(approvals.ListRequest{PoolID: pool}); len(got) != 0 {
		t.Errorf("pending: %q", got)
	}
	for _, bad := range []string{"Pending", "ALL", "nothing", "pending ", "\x00"} {
		if _, err := w.List(t.Context(), approvals.ListRequest{TenantID: tenant, PoolID: pool, State: bad}); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("state %q: %v", bad, err)
		}
	}
}

func TestListInPages(t *testing.T) {
	w := newWorld(t)
	var want []string
	for i := range 205 {
		want = append(want, w.pend(of([]string{pool, ""}[i%2])))
	}
	for _, limit := range []int{0, 1, 7, 200} {
		var got []string
		r := approvals.ListRequest{TenantID: tenant, PoolID: pool, Limit: limit}
		for {
			page, err := w.List(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			size := limit
			if size == 0 {
				size = 100
			}
			if len(page.Requests) > size {
				t.Fatalf("limit %d: %d requests", limit, len(page.Requests))
			}
			for _, r := range page.Requests {
				got = append(got, r.ID)
			}
			if page.NextCursor == "" {
				break
			}
			r.Cursor = page.NextCursor
		}
		if !slices.Equal(got, want) {
			t.Errorf("limit %d: %d requests, want %d in their order", limit, len(got), len(want))
		}
	}
	for _, r := range []approvals.ListRequest{{Limit: -1}, {Limit: 201}, {Cursor: "x"}, {Cursor: store.NewID(store.PrefixToken, epoch)}} {
		r.TenantID, r.PoolID = tenant, pool
		if _, err := w.List(t.Context(), r); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// Req: AP-044 AP-045
func TestDecisionsAreTold(t *testing.T) {
	w := newWorld(t)
	approved, rejected := w.pend(), w.pend(of(pool))
	w.must(w.approve(approved, func(r *approvals.ApproveRequest) { r.Reason = "rack B7 intake" }))
	for range 2 { // told once
		if _, err := w.Reject(t.Context(), operator, approvals.RejectRequest{TenantID: tenant, PoolID: pool, RequestID: rejected, Reason: "unknown serial"}); err != nil {
			t.Fatal(err)
		}
	}
	digest := func(id string) string { d := sha256.Sum256([]byte(id)); return hex.EncodeToString(d[:]) }
	want := []struct {
		typ    events.Type
		action events.Action
		id     string
		data   string
	}{
		{"security.join-request.approved", "join-request.approved", approved, fmt.Sprintf(
			`{"requestId":%q,"poolId":"pool_a","siteId":"site_a","attestor":"discovery","csrSha256":%q,"expiresAt":"2026-11-29T12:06:11Z","approvedBy":"key_1","reason":"rack B7 intake"}`,
			approved, digest(approved),
		)},
		{"security.join-request.rejected", "join-request.rejected", rejected, fmt.Sprintf(
			`{"requestId":%q,"poolId":"pool_a","siteId":"site_a","attestor":"discovery","csrSha256":%q,"rejectedBy":"key_1","reason":"unknown serial"}`,
			rejected, digest(rejected),
		)},
	}
	var audit []events.Audit
	if err := w.Store.Read(t.Context(), func(tx *store.Tx) (err error) {
		audit, err = tx.Audit(tenant, "", 10)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	all := w.events(tenant)
	if len(all) != len(want) || len(audit) != len(want) || len(w.events(other)) != 0 {
		t.Fatalf("events %+v, audit %+v", all, audit)
	}
	for i, c := range want {
		if all[i].Type != c.typ || string(all[i].Data) != c.data {
			t.Errorf("event %s %s,\nwant %s %s", all[i].Type, all[i].Data, c.typ, c.data)
		}
		if a := audit[i]; a.Action != c.action || a.Actor != operator || a.Subject != c.id || !json.Valid(a.Data) || string(a.Data) != c.data {
			t.Errorf("audit %+v %s", a, a.Data)
		}
	}
}

// Many operators decide at once: one decision holds, and it is told once.
func TestConcurrentDecisions(t *testing.T) {
	w := newWorld(t)
	for range 10 {
		id := w.pend()
		var wg sync.WaitGroup
		before := w.told(events.TypeJoinRequestApproved) + w.told(events.TypeJoinRequestRejected)
		for i := range 8 {
			wg.Go(func() {
				var err error
				if i%2 == 0 {
					_, err = w.approve(id, in([]string{pool, pool2}[i/2%2]))
				} else {
					_, err = w.reject(id)
				}
				if err != nil && !fault.Is(err, fault.InvalidState) && !fault.Is(err, fault.NotFound) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r := w.request(id)
		after := w.told(events.TypeJoinRequestApproved) + w.told(events.TypeJoinRequestRejected)
		// Approved and then rejected is two decisions; a rejection is the last. An approval by another pool than the
		// rejecting one's stays.
		if n := after - before; n < 1 || n > 2 || n == 2 && r.State != store.JoinRequestRejected {
			t.Errorf("%d decisions, request %+v", n, r)
		}
	}
}

package store_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
)

var errUndo = errors.New("undo")

func TestJoinRequests(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	write(t, s, func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: "tn_a", Name: "a"}), tx.InsertTenant(store.Tenant{ID: "tn_b", Name: "b"}),
			tx.InsertSite(store.Site{ID: "site_a", TenantID: "tn_a", Name: "a"}), tx.InsertSite(store.Site{ID: "site_b", TenantID: "tn_a", Name: "b"}),
		)
	})
	r := store.JoinRequest{
		ID: "jreq_1", TenantID: "tn_a", SiteID: "site_a", PoolID: "pool_a", Attestor: "discovery", Role: store.RoleRamdisk,
		State: store.JoinRequestPending, MachineKey: "hw:01", Claims: hwclaims.Claims{ProductSerial: "SN-1", MACs: []string{"b4:96:91:a7:00:01"}},
		HardwareKey: []byte{1}, EKSHA256: []byte{2}, MAC: "b4:96:91:a7:00:01", IP: "192.0.2.1", WorkflowID: "wf", VouchedBy: "node_1",
		BootLeaseEpoch: 7, ClaimedEpoch: 7, CSRSHA256: [32]byte{3}, TokenID: "jt_1", CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	get := func(id string) (got store.JoinRequest) {
		t.Helper()
		read(t, s, func(tx *store.Tx) (err error) { got, err = tx.JoinRequest(id); return err })
		return got
	}
	write(t, s, func(tx *store.Tx) error { return tx.InsertJoinRequest(r) })
	if diff := cmp.Diff(r, get(r.ID)); diff != "" {
		t.Errorf("- written, + read:\n%s", diff)
	}

	// One pending request for each machine of a tenant at a site.
	same := func(change func(*store.JoinRequest)) error {
		next := r
		next.ID = "jreq_2"
		change(&next)
		err := s.Write(t.Context(), func(tx *store.Tx) error {
			if err := tx.InsertJoinRequest(next); err != nil {
				return err
			}
			return errUndo
		})
		if errors.Is(err, errUndo) {
			return nil
		}
		return err
	}
	if err := same(func(*store.JoinRequest) {}); !errors.Is(err, store.ErrDuplicate) {
		t.Errorf("a second one: %v", err)
	}
	for name, change := range map[string]func(*store.JoinRequest){
		"another site":    func(r *store.JoinRequest) { r.SiteID = "site_b" },
		"another tenant":  func(r *store.JoinRequest) { r.TenantID = "tn_b" },
		"another machine": func(r *store.JoinRequest) { r.MachineKey = "hw:02" },
	} {
		if err := same(change); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}

	// A decided one is not refreshed, and only an approval that is good is consumed.
	consume := func() error {
		return s.Write(t.Context(), func(tx *store.Tx) error { return tx.ConsumeJoinRequest(r.ID) })
	}
	if err := consume(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a pending one is consumed: %v", err)
	}
	r.State, r.DecidedAt, r.DecidedBy, r.Reason, r.ExpiresAt = store.JoinRequestApproved, epoch, "key_1", "rack", epoch.Add(time.Minute)
	write(t, s, func(tx *store.Tx) error { return tx.DecideJoinRequest(r) })
	if diff := cmp.Diff(r, get(r.ID)); diff != "" {
		t.Errorf("- decided, + read:\n%s", diff)
	}
	err := s.Write(t.Context(), func(tx *store.Tx) error { return tx.RefreshJoinRequest(r) })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an approved one is refreshed: %v", err)
	}
	if err := same(func(*store.JoinRequest) {}); err != nil {
		t.Errorf("a new one beside an approved one: %v", err)
	}
	now = epoch.Add(time.Minute)
	if err := consume(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an approval that ran out is consumed: %v", err)
	}
	now = epoch.Add(time.Minute - time.Millisecond)
	if err := consume(); err != nil {
		t.Error(err)
	}
	if err := consume(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("consumed twice: %v", err)
	}
	r.State, r.ConsumedAt = store.JoinRequestConsumed, now
	if diff := cmp.Diff(r, get(r.ID)); diff != "" {
		t.Errorf("- consumed, + read:\n%s", diff)
	}

	// What expired is recorded as expired when the site gets its next request, whichever machine's that is.
	write(t, s, func(tx *store.Tx) error {
		return tx.InsertJoinRequest(store.JoinRequest{
			ID: "jreq_3", TenantID: "tn_a", SiteID: "site_a", Attestor: "x", Role: store.RoleNode, MachineKey: "hw:03", ExpiresAt: now.Add(time.Minute),
		})
	})
	now = now.Add(time.Minute)
	write(t, s, func(tx *store.Tx) error {
		if pending, made, err := tx.CountJoinRequests("site_a", 2*time.Minute); err != nil || pending != 0 || made != 2 {
			t.Errorf("%d pending, %d made, %v, want 0 and 2", pending, made, err)
		}
		if _, err := tx.PendingJoinRequest("tn_a", "site_a", "hw:03"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an expired request is pending: %v", err)
		}
		return tx.InsertJoinRequest(store.JoinRequest{
			ID: "jreq_4", TenantID: "tn_a", SiteID: "site_a", Attestor: "x", Role: store.RoleNode, MachineKey: "hw:04", ExpiresAt: now.Add(time.Minute),
		})
	})
	if got := get("jreq_3"); got.State != store.JoinRequestExpired {
		t.Errorf("state %s", got.State)
	}
}

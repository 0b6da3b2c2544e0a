package tenancy_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

const root, site, pool, key = "tn_root", "site_a", "pool_a", "key_a"

// world is a control plane's database whose writing steps a test can fail.
type world struct {
	t     *testing.T
	store store.Store
	tenancy.Service
	keys   apikeys.Service
	fail   int // the step that fails, counted from 1; 0 is none
	step   int
	failed bool
}

var errPowerCut = errors.New("power cut")

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	s, err := store.Open(t.Context(), store.Options{
		Path: filepath.Join(t.TempDir(), "db"), Now: func() time.Time { return epoch },
		AfterStep: func(string) error {
			if w.step++; w.step == w.fail {
				w.failed = true
				return errPowerCut
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w.store = s
	w.Service = tenancy.Service{Store: s, RootTenant: root}
	w.keys = apikeys.Service{Store: s, RootTenant: root, Actions: []string{"compute:nodes:read"}}
	w.write(func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: root, Name: "root"}),
			tx.InsertSite(store.Site{ID: site, TenantID: root, Name: "eu"}),
			tx.InsertPool(store.Pool{ID: pool, TenantID: root, SiteID: site, Name: "metal", Agent: store.AgentBCD}),
			tx.InsertAPIKey(store.APIKey{ID: key, TenantID: root, Name: "k", Actions: []string{"compute:*"}}),
		)
	})
	return w
}

func (w *world) write(fn func(*store.Tx) error) {
	w.t.Helper()
	if err := w.store.Write(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// state is all that the calls of this package and of apikeys change.
type state struct {
	Tenants []store.Tenant
	Sites   []store.Site
	Pools   []store.Pool
	Keys    []store.APIKey
	Events  []events.Event
	Audit   []events.Audit
}

func (w *world) state() (s state) {
	w.t.Helper()
	err := w.store.Read(w.t.Context(), func(tx *store.Tx) (err error) {
		collect := func(e error) { err = errors.Join(err, e) }
		var e error
		s.Tenants, e = tx.Tenants("", 100)
		collect(e)
		s.Sites, e = tx.Sites(root, "", 100)
		collect(e)
		s.Pools, e = tx.Pools(root, true, "", 100)
		collect(e)
		s.Keys, e = tx.APIKeys(root, true, "", 100)
		collect(e)
		s.Events, e = tx.Events(root, 0, 100)
		collect(e)
		s.Audit, e = tx.Audit(root, "", 100)
		collect(e)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

var by = tenancy.Actor{KeyID: key, TenantID: root}

// changes are all calls that write, and what each is told as.
var changes = map[string]struct {
	call func(*world) error
	told events.Action
}{
	"create a tenant": {func(w *world) error { _, err := w.CreateTenant(w.t.Context(), by, "n", "k"); return err }, events.ActionTenantCreated},
	"create a site": {func(w *world) error {
		_, err := w.CreateSite(w.t.Context(), by, tenancy.CreateSite{TenantID: root, Name: "n", IdempotencyKey: "k"})
		return err
	}, events.ActionSiteCreated},
	"update a site": {func(w *world) error {
		name := "us"
		_, err := w.UpdateSite(w.t.Context(), by, tenancy.UpdateSite{TenantID: root, SiteID: site, Name: &name})
		return err
	}, events.ActionSiteUpdated},
	"create a pool": {func(w *world) error {
		_, err := w.CreatePool(w.t.Context(), by, tenancy.CreatePool{
			TenantID: root, SiteID: site, Name: "n", Agent: store.AgentBCD, IdempotencyKey: "k",
		})
		return err
	}, events.ActionPoolCreated},
	"update a pool": {func(w *world) error {
		policy := store.PoolPolicy{JoinAttestors: []string{"tpm"}}
		_, err := w.UpdatePool(w.t.Context(), by, tenancy.UpdatePool{TenantID: root, PoolID: pool, Policy: &policy})
		return err
	}, events.ActionPoolUpdated},
	"archive a pool": {func(w *world) error { _, err := w.ArchivePool(w.t.Context(), by, root, pool); return err }, events.ActionPoolArchived},
	"create an API key": {func(w *world) error {
		_, _, err := w.keys.Create(w.t.Context(), apikeys.Holder{Actor: by, Actions: []string{"compute:*"}},
			apikeys.CreateRequest{TenantID: root, Name: "n", Actions: []string{"compute:nodes:read"}, IdempotencyKey: "k"})
		return err
	}, events.ActionAPIKeyCreated},
	"revoke an API key": {func(w *world) error {
		_, err := w.keys.Revoke(w.t.Context(), apikeys.Holder{Actor: by}, root, key)
		return err
	}, events.ActionAPIKeyRevoked},
}

// A call that stops after any of its steps leaves nothing, and its repeat does all of it, once.
func TestAStopAfterAnyStepLeavesNothing(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			for step := 1; ; step++ {
				w := newWorld(t)
				before := w.state()
				w.step, w.fail = 0, step
				err := change.call(w)
				w.fail = 0
				if !w.failed {
					if err != nil || step < 4 {
						t.Errorf("%d steps, %v", step-1, err)
					}
					return
				}
				if !errors.Is(err, errPowerCut) {
					t.Fatalf("step %d: %v, want the power cut", step, err)
				}
				if diff := cmp.Diff(before, w.state()); diff != "" {
					t.Fatalf("after step %d (-before +after):\n%s", step, diff)
				}
				for range 2 {
					if err := change.call(w); err != nil {
						t.Fatal(err)
					}
				}
				after := w.state()
				if len(after.Events) != 1 || len(after.Audit) != 1 || after.Audit[0].Action != change.told || after.Audit[0].Actor != key {
					t.Fatalf("told %+v, recorded %+v", after.Events, after.Audit)
				}
			}
		})
	}
}

// Many calls with one key at once make one thing.
func TestConcurrentRepeatsMakeOneThing(t *testing.T) {
	for _, name := range []string{"create a tenant", "create a site", "create a pool", "create an API key"} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			before := w.state()
			const n = 32
			errs := make(chan error, n)
			for range n {
				go func() { errs <- changes[name].call(w) }()
			}
			for range n {
				if err := <-errs; err != nil {
					t.Error(err)
				}
			}
			after := w.state()
			made := len(after.Tenants) + len(after.Sites) + len(after.Pools) + len(after.Keys) -
				len(before.Tenants) - len(before.Sites) - len(before.Pools) - len(before.Keys)
			if made != 1 || len(after.Events) != 1 {
				t.Errorf("%d things, %d events", made, len(after.Events))
			}
		})
	}
}

func TestCheckName(t *testing.T) {
	for name, ok := range map[string]bool{
		"eu": true, "Zürich 7": true, "": false, " eu": false, "eu ": false, "e\tu": false, "e\u200bu": false, "\ufffd": false,
		fmt.Sprintf("%0128d", 0): true, fmt.Sprintf("%0129d", 0): false,
	} {
		if err := tenancy.CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

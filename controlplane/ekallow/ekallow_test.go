package ekallow_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

// fixture is a database with a tenant, a site and a pool.
type fixture struct {
	*ekallow.Service

	tenant, pool string
	mu           sync.Mutex
	step         func() error
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{tenant: store.NewID(store.PrefixTenant, epoch), pool: store.NewID(store.PrefixPool, epoch)}
	db, err := store.Open(t.Context(), store.Options{
		Path: filepath.Join(t.TempDir(), "db"), Now: func() time.Time { return epoch },
		AfterStep: func(string) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.step == nil {
				return nil
			}
			return f.step()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	f.Service = &ekallow.Service{Store: db}
	site := store.NewID(store.PrefixSite, epoch)
	if err := db.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: f.tenant, Name: "acme"}),
			tx.InsertSite(store.Site{ID: site, TenantID: f.tenant, Name: "eu"}),
			tx.InsertPool(store.Pool{ID: f.pool, TenantID: f.tenant, SiteID: site, Name: "metal", Agent: store.AgentBCD}),
		)
	}); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) add(key string) (store.EKAllow, error) {
	return f.Add(context.Background(), "key_test", ekallow.AddRequest{TenantID: f.tenant, PoolID: f.pool, EKSHA256: [32]byte{1}, IdempotencyKey: key})
}

// count is the number of entries, events and audit rows.
func (f *fixture) count(t *testing.T) string {
	t.Helper()
	var text string
	if err := f.Store.Read(t.Context(), func(tx *store.Tx) error {
		entries, err := tx.EKAllowsOf([32]byte{1})
		if err != nil {
			return err
		}
		events, err := tx.Events(f.tenant, 0, 100)
		if err != nil {
			return err
		}
		audit, err := tx.Audit(f.tenant, "", 100)
		text = fmt.Sprintf("%d entries, %d events, %d audit rows", len(entries), len(events), len(audit))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return text
}

// stopped runs fn until it gets through, stopped after one more step each time, and checks what each stop leaves.
func (f *fixture) stopped(t *testing.T, before, after string, fn func() error) {
	t.Helper()
	for n := 1; n < 50; n++ {
		steps := 0
		f.step = func() error {
			if steps++; steps == n {
				return errors.New("stopped")
			}
			return nil
		}
		err := fn()
		f.step = nil
		if err == nil {
			if n < 3 {
				t.Errorf("done in %d steps", n-1)
			}
			if got := f.count(t); got != after {
				t.Errorf("done: %s, want %s", got, after)
			}
			return
		}
		if got := f.count(t); got != before {
			t.Fatalf("stopped after step %d: %s, want %s", n, got, before)
		}
	}
	t.Error("never done")
}

func TestEachChangeIsAllOrNothing(t *testing.T) {
	f := newFixture(t)
	var made store.EKAllow
	f.stopped(t, "0 entries, 0 events, 0 audit rows", "1 entries, 1 events, 1 audit rows", func() (err error) {
		made, err = f.add("k")
		return err
	})
	f.stopped(t, "1 entries, 1 events, 1 audit rows", "0 entries, 2 events, 2 audit rows", func() error {
		_, err := f.Remove(t.Context(), "key_test", f.tenant, f.pool, made.ID)
		return err
	})
	// A repeat of the first call answers what became of its entry, and lists nothing again.
	again, err := f.add("k")
	if err != nil || again.ID != made.ID || again.RemovedAt.IsZero() || f.count(t) != "0 entries, 2 events, 2 audit rows" {
		t.Errorf("a repeat: %+v, %v, %s", again, err, f.count(t))
	}
}

func TestOneTPMIsListedOnceHoweverManyAsk(t *testing.T) {
	f := newFixture(t)
	const n = 16
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { _, errs[i] = f.add(fmt.Sprint(i)) })
	}
	all.Wait()
	listed := 0
	for _, err := range errs {
		switch {
		case err == nil:
			listed++
		case !fault.Is(err, fault.AlreadyExists):
			t.Error(err)
		}
	}
	if got := f.count(t); listed != 1 || got != "1 entries, 1 events, 1 audit rows" {
		t.Errorf("%d listed, %s", listed, got)
	}
}

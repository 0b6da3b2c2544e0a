package acceptance_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/better-compute/bcd/controlplane/acceptance"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

const tenant, node = "tn_a", "node_a"

// run starts a controller on a database with one adopting node, whose first Hello carried the digest.
func run(t *testing.T, dir string, hello []byte, checks []acceptance.Check) store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "control.db"), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: tenant}),
			tx.InsertSite(store.Site{ID: "site_a", TenantID: tenant}),
			tx.InsertNode(store.Node{
				ID: node, TenantID: tenant, SiteID: "site_a", Role: store.RoleNode, State: store.NodeAdopting,
				Trust: store.TrustPlatform, IdentityGeneration: 1, HardwareKey: []byte{1, 2, 3}, HardwareKeyTrusted: true,
			}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	c := &acceptance.Controller{Store: s, Checks: checks, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	say(t, s, hello)
	return s
}

// say records a Hello and queues the node, as JoinService does, and waits for the controller.
func say(t *testing.T, s store.Store, hello []byte) {
	t.Helper()
	err := s.Write(t.Context(), func(tx *store.Tx) error {
		_, err := tx.RecordHello(node, hello)
		return errors.Join(err, tx.Enqueue(node, "hello"))
	})
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func look(t *testing.T, s store.Store) (n store.Node, types []events.Type) {
	t.Helper()
	err := s.Read(t.Context(), func(tx *store.Tx) (err error) {
		if n, err = tx.Node(node); err != nil {
			return err
		}
		all, err := tx.Events(tenant, 0, 100)
		for _, e := range all {
			types = append(types, e.Type)
		}
		if waiting, err := tx.Queue(10); err != nil || len(waiting) != 0 {
			t.Errorf("still queued: %v, %v", waiting, err)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, types
}

// Req: SS-003 JF-048
func TestNodeThatPassesIsAdopted(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, dir, []byte{1, 2, 3}, acceptance.Checks)
		n, types := look(t, s)
		if n.State != store.NodeAdopted || len(n.Conditions) != 0 {
			t.Errorf("node %+v", n)
		}
		if want := []events.Type{"node.acceptance.started", "node.adopted"}; !slices.Equal(types, want) {
			t.Errorf("events %v, want %v", types, want)
		}
		say(t, s, nil) // a node that is adopted is not judged again
		if _, again := look(t, s); len(again) != 2 {
			t.Errorf("events %v", again)
		}
	})
}

// Req: JF-081
func TestNodeThatFailsStaysAdopting(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, dir, []byte{9}, acceptance.Checks)
		n, types := look(t, s)
		if n.State != store.NodeAdopting || len(n.Conditions) != 1 || n.Conditions[0].Type != "AcceptanceFailed" ||
			!strings.Contains(n.Conditions[0].Message, "its key is 09 and was 010203") {
			t.Errorf("node %+v", n)
		}
		if want := []events.Type{"node.acceptance.started", "node.acceptance.failed"}; !slices.Equal(types, want) {
			t.Errorf("events %v, want %v", types, want)
		}
		say(t, s, []byte{9}) // it has one condition, however often it fails
		if n, _ := look(t, s); len(n.Conditions) != 1 {
			t.Errorf("conditions %+v", n.Conditions)
		}
	})
}

func TestFirstCheckThatFailsDecides(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		bad := func(text string) acceptance.Check { return func(store.Node) error { return errors.New(text) } }
		s := run(t, dir, []byte{1, 2, 3}, append(slices.Clone(acceptance.Checks), bad("first"), bad("second")))
		if n, _ := look(t, s); len(n.Conditions) != 1 || n.Conditions[0].Message != "first" {
			t.Errorf("conditions %+v", n.Conditions)
		}
	})
}

// A node that was reclaimed while it waited has not said Hello with its new identity: what it said before does not count.
func TestReclaimedNodeWaitsForItsHello(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := run(t, dir, []byte{9}, acceptance.Checks) // which fails, and leaves it adopting
		before, _ := look(t, s)
		err := s.Write(t.Context(), func(tx *store.Tx) error {
			before.IdentityGeneration++
			return errors.Join(tx.ReclaimNode(before), tx.Enqueue(node, "hello"))
		})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n, types := look(t, s); n.State != store.NodeAdopting || len(types) != 2 {
			t.Errorf("node %s, events %v: it was judged by its old Hello", n.State, types)
		}
		say(t, s, []byte{1, 2, 3})
		if n, _ := look(t, s); n.State != store.NodeAdopted {
			t.Errorf("node %s after its new Hello", n.State)
		}
	})
}

// A node whose transaction fails does not hold up those behind it, and is tried again.
func TestFailureHoldsUpNobody(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		failing := true
		s, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "control.db"), Now: time.Now, AfterStep: func(step string) error {
			if failing && step == "take the node from the queue" {
				failing = false
				return errors.New("disk on fire")
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		err = s.Write(t.Context(), func(tx *store.Tx) error {
			err := errors.Join(tx.InsertTenant(store.Tenant{ID: tenant}), tx.InsertSite(store.Site{ID: "site_a", TenantID: tenant}))
			for _, id := range []string{"node_1", "node_2"} {
				err = errors.Join(err, tx.InsertNode(store.Node{
					ID: id, TenantID: tenant, SiteID: "site_a", Role: store.RoleNode, State: store.NodeAdopted, Trust: store.TrustPlatform, IdentityGeneration: 1,
				}), tx.Enqueue(id, "joined"))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		c := &acceptance.Controller{Store: s, Checks: acceptance.Checks, Log: slog.New(slog.DiscardHandler)}
		go func() { done <- c.Run(ctx) }()
		waiting := func() (ids []string) {
			synctest.Wait()
			err := s.Read(t.Context(), func(tx *store.Tx) error {
				queue, err := tx.Queue(10)
				for _, q := range queue {
					ids = append(ids, q.NodeID)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			return ids
		}
		if got := waiting(); !slices.Equal(got, []string{"node_1"}) {
			t.Errorf("waiting: %v, want the one that failed", got)
		}
		time.Sleep(31 * time.Second)
		if got := waiting(); len(got) != 0 {
			t.Errorf("waiting after the next try: %v", got)
		}
		cancel()
		if err := errors.Join(<-done, s.Close()); err != nil {
			t.Error(err)
		}
	})
}

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

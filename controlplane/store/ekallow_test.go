package store_test

import (
	"crypto/sha256"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/store"
)

func boundNode(id, ek string) store.Node {
	digest := sha256.Sum256([]byte(ek))
	return store.Node{
		ID: id, TenantID: tenantID, PoolID: poolID, SiteID: siteID, Role: store.RoleNode, State: store.NodeAdopted,
		Trust: store.TrustPlatform, IdentityGeneration: 1, EKSHA256: digest[:],
	}
}

func TestAnEndorsementKeyIsBoundToOneNode(t *testing.T) {
	s := open(t)
	seed(t, s)
	write(t, s, func(tx *store.Tx) error { return tx.InsertNode(boundNode("node_1", "ek")) })
	if err := s.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertNode(boundNode("node_2", "ek")) }); !errors.Is(err, store.ErrDuplicate) {
		t.Errorf("a second node of the key: %v", err)
	}
	of := func(ek string) (n store.Node, err error) {
		err = s.Read(t.Context(), func(tx *store.Tx) (err error) { n, err = tx.NodeByEK(sha256.Sum256([]byte(ek))); return err })
		return n, err
	}
	if n, err := of("ek"); err != nil || n.ID != "node_1" {
		t.Errorf("node %q, %v", n.ID, err)
	}
	if _, err := of("another"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("of another key: %v", err)
	}
	// A reclaim keeps the key, a deletion frees it, and nodes without one are many.
	n := boundNode("node_1", "ek")
	n.EKSHA256, n.IdentityGeneration = nil, 2
	write(t, s, func(tx *store.Tx) error { return tx.ReclaimNode(n) })
	if n, err := of("ek"); err != nil || n.IdentityGeneration != 2 {
		t.Errorf("after a reclaim: %+v, %v", n, err)
	}
	write(t, s, func(tx *store.Tx) error {
		bare := boundNode("node_3", "")
		bare.EKSHA256 = nil
		more := bare
		more.ID = "node_4"
		return errors.Join(tx.DeleteNode("node_1"), tx.InsertNode(boundNode("node_2", "ek")), tx.InsertNode(bare), tx.InsertNode(more))
	})
	if n, err := of("ek"); err != nil || n.ID != "node_2" {
		t.Errorf("node %q, %v", n.ID, err)
	}
}

func TestAllowedEndorsementKeys(t *testing.T) {
	s := open(t)
	seed(t, s)
	e := store.EKAllow{
		ID: "ek_1", TenantID: tenantID, SiteID: siteID, PoolID: poolID, EKSHA256: sha256.Sum256([]byte("ek")), Note: "rack B7",
		CreatedBy: "key_1", CreatedAt: epoch,
	}
	second := e
	second.ID, second.Note = "ek_2", ""
	write(t, s, func(tx *store.Tx) error { return tx.InsertEKAllow(e) })
	add := func() error {
		return s.Write(t.Context(), func(tx *store.Tx) error { return tx.InsertEKAllow(second) })
	}
	if err := add(); !errors.Is(err, store.ErrDuplicate) {
		t.Errorf("a second entry at the site: %v", err)
	}
	look := func(want ...store.EKAllow) {
		t.Helper()
		read(t, s, func(tx *store.Tx) error {
			of, err := tx.EKAllowsOf(e.EKSHA256)
			if err != nil {
				return err
			}
			pool, err := tx.EKAllowsOfPool(poolID, "", 10)
			if diff := cmp.Diff(want, of) + cmp.Diff(want, pool); diff != "" {
				t.Error(diff)
			}
			return err
		})
	}
	look(e)
	for _, first := range []bool{true, false} {
		write(t, s, func(tx *store.Tx) error {
			ended, err := tx.RemoveEKAllow(e.ID)
			if ended != first {
				t.Errorf("removed: %v, want %v", ended, first)
			}
			return err
		})
	}
	look()
	if err := add(); err != nil {
		t.Error(err)
	}
	look(second)
	read(t, s, func(tx *store.Tx) error { // what was removed is still there to be read
		got, err := tx.EKAllow(e.ID)
		e.RemovedAt = epoch
		if diff := cmp.Diff(e, got); diff != "" {
			t.Error(diff)
		}
		return err
	})
}

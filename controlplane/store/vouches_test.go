package store_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
)

// siteAgent is a node that vouches.
func siteAgent(id string) store.Node {
	return store.Node{
		ID: id, TenantID: tenantID, SiteID: siteID, Role: store.RoleSite, State: store.NodeAdopted, Trust: store.TrustPlatform,
		IdentityGeneration: 1,
	}
}

func putVouch(t *testing.T, s store.Store, mac string, lease int64, node string) error {
	t.Helper()
	return s.Write(t.Context(), func(tx *store.Tx) error {
		return tx.PutVouch(store.Vouch{SiteID: siteID, MAC: mac, BootLeaseEpoch: lease, NodeID: node})
	})
}

func vouchOf(t *testing.T, s store.Store, mac string) (v store.Vouch, err error) {
	t.Helper()
	err = s.Read(t.Context(), func(tx *store.Tx) (err error) { v, err = tx.Vouch(siteID, mac); return err })
	return v, err
}

func TestTheLatestBootLeaseIsVouchedFor(t *testing.T) {
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	seed(t, s)
	write(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.InsertNode(siteAgent("node_a")), tx.InsertNode(siteAgent("node_b")))
	})
	const mac = "b4:96:91:a7:00:01"
	if _, err := vouchOf(t, s, mac); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a vouch that nobody made: %v", err)
	}
	for i, step := range []struct {
		lease int64
		node  string
		old   bool
	}{{5, "node_a", false}, {5, "node_a", false}, {4, "node_a", true}, {5, "node_b", false}, {9, "node_a", false}, {1<<63 - 1, "node_a", false}, {9, "node_b", true}} {
		now = now.Add(time.Second)
		before, _ := vouchOf(t, s, mac)
		err := putVouch(t, s, mac, step.lease, step.node)
		got, _ := vouchOf(t, s, mac)
		if step.old {
			if !errors.Is(err, store.ErrOlderEpoch) || got != before {
				t.Errorf("step %d: %v, %+v, want nothing changed", i, err, got)
			}
			continue
		}
		want := store.Vouch{SiteID: siteID, MAC: mac, BootLeaseEpoch: step.lease, NodeID: step.node, VouchedAt: now}
		if err != nil || got != want {
			t.Errorf("step %d: %v, %+v, want %+v", i, err, got, want)
		}
	}
}

// What a retired agent vouched for is forgotten, whatever the number of its boot lease.
func TestARetiredAgentVouchesForNothing(t *testing.T) {
	s := open(t)
	seed(t, s)
	write(t, s, func(tx *store.Tx) error {
		return errors.Join(tx.InsertNode(siteAgent("node_a")), tx.InsertNode(siteAgent("node_b")))
	})
	const mac = "b4:96:91:a7:00:01"
	if err := putVouch(t, s, mac, 1<<63-1, "node_a"); err != nil {
		t.Fatal(err)
	}
	if err := putVouch(t, s, mac, 1, "node_b"); !errors.Is(err, store.ErrOlderEpoch) {
		t.Errorf("an older boot: %v", err)
	}
	write(t, s, func(tx *store.Tx) error { return tx.SetNodeState("node_a", store.NodeRetired) })
	if v, err := vouchOf(t, s, mac); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("%+v, %v", v, err)
	}
	if err := putVouch(t, s, mac, 1, "node_b"); err != nil {
		t.Error(err)
	}
	if v, err := vouchOf(t, s, mac); err != nil || v.NodeID != "node_b" || v.BootLeaseEpoch != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestASiteKeepsSoManyVouches(t *testing.T) {
	store.SetMaxVouches(t, 3)
	now := epoch
	s := open(t, func(o *store.Options) { o.Now = func() time.Time { return now } })
	seed(t, s)
	write(t, s, func(tx *store.Tx) error { return tx.InsertNode(siteAgent("node_a")) })
	mac := func(i int) string { return fmt.Sprintf("b4:96:91:a7:00:%02x", i) }
	for i := range 3 {
		now = now.Add(time.Second)
		if err := putVouch(t, s, mac(i), 1, "node_a"); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Second)
	for _, i := range []int{0, 3} { // 0 is refreshed, so 1 is the oldest when 3 needs its place
		if err := putVouch(t, s, mac(i), 1, "node_a"); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		_, err := vouchOf(t, s, mac(i))
		if forgotten := errors.Is(err, store.ErrNotFound); forgotten != (i == 1) || err != nil && !forgotten {
			t.Errorf("machine %d: %v", i, err)
		}
	}
}

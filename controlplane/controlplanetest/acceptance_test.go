package controlplanetest_test

import (
	"slices"
	"testing"

	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// Req: JF-048 JF-080 SS-003
func TestANodeOfAnAcceptancePoolIsAcceptedAfterItsFirstHello(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	cp.Write(t, func(tx *store.Tx) error {
		p, err := tx.Pool(cp.Pool)
		if err != nil {
			return err
		}
		p.Acceptance = true
		return tx.UpdatePool(p)
	})
	m := newMachine(t, cp).mustJoin()
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	cp.WaitForEvent(t, events.TypeNodeAdopted, 1)
	var got []events.Type
	for _, e := range cp.Events(t) {
		got = append(got, e.Type)
	}
	want := []events.Type{"node.joined", "node.connected", "node.acceptance.started", "node.adopted"}
	if len(got) < len(want) || !slices.Equal(got[len(got)-len(want):], want) {
		t.Errorf("events %v, want them to end with %v", got, want)
	}
}

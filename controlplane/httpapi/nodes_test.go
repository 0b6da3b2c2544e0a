package httpapi_test

import (
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
)

// addNode records a node as a join would, with certificates of the serials.
func (f *fixture) addNode(tenant, pool string, serials ...string) string {
	f.t.Helper()
	var id string
	f.write(func(tx *store.Tx) error {
		id = tx.NewID(store.PrefixNode)
		n := store.Node{
			ID: id, TenantID: tenant, PoolID: pool, SiteID: f.site, Role: store.RoleNode, State: store.NodeAdopting,
			Trust: store.TrustPlatform, IdentityGeneration: 2, HardwareKey: []byte(id), HardwareKeyTrusted: true,
			Claims: hwclaims.Claims{Hostname: "rack-b7-u12"},
		}
		if err := tx.InsertNode(n); err != nil {
			return err
		}
		for _, serial := range serials {
			sum := sha256.Sum256([]byte(id + serial))
			err := tx.InsertCert(store.Cert{
				Serial: serial, NodeID: id, Generation: 2, Role: "node", SPKISHA256: sum, CSRSHA256: sum, DER: sum[:], Issuers: sum[:],
				NotBefore: start, NotAfter: start.Add(time.Hour),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return id
}

func TestNodes(t *testing.T) {
	f := newFixture(t)
	a := f.addNode(f.tenant, f.pool)
	f.sleep(time.Second)
	b := f.addNode(f.tenant, f.spare)
	foreign := f.addNode(f.other, f.foreign)
	f.connected[a] = true

	want := map[string]any{
		"id": a, "poolId": f.pool, "siteId": f.site, "state": "adopting", "role": "node", "trust": "platform",
		"identityGeneration": 2.0, "hardwareKeyTrusted": true, "connected": true, "hostname": "rack-b7-u12",
		"joinedAt": "2026-11-29T11:06:11Z",
	}
	if diff := cmp.Diff(want, f.call("nodes.get", map[string]any{"tenantId": f.tenant, "nodeId": a}).object(t)); diff != "" {
		t.Error(diff)
	}
	ids := func(in map[string]any) (ids []string) {
		list := read[httpapi.List[httpapi.Node]](t, f.call("nodes.list", in))
		for _, n := range list.Items {
			ids = append(ids, fmt.Sprint(n.ID, n.Connected))
		}
		return append(ids, list.NextCursor)
	}
	all := map[string]any{"tenantId": f.tenant}
	for _, test := range []struct {
		in   map[string]any
		want []string
	}{
		{all, []string{a + "true", b + "false", ""}},
		{with(all, "poolId", f.spare), []string{b + "false", ""}},
		{with(all, "limit", 1), []string{a + "true", a}},
		{with(with(all, "limit", 1), "cursor", a), []string{b + "false", ""}},
	} {
		if diff := cmp.Diff(test.want, ids(test.in)); diff != "" {
			t.Errorf("%v: %s", test.in, diff)
		}
	}

	f.refused(f.call("nodes.list", with(all, "poolId", f.foreign)), fault.NotFound, "no pool")
	f.refused(f.call("nodes.list", with(all, "poolId", "default")), fault.InvalidArgument, `"poolId"`)
	f.refused(f.call("nodes.list", with(all, "limit", 201)), fault.InvalidArgument, `"limit"`)
	for _, method := range []string{"nodes.get", "nodes.revokeIdentity"} {
		f.refused(f.call(method, map[string]any{"tenantId": f.tenant, "nodeId": foreign}), fault.NotFound, "no node")
		f.refused(f.call(method, map[string]any{"tenantId": f.other, "nodeId": foreign}), fault.NotFound, "no tenant")
		f.refused(f.call(method, map[string]any{"tenantId": f.tenant, "nodeId": "rack-b7-u12"}), fault.InvalidArgument, `"nodeId"`)
	}
}

func TestRevokeIdentity(t *testing.T) {
	f := newFixture(t)
	node, other := f.addNode(f.tenant, f.pool, "a1", "a2"), f.addNode(f.tenant, f.pool, "b1")
	changed, stop := f.store.Watch(store.NodeTopic(node))
	defer stop()
	f.sleep(time.Minute)

	in := map[string]any{"tenantId": f.tenant, "nodeId": node}
	for range 2 { // the second time there is nothing left to revoke
		if got := f.call("nodes.revokeIdentity", in).object(t)["id"]; got != node {
			t.Fatalf("answers node %v", got)
		}
	}
	err := f.store.Read(t.Context(), func(tx *store.Tx) error {
		for id, revoked := range map[string]bool{node: true, other: false} {
			certs, err := tx.CertsOfNode(id)
			if err != nil {
				return err
			}
			for _, c := range certs {
				if !c.RevokedAt.IsZero() != revoked || revoked && !c.RevokedAt.Equal(start.Add(time.Minute)) {
					t.Errorf("certificate %s is revoked at %s", c.Serial, c.RevokedAt)
				}
			}
		}
		audit, err := tx.Audit(f.tenant, "", 100)
		if len(audit) != 2 || audit[0].Action != events.ActionIdentityRevoked || audit[0].Actor != f.keyID || audit[0].Subject != node {
			t.Errorf("audit: %+v", audit)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if found := f.events(f.tenant, events.TypeCertificateRevoked); len(found) != 2 {
		t.Errorf("events: %v", found)
	}
	select {
	case <-changed: // whoever holds the node's session looks again
	default:
		t.Error("the node's watchers were not told")
	}
}

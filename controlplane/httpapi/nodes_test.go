package httpapi_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
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
			Claims: hwclaims.Claims{Hostname: "rack-b7-u12", ProductSerial: "SN-7701", MACs: []string{"3c:ec:ef:00:00:01"}},
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
	a := f.addNode(f.tenant, f.pool, "a1")
	f.sleep(time.Second)
	b := f.addNode(f.tenant, f.spare)
	foreign := f.addNode(f.other, f.foreign)
	f.connected[a] = true

	want := map[string]any{
		"id": a, "poolId": f.pool, "siteId": f.site, "state": "adopting", "role": "node", "trust": "platform",
		"identityGeneration": 2.0, "hardwareKey": hex.EncodeToString([]byte(a)), "hardwareKeyTrusted": true,
		"claims":   map[string]any{"hostname": "rack-b7-u12", "productSerial": "SN-7701", "macs": []any{"3c:ec:ef:00:00:01"}},
		"hostname": "rack-b7-u12", "conditions": []any{}, "connected": true, "helloAt": nil,
		"certificate": map[string]any{"serial": "a1", "notAfter": "2026-11-29T12:06:11Z", "revokedAt": nil},
		"joinedAt":    "2026-11-29T11:06:11Z", "cordonedAt": nil, "retiredAt": nil,
	}
	if diff := cmp.Diff(want, f.call("nodes.get", map[string]any{"tenantId": f.tenant, "nodeId": a}).object(t)); diff != "" {
		t.Error(diff)
	}
	if got := f.call("nodes.get", map[string]any{"tenantId": f.tenant, "nodeId": b}).object(t)["certificate"]; got != nil {
		t.Errorf("a node without a certificate has %v", got)
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
	for _, state := range []string{"", "gone", "Adopted"} {
		f.refused(f.call("nodes.list", with(all, "state", state)), fault.InvalidArgument, `"state"`)
	}
	for _, method := range []string{"nodes.get", "nodes.adopt", "nodes.cordon", "nodes.uncordon", "nodes.revokeIdentity", "nodes.delete"} {
		f.refused(f.call(method, map[string]any{"tenantId": f.tenant, "nodeId": foreign}), fault.NotFound, "no node")
		f.refused(f.call(method, map[string]any{"tenantId": f.other, "nodeId": foreign}), fault.NotFound, "no tenant")
		f.refused(f.call(method, map[string]any{"tenantId": f.tenant, "nodeId": "rack-b7-u12"}), fault.InvalidArgument, `"nodeId"`)
		pasted := f.call(method, map[string]any{"tenantId": f.tenant, "nodeId": "bcjt_jt_01k5w0000000000000000000t1.c2VjcmV0"})
		f.refused(pasted, fault.InvalidArgument, `"nodeId"`)
		if strings.Contains(pasted.body, "c2VjcmV0") {
			t.Errorf("%s repeats a pasted secret: %s", method, pasted.body)
		}
	}
}

// What a node shows follows what happens to it.
func TestWhatANodeShows(t *testing.T) {
	f := newFixture(t)
	id := f.addNode(f.tenant, f.pool, "a1")
	in := map[string]any{"tenantId": f.tenant, "nodeId": id}
	show := func() httpapi.Node { return read[httpapi.Node](t, f.call("nodes.get", in)) }
	f.write(func(tx *store.Tx) error {
		if _, err := tx.RecordHello(id, nil); err != nil {
			return err
		}
		return tx.SetNodeConditions(id, []store.Condition{{Type: "AcceptanceFailed", Message: "no \x1b[2J", Since: start}})
	})
	want := []httpapi.Condition{{Type: "AcceptanceFailed", Message: "no \x1b[2J", Since: start}}
	if n := show(); n.HelloAt == nil || !n.HelloAt.Equal(start) || !cmp.Equal(want, n.Conditions) {
		t.Errorf("after a Hello and a failed acceptance: %+v", n)
	}
	// A reclaim has said no Hello yet, and its certificate is the one that counts.
	f.write(func(tx *store.Tx) error {
		n, err := tx.Node(id)
		if err != nil {
			return err
		}
		n.IdentityGeneration++
		sum := sha256.Sum256([]byte("0"))
		return errors.Join(tx.ReclaimNode(n), tx.InsertCert(store.Cert{
			Serial: "00", NodeID: id, Generation: 3, Role: "node", SPKISHA256: sum, CSRSHA256: sum, DER: sum[:], NotBefore: start, NotAfter: start,
		}))
	})
	if n := show(); n.HelloAt != nil || n.Certificate == nil || n.Certificate.Serial != "00" {
		t.Errorf("after a reclaim: %+v", n)
	}
	f.call("nodes.revokeIdentity", in).object(t)
	if n := show(); n.Certificate.RevokedAt == nil {
		t.Errorf("after revokeIdentity: %+v", n.Certificate)
	}
}

// Req: JF-082
func TestAdoptNode(t *testing.T) {
	f := newFixture(t)
	id := f.addNode(f.tenant, f.pool)
	f.write(func(tx *store.Tx) error {
		return tx.SetNodeConditions(id, []store.Condition{{Type: "AcceptanceFailed", Since: start}, {Type: "DuplicateIdentity", Since: start}})
	})
	in := map[string]any{"tenantId": f.tenant, "nodeId": id}
	for range 2 {
		got := read[httpapi.Node](t, f.call("nodes.adopt", in))
		if got.State != "adopted" || len(got.Conditions) != 1 || got.Conditions[0].Type != "DuplicateIdentity" {
			t.Errorf("adopted: %+v", got)
		}
	}
	f.told(events.TypeNodeAdopted, events.ActionNodeAdopted, id, map[string]any{"nodeId": id})
}

func TestCordonNode(t *testing.T) {
	f := newFixture(t)
	id := f.addNode(f.tenant, f.pool)
	in := map[string]any{"tenantId": f.tenant, "nodeId": id}
	for range 2 {
		if n := read[httpapi.Node](t, f.call("nodes.cordon", in)); n.CordonedAt == nil || !n.CordonedAt.Equal(start) || n.State != "adopting" {
			t.Errorf("cordoned: %+v", n)
		}
		f.sleep(time.Second)
	}
	f.told(events.TypeNodeCordoned, events.ActionNodeCordoned, id, map[string]any{"nodeId": id, "cordonedBy": f.keyID})
	for range 2 {
		if n := read[httpapi.Node](t, f.call("nodes.uncordon", in)); n.CordonedAt != nil {
			t.Errorf("uncordoned: %+v", n)
		}
	}
	f.told(events.TypeNodeUncordoned, events.ActionNodeUncordoned, id, map[string]any{"nodeId": id, "uncordonedBy": f.keyID})
}

func TestDeleteNode(t *testing.T) {
	f := newFixture(t)
	id, other := f.addNode(f.tenant, f.pool, "a1", "a2"), f.addNode(f.tenant, f.pool)
	f.write(func(tx *store.Tx) error { return tx.Enqueue(id, "joined") })
	in := map[string]any{"tenantId": f.tenant, "nodeId": id}
	for range 2 {
		n := read[httpapi.Node](t, f.call("nodes.delete", in))
		if n.State != "retired" || n.RetiredAt == nil || !n.RetiredAt.Equal(start) || n.HardwareKey != nil || n.HardwareKeyTrusted ||
			n.Certificate.RevokedAt == nil || n.Claims.ProductSerial != "SN-7701" {
			t.Errorf("deleted: %+v", n)
		}
		f.sleep(time.Second)
	}
	f.told(events.TypeNodeDeleted, events.ActionNodeDeleted, id,
		map[string]any{"nodeId": id, "poolId": f.pool, "siteId": f.site, "deletedBy": f.keyID})
	for _, e := range f.events(f.tenant, events.TypeCertificateRevoked) {
		if !strings.Contains(string(e.Data), `"reason":"deleted"`) {
			t.Errorf("revoked: %s", e.Data)
		}
	}

	list := func(change map[string]any) (ids []string) {
		change["tenantId"] = f.tenant
		for _, n := range read[httpapi.List[httpapi.Node]](t, f.call("nodes.list", change)).Items {
			ids = append(ids, n.ID)
		}
		return ids
	}
	for _, test := range []struct {
		in   map[string]any
		want []string
	}{
		{map[string]any{}, []string{other}},
		{map[string]any{"poolId": f.pool}, []string{other}},
		{map[string]any{"includeRetired": true}, []string{id, other}},
		{map[string]any{"includeRetired": true, "limit": 1}, []string{id}},
		{map[string]any{"includeRetired": true, "cursor": id}, []string{other}},
		{map[string]any{"state": "retired"}, []string{id}},
		{map[string]any{"state": "retired", "poolId": f.pool}, []string{id}},
		{map[string]any{"state": "adopting", "includeRetired": true}, []string{other}},
		{map[string]any{"state": "adopted"}, nil},
	} {
		if diff := cmp.Diff(test.want, list(test.in)); diff != "" {
			t.Errorf("%v: %s", test.in, diff)
		}
	}
	for _, method := range []string{"nodes.adopt", "nodes.cordon", "nodes.uncordon"} {
		f.refused(f.call(method, in), fault.InvalidState, "retired")
	}
	if got := f.call("nodes.revokeIdentity", in).object(t)["state"]; got != "retired" {
		t.Errorf("revokeIdentity of a deleted node answers state %v", got)
	}
}

// told checks that exactly one event of the type says so of the node, and one audit row beside it names the key.
func (f *fixture) told(kind events.Type, action events.Action, node string, data map[string]any) {
	f.t.Helper()
	found := f.events(f.tenant, kind)
	if len(found) != 1 {
		f.t.Fatalf("%d events %s", len(found), kind)
	}
	var got map[string]any
	if err := json.Unmarshal(found[0].Data, &got); err != nil {
		f.t.Fatal(err)
	}
	if diff := cmp.Diff(data, got); diff != "" {
		f.t.Errorf("%s: %s", kind, diff)
	}
	var rows []events.Audit
	err := f.store.Read(f.t.Context(), func(tx *store.Tx) error {
		all, err := tx.Audit(f.tenant, "", 1000)
		for _, a := range all {
			if a.Action == action {
				rows = append(rows, a)
			}
		}
		return err
	})
	if err != nil || len(rows) != 1 || rows[0].Actor != f.keyID || rows[0].Subject != node {
		f.t.Errorf("audit of %s: %+v, %v", action, rows, err)
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

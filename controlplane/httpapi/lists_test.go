package httpapi_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestListsOfTheTenant(t *testing.T) {
	f := newFixture(t)
	f.write(func(tx *store.Tx) error {
		p, err := tx.Pool(f.noBCD)
		if err != nil {
			return err
		}
		return tx.InsertPool(store.Pool{
			ID: tx.NewID(store.PrefixPool), TenantID: f.tenant, SiteID: p.SiteID, Name: "old", Agent: store.AgentBCD, ArchivedAt: start,
		})
	})
	in := map[string]any{"tenantId": f.tenant}
	sites := f.call("sites.list", in).object(t)
	const at = "2026-11-29T11:06:11Z"
	if diff := cmp.Diff(map[string]any{"items": []any{map[string]any{"id": f.site, "name": "eu", "custom": false, "createdAt": at}}}, sites); diff != "" {
		t.Error(diff)
	}
	got := map[string]httpapi.Pool{}
	for cursor := any(nil); ; {
		page := read[httpapi.List[httpapi.Pool]](t, f.call("pools.list", with(with(in, "limit", 1), "cursor", cursor)))
		for _, p := range page.Items {
			got[p.ID] = p
		}
		if page.NextCursor == "" {
			break
		}
		cursor = page.NextCursor
	}
	want := map[string]httpapi.Pool{
		f.pool:  {ID: f.pool, Name: "default", SiteID: f.site, Agent: "bcd", CreatedAt: start},
		f.spare: {ID: f.spare, Name: "spare", SiteID: f.site, Agent: "bcd", CreatedAt: start},
		f.noBCD: {ID: f.noBCD, Name: "cloud", SiteID: f.site, Agent: "none", CreatedAt: start},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	for _, method := range []string{"sites.list", "pools.list", "events.list", "nodes.list"} {
		f.refused(f.call(method, map[string]any{"tenantId": f.other}), fault.NotFound, "no tenant")
		f.refused(f.call(method, with(in, "limit", 0)), fault.InvalidArgument, `"limit"`)
		f.refused(f.call(method, with(in, "cursor", "x")), fault.InvalidArgument, `"cursor"`)
	}
}

func TestEvents(t *testing.T) {
	f := newFixture(t)
	for range 3 {
		f.write(func(tx *store.Tx) error {
			if err := tx.Publish(f.tenant, events.NodeAdopted{NodeID: "n"}); err != nil {
				return err
			}
			return tx.Publish(f.tenant, events.JoinRefused{Attestor: "join-token", Reason: "join-token:exhausted", Role: "node"})
		})
		f.sleep(time.Minute)
	}
	f.write(func(tx *store.Tx) error { return tx.Publish(f.other, events.NodeAdopted{NodeID: "theirs"}) })

	seqs := func(in map[string]any) (seqs []int64) {
		list := read[httpapi.List[httpapi.Event]](t, f.call("events.list", with(in, "tenantId", f.tenant)))
		for _, e := range list.Items {
			seqs = append(seqs, e.Seq)
		}
		return seqs
	}
	for name, test := range map[string]struct {
		in   map[string]any
		want []int64
	}{
		"all":               {map[string]any{}, []int64{1, 2, 3, 4, 5, 6}},
		"a type":            {map[string]any{"type": "security.join.refused"}, []int64{2, 4, 6}},
		"a type of nothing": {map[string]any{"type": "security"}, nil},
		"since":             {map[string]any{"since": "2026-11-29T11:07:11Z"}, []int64{3, 4, 5, 6}},
		"since, elsewhere":  {map[string]any{"since": "2026-11-29T12:08:11.000+01:00"}, []int64{5, 6}},
		"a page":            {map[string]any{"limit": 2}, []int64{1, 2}},
		"the next":          {map[string]any{"limit": 2, "cursor": "2"}, []int64{3, 4}},
		"behind the end":    {map[string]any{"cursor": "6"}, nil},
		"a page of a type":  {map[string]any{"type": "node.adopted", "limit": 1, "cursor": "1"}, []int64{3}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, seqs(test.in)); diff != "" {
				t.Error(diff)
			}
		})
	}
	in := map[string]any{"tenantId": f.tenant}
	first := f.call("events.list", with(in, "limit", 2)).object(t)
	want := map[string]any{
		"seq": 2.0, "type": "security.join.refused", "at": "2026-11-29T11:06:11Z",
		"data": map[string]any{"attestor": "join-token", "reason": "join-token:exhausted", "role": "node", "csrSha256": "", "hardwareKey": "", "suppressed": 0.0},
	}
	if diff := cmp.Diff(want, first["items"].([]any)[1]); diff != "" || first["nextCursor"] != "2" {
		t.Errorf("next %v: %s", first["nextCursor"], diff)
	}
	for _, cursor := range []string{"-1", "1.5", "jt_x"} {
		f.refused(f.call("events.list", with(in, "cursor", cursor)), fault.InvalidArgument, `"cursor"`)
	}
	for _, since := range []string{"yesterday", "2026-11-29", "1764414371"} {
		f.refused(f.call("events.list", with(in, "since", since)), fault.InvalidArgument, `"since"`)
	}
}

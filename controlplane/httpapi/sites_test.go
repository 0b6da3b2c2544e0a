package httpapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestSites(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"tenantId": f.tenant, "name": "us", "idempotencyKey": "k"}
	made := f.call("sites.create", in).object(t)
	id := made["id"].(string)
	if diff := cmp.Diff(map[string]any{"id": id, "name": "us", "custom": false, "createdAt": "2026-11-29T11:06:11Z"}, made); diff != "" {
		t.Error(diff)
	}
	ref := map[string]any{"tenantId": f.tenant, "siteId": id}
	changed := f.call("sites.update", with(ref, "name", "us-east")).object(t)
	if diff := cmp.Diff(with(made, "name", "us-east"), changed); diff != "" {
		t.Error(diff)
	}
	changed = f.call("sites.update", with(ref, "custom", true)).object(t)
	if changed["custom"] != true || changed["name"] != "us-east" {
		t.Errorf("changed to %v", changed)
	}
	f.call("sites.update", with(ref, "custom", true)).object(t) // no change
	// A repeat of the creation is told apart by what it asks for, not by what became of the site.
	if diff := cmp.Diff(changed, f.call("sites.create", in).object(t)); diff != "" {
		t.Errorf("a repeat: %s", diff)
	}
	f.refused(f.call("sites.create", with(in, "custom", true)), fault.Conflict, `"k"`)
	f.refused(f.call("sites.create", with(in, "name", "us-east")), fault.Conflict, `"k"`)

	f.refused(f.call("sites.update", ref), fault.InvalidArgument, "nothing to change")
	f.refused(f.call("sites.update", with(with(ref, "name", "x"), "siteId", store.NewID(store.PrefixSite, start))), fault.NotFound, "does not exist")
	f.refused(f.call("sites.update", with(with(ref, "name", "x"), "siteId", f.pool)), fault.InvalidArgument, `"siteId"`)
	f.refused(f.call("sites.create", with(in, "tenantId", f.other)), fault.NotFound, "no tenant")
	theirs := with(with(ref, "tenantId", f.other), "name", "mine now")
	f.refused(f.callAs(f.otherKey, "sites.update", theirs), fault.NotFound, "does not exist")

	if n := len(f.events(f.tenant, events.TypeSiteCreated)); n != 1 {
		t.Errorf("%d creations are told", n)
	}
	updates := f.events(f.tenant, events.TypeSiteUpdated)
	if len(updates) != 2 || !strings.Contains(string(updates[1].Data), `"custom":true`) {
		t.Errorf("updates %+v", updates)
	}
}

// Nodes at a site that is not custom are trusted as the platform's: no tenant has such a site.
func TestOnlyTheRootTenantHasSitesThatAreNotCustom(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"tenantId": f.other, "name": "basement", "idempotencyKey": "k"}
	for _, custom := range []any{nil, false} {
		a := f.callAs(f.otherKey, "sites.create", with(in, "custom", custom))
		f.refused(a, fault.InvalidArgument, "only the root tenant has sites that are not custom")
		if a.problem(t).Hint == "" {
			t.Error("no hint")
		}
	}
	made := read[httpapi.Site](t, f.callAs(f.otherKey, "sites.create", with(in, "custom", true)))
	ref := map[string]any{"tenantId": f.other, "siteId": made.ID}
	f.refused(f.callAs(f.otherKey, "sites.update", with(ref, "custom", false)), fault.InvalidArgument, "only the root tenant")
	f.callAs(f.otherKey, "sites.update", with(ref, "name", "cellar")).object(t)

	// A site of the platform where tenants have pools stays the platform's.
	shared := map[string]any{"tenantId": f.tenant, "siteId": f.site, "custom": true}
	f.refused(f.call("sites.update", shared), fault.InvalidState, "pools of other tenants")
	f.callAs(f.otherKey, "pools.archive", map[string]any{"tenantId": f.other, "poolId": f.foreign}).object(t)
	f.call("sites.update", shared).object(t)
}

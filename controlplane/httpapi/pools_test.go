package httpapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestPools(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"tenantId": f.tenant, "siteId": f.site, "name": "metal", "idempotencyKey": "k"}
	made := f.call("pools.create", in).object(t)
	id := made["id"].(string)
	want := map[string]any{
		"id": id, "name": "metal", "siteId": f.site, "agent": "bcd", "acceptance": false,
		"policy":    map[string]any{"joinAttestors": nil, "kubernetes": map[string]any{"platformOperated": false, "inEffect": false}},
		"createdAt": "2026-11-29T11:06:11Z", "archivedAt": nil,
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Error(diff)
	}
	ref := map[string]any{"tenantId": f.tenant, "poolId": id}
	policy := map[string]any{"joinAttestors": []any{"tpm", "join-token"}, "kubernetes": map[string]any{"platformOperated": true}}
	changed := f.call("pools.update", with(with(with(with(ref, "name", "metal 2"), "agent", "none"), "acceptance", true), "policy", policy)).object(t)
	want = with(with(with(want, "name", "metal 2"), "agent", "none"), "acceptance", true)
	want["policy"] = map[string]any{
		"joinAttestors": []any{"tpm", "join-token"}, "kubernetes": map[string]any{"platformOperated": true, "inEffect": true},
	}
	if diff := cmp.Diff(want, changed); diff != "" {
		t.Error(diff)
	}
	f.refused(f.call("joinTokens.create", with(f.minimal("none"), "poolId", id)), fault.InvalidState, "run no daemon")
	// A policy is replaced as a whole, and only where it is given.
	changed = f.call("pools.update", with(ref, "agent", "bcd")).object(t)
	if diff := cmp.Diff(want["policy"], changed["policy"]); diff != "" {
		t.Error(diff)
	}
	changed = f.call("pools.update", with(ref, "policy", map[string]any{"joinAttestors": []any{}})).object(t)
	want["policy"] = map[string]any{"joinAttestors": []any{}, "kubernetes": map[string]any{"platformOperated": false, "inEffect": false}}
	if diff := cmp.Diff(want["policy"], changed["policy"]); diff != "" {
		t.Error(diff)
	}
	f.call("pools.update", with(ref, "policy", map[string]any{"joinAttestors": []any{}})).object(t) // no change
	if diff := cmp.Diff(changed, f.call("pools.create", in).object(t)); diff != "" {
		t.Errorf("a repeat: %s", diff)
	}
	for key, value := range map[string]any{"name": "x", "siteId": f.customSite(), "agent": "none", "acceptance": true, "policy": policy} {
		f.refused(f.call("pools.create", with(in, key, value)), fault.Conflict, `"k"`)
	}
	// The default spelled out is the same request.
	f.call("pools.create", with(with(in, "agent", "bcd"), "policy", map[string]any{})).object(t)

	token := read[httpapi.CreatedJoinToken](t, f.call("joinTokens.create", with(f.minimal("t"), "poolId", id)))
	f.sleep(time.Minute)
	for range 2 {
		archived := f.call("pools.archive", ref).object(t)
		if archived["archivedAt"] != "2026-11-29T11:07:11Z" {
			t.Errorf("archived at %v", archived["archivedAt"])
		}
		f.sleep(time.Minute)
	}
	f.refused(f.call("joinTokens.create", with(f.minimal("late"), "poolId", id)), fault.InvalidState, "is archived")
	f.refused(f.call("pools.update", with(ref, "name", "x")), fault.InvalidState, "is archived")
	// What is there already can still be looked at and ended.
	f.call("joinTokens.revoke", with(ref, "tokenId", token.ID)).object(t)

	counts := map[events.Type]int{events.TypePoolCreated: 1, events.TypePoolUpdated: 3, events.TypePoolArchived: 1}
	for kind, n := range counts {
		if got := f.events(f.tenant, kind); len(got) != n {
			t.Errorf("%s is told %d times, want %d: %+v", kind, len(got), n, got)
		}
	}
	if last := f.events(f.tenant, events.TypePoolUpdated)[2]; !strings.Contains(string(last.Data), `"joinAttestors":[]`) {
		t.Errorf("told %s", last.Data)
	}
}

func TestPoolsAreListed(t *testing.T) {
	f := newFixture(t)
	f.call("pools.archive", map[string]any{"tenantId": f.tenant, "poolId": f.spare}).object(t)
	for archived, want := range map[bool]int{false: 2, true: 3} {
		list := read[httpapi.List[httpapi.Pool]](t, f.call("pools.list", map[string]any{"tenantId": f.tenant, "includeArchived": archived}))
		if len(list.Items) != want {
			t.Errorf("with archived ones %t: %+v", archived, list.Items)
		}
		for _, p := range list.Items {
			if (p.ArchivedAt != nil) != (p.ID == f.spare) {
				t.Errorf("archived at %v: %+v", p.ArchivedAt, p)
			}
		}
	}
}

// A pool is at a site of its tenant, or at one of the platform's own.
func TestSitesOfPools(t *testing.T) {
	f := newFixture(t)
	own := read[httpapi.Site](t, f.callAs(f.otherKey, "sites.create", map[string]any{
		"tenantId": f.other, "name": "basement", "custom": true, "idempotencyKey": "k",
	})).ID
	custom := f.customSite()
	for name, c := range map[string]struct {
		key, tenant, site string
		ok                bool
	}{
		"the root tenant at its site":        {f.key, f.tenant, f.site, true},
		"the root tenant at its custom site": {f.key, f.tenant, custom, true},
		"the root tenant at a tenant's site": {f.key, f.tenant, own, false},
		"a tenant at its site":               {f.otherKey, f.other, own, true},
		"a tenant at the platform's":         {f.otherKey, f.other, f.site, true},
		"a tenant at a custom one":           {f.otherKey, f.other, custom, false},
		"at no site":                         {f.key, f.tenant, store.NewID(store.PrefixSite, start), false},
	} {
		a := f.callAs(c.key, "pools.create", map[string]any{
			"tenantId": c.tenant, "siteId": c.site, "name": "n", "idempotencyKey": name,
			"policy": map[string]any{"kubernetes": map[string]any{"platformOperated": true}},
		})
		if !c.ok {
			f.refused(a, fault.NotFound, `site "`+c.site+`" does not exist`)
			continue
		}
		// What a tenant says of its own cluster is kept, and the answer says that it changes nothing.
		got := read[httpapi.Pool](t, a).Policy.Kubernetes
		if want := (httpapi.KubernetesInUse{PlatformOperated: true, InEffect: c.tenant == f.tenant && c.site == f.site}); got != want {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// Req: AT-002
func TestPoolsAreChecked(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"tenantId": f.tenant, "siteId": f.site, "name": "n", "idempotencyKey": "k"}
	ref := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	attestors := func(names ...any) map[string]any { return map[string]any{"joinAttestors": names} }
	for name, c := range map[string]struct {
		field string
		value any
		text  string
	}{
		"another agent":          {"agent", "k8s", `agent must be "bcd" or "none"`},
		"no agent":               {"agent", "", `agent must be`},
		"another attestor":       {"policy", attestors("join-token", "tmp"), `policy.joinAttestors[1] is "tmp"`},
		"an empty attestor":      {"policy", attestors(""), `policy.joinAttestors[0]`},
		"an attestor twice":      {"policy", attestors("tpm", "tpm"), `names "tpm" twice`},
		"one text":               {"policy", map[string]any{"joinAttestors": "tpm"}, `"policy.joinAttestors" must be an array`},
		"attestors in the wrong": {"policy", map[string]any{"attestors": []any{"tpm"}}, `unknown field "policy.attestors"`},
		"a mistyped policy":      {"policy", map[string]any{"kubernetes": map[string]any{"platformoperated": true}}, "unknown field"},
		"a policy that is none":  {"policy", []any{}, `"policy" must be an object`},
		"acceptance in words":    {"acceptance", "yes", `"acceptance" must be true or false`},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url, key: f.key}
			g.refused(g.call("pools.create", with(in, c.field, c.value)), fault.InvalidArgument, c.text)
			g.refused(g.call("pools.update", with(ref, c.field, c.value)), fault.InvalidArgument, c.text)
		})
	}
	for _, policy := range []map[string]any{attestors("join-token", "tpm", "x509pop", "discovery"), attestors("tpm"), {}} {
		f.call("pools.update", with(ref, "policy", policy)).object(t)
	}
	f.refused(f.call("pools.update", ref), fault.InvalidArgument, "nothing to change")
	for _, method := range []string{"pools.update", "pools.archive"} {
		in := ref
		if method == "pools.update" {
			in = with(ref, "name", "x")
		}
		for _, id := range []string{f.foreign, store.NewID(store.PrefixPool, start)} {
			f.refused(f.call(method, with(in, "poolId", id)), fault.NotFound, `pool "`+id+`" does not exist`)
		}
		f.refused(f.call(method, with(in, "tenantId", f.other)), fault.NotFound, "no tenant")
	}
	f.refused(f.call("pools.create", with(in, "tenantId", f.other)), fault.NotFound, "no tenant")
}

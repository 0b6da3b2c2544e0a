package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestCreateTenant(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"name": "Initech GmbH", "idempotencyKey": "k"}
	first := f.call("tenants.create", in).object(t)
	id := first["id"].(string)
	if diff := cmp.Diff(map[string]any{"id": id, "name": "Initech GmbH", "root": false, "createdAt": "2026-11-29T11:06:11Z"}, first); diff != "" {
		t.Error(diff)
	}
	if err := store.CheckID(store.PrefixTenant, id); err != nil {
		t.Error(err)
	}
	f.sleep(time.Minute)
	if diff := cmp.Diff(first, f.call("tenants.create", in).object(t)); diff != "" {
		t.Errorf("a repeat: %s", diff)
	}
	f.refused(f.call("tenants.create", with(in, "name", "Other")), fault.Conflict, `"k"`)
	// Names are not ids.
	if second := f.call("tenants.create", with(in, "idempotencyKey", "k2")).object(t); second["id"] == id {
		t.Error("another key made no other tenant")
	}
	// The key is the identity's.
	another, _ := f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{"compute:tenants:create"}})
	if third := f.callAs(another, "tenants.create", in).object(t); third["id"] == id {
		t.Error("another identity got the first one's tenant")
	}
	f.refused(f.callAs(f.otherKey, "tenants.create", in), fault.AccessDenied, "only API keys of the root tenant")

	told := f.events(f.tenant, events.TypeTenantCreated)
	if len(told) != 3 || !strings.Contains(string(told[0].Data), `"tenantId":"`+id+`"`) || !strings.Contains(string(told[0].Data), f.keyID) {
		t.Errorf("events %+v", told)
	}
	if got := f.audit(f.tenant, events.ActionTenantCreated); len(got) != 3 || got[0].Subject != id || got[0].Actor != f.keyID {
		t.Errorf("audit %+v", got)
	}
}

func TestListTenants(t *testing.T) {
	f := newFixture(t)
	ids := func(key string, in map[string]any) (ids []string) {
		for cursor := any(nil); ; {
			page := read[httpapi.List[httpapi.Tenant]](t, f.callAs(key, "tenants.list", with(in, "cursor", cursor)))
			for _, item := range page.Items {
				ids = append(ids, item.ID)
				if item.Root != (item.ID == f.tenant) {
					t.Errorf("root is %t of %q", item.Root, item.Name)
				}
			}
			if page.NextCursor == "" {
				return ids
			}
			cursor = page.NextCursor
		}
	}
	both := []string{f.tenant, f.other}
	for name, c := range map[string]struct {
		key  string
		in   map[string]any
		want []string
	}{
		"the root tenant's":               {f.key, map[string]any{}, both},
		"the root tenant's, page by page": {f.key, map[string]any{"limit": 1}, both},
		"the root tenant's own":           {f.key, map[string]any{"own": true}, both[:1]},
		"another's":                       {f.otherKey, map[string]any{}, both[1:]},
		"another's own":                   {f.otherKey, map[string]any{"own": true, "limit": 1}, both[1:]},
		"another's, from the root's on":   {f.otherKey, map[string]any{"own": true}, both[1:]},
	} {
		if diff := cmp.Diff(c.want, ids(c.key, c.in)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	f.refused(f.call("tenants.list", map[string]any{"limit": 201}), fault.InvalidArgument, `"limit"`)
	f.refused(f.call("tenants.list", map[string]any{"cursor": f.site}), fault.InvalidArgument, `"cursor"`)
}

// What has a name takes the same ones.
func TestNames(t *testing.T) {
	f := newFixture(t)
	creates := map[string]map[string]any{
		"tenants.create": {},
		"sites.create":   {"tenantId": f.tenant},
		"pools.create":   {"tenantId": f.tenant, "siteId": f.site},
		"apiKeys.create": {"tenantId": f.tenant, "actions": []any{"compute:nodes:read"}},
	}
	updates := map[string]map[string]any{
		"sites.update": {"tenantId": f.tenant, "siteId": f.site},
		"pools.update": {"tenantId": f.tenant, "poolId": f.pool},
	}
	for method, in := range creates {
		in["idempotencyKey"] = "a"
		updates[method] = in
	}
	for method, in := range updates {
		for name, text := range map[string]string{
			"empty":              "",
			"a space":            " ",
			"1 KiB":              strings.Repeat("x", 1024),
			"129 bytes":          strings.Repeat("x", 129),
			"a line break":       "a\nb",
			"a terminal's order": "a\x1b[2J",
			"NUL":                "a\x00",
			"a direction":        "a\u202eb",
			"no character":       "a\ufffd",
			"spaces at the end":  "a ",
			"spaces at the head": "\u00a0a",
		} {
			a := f.call(method, with(in, "name", text))
			if p := a.problem(t); p.Code != fault.InvalidArgument || !strings.HasPrefix(p.Message, "name ") {
				t.Errorf("%s, %s: %s", method, name, a.body)
			}
		}
	}
	for i, text := range []string{strings.Repeat("x", 128), "Zürich – Rack 7 (B)", "机房"} {
		for method, in := range creates {
			if a := f.call(method, with(with(in, "name", text), "idempotencyKey", text)); a.status != http.StatusOK {
				t.Errorf("%s, name %d: %s", method, i, a.body)
			}
		}
	}
	// And idempotency keys as bounded as those of tokens.
	for method, in := range creates {
		for _, key := range []string{"", strings.Repeat("k", 256), "a\x00"} {
			f.refused(f.call(method, with(with(in, "name", "n"), "idempotencyKey", key)), fault.InvalidArgument, "idempotencyKey")
		}
	}
}

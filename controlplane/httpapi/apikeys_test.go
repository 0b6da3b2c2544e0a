package httpapi_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestAPIKeys(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{
		"tenantId": f.tenant, "name": "ci", "actions": []any{"compute:nodes:read", "compute:join-tokens:*"}, "ttlSeconds": 3600,
		"idempotencyKey": "k",
	}
	first := f.call("apiKeys.create", in).object(t)
	text, _ := first["key"].(string)
	id, _ := first["id"].(string)
	if !regexp.MustCompile(`^bcak_[A-Za-z0-9_-]{43}$`).MatchString(text) {
		t.Fatalf("key %q", text)
	}
	record := map[string]any{
		"id": id, "tenantId": f.tenant, "name": "ci", "actions": []any{"compute:nodes:read", "compute:join-tokens:*"}, "state": "active",
		"createdAt": "2026-11-29T11:06:11Z", "expiresAt": "2026-11-29T12:06:11Z",
	}
	if diff := cmp.Diff(with(record, "key", text), first); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(record, f.call("apiKeys.create", in).object(t)); diff != "" {
		t.Errorf("a repeat: %s", diff)
	}
	for field, value := range map[string]any{"name": "cd", "actions": []any{"compute:nodes:read"}, "ttlSeconds": 3601} {
		f.refused(f.call("apiKeys.create", with(in, field, value)), fault.Conflict, `"k"`)
	}
	// It may do what it names and nothing else.
	f.callAs(text, "nodes.list", map[string]any{"tenantId": f.tenant}).object(t)
	f.callAs(text, "joinTokens.list", map[string]any{"tenantId": f.tenant, "poolId": f.pool}).object(t)
	f.refused(f.callAs(text, "events.list", map[string]any{"tenantId": f.tenant}), fault.AccessDenied, "events:read")

	lasting := f.call("apiKeys.create", with(with(in, "ttlSeconds", nil), "idempotencyKey", "k2")).object(t)
	if lasting["expiresAt"] != nil {
		t.Errorf("without a lifetime it expires at %v", lasting["expiresAt"])
	}
	ref := map[string]any{"tenantId": f.tenant, "keyId": id}
	for range 2 {
		if diff := cmp.Diff(with(record, "state", "revoked"), f.call("apiKeys.revoke", ref).object(t)); diff != "" {
			t.Error(diff)
		}
	}
	f.refused(f.callAs(text, "nodes.list", map[string]any{"tenantId": f.tenant}), fault.Unauthenticated, "")

	// The list shows no secret, and of what is over only what is asked for.
	states := func(in map[string]any) map[string]string {
		got := map[string]string{}
		for cursor := any(nil); ; {
			a := f.call("apiKeys.list", with(with(in, "limit", 1), "cursor", cursor))
			page := read[httpapi.List[httpapi.APIKey]](t, a)
			if regexp.MustCompile(`[A-Za-z0-9_-]{43}`).MatchString(a.body) {
				t.Errorf("a secret is shown: %s", a.body)
			}
			for _, item := range page.Items {
				got[item.ID] = item.State
			}
			if page.NextCursor == "" {
				return got
			}
			cursor = page.NextCursor
		}
	}
	short := f.call("apiKeys.create", with(in, "idempotencyKey", "k3")).object(t)["id"].(string)
	f.sleep(time.Hour)
	tenant := map[string]any{"tenantId": f.tenant}
	live := map[string]string{f.keyID: "active", lasting["id"].(string): "active"}
	if diff := cmp.Diff(live, states(tenant)); diff != "" {
		t.Error(diff)
	}
	live[id], live[short] = "revoked", "expired"
	if diff := cmp.Diff(live, states(with(tenant, "includeInactive", true))); diff != "" {
		t.Error(diff)
	}

	told := f.events(f.tenant, events.TypeAPIKeyCreated)
	if len(told) != 3 || !strings.Contains(string(told[0].Data), `"keyId":"`+id+`"`) || strings.Contains(string(told[0].Data), text) {
		t.Errorf("creations %+v", told)
	}
	if strings.Contains(string(told[1].Data), "expiresAt") {
		t.Errorf("a key that does not expire is told as %s", told[1].Data)
	}
	if n := len(f.events(f.tenant, events.TypeAPIKeyRevoked)); n != 1 {
		t.Errorf("the revocation is told %d times", n)
	}
	if got := f.audit(f.tenant, events.ActionAPIKeyRevoked); len(got) != 1 || got[0].Subject != id || got[0].Actor != f.keyID {
		t.Errorf("audit %+v", got)
	}
}

// What is lent for a time is not kept by making another key.
func TestAPIKeysEndNoLaterThanTheOneThatGaveThem(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{
		"tenantId": f.tenant, "name": "lent", "actions": []any{"compute:*"}, "ttlSeconds": 3600, "idempotencyKey": "k",
	}
	lent := f.call("apiKeys.create", in).object(t)["key"].(string)
	f.sleep(30 * time.Minute)
	for name, ttl := range map[string]any{"for ever": nil, "longer": 1801, "a year": 365 * 24 * 3600} {
		a := f.callAs(lent, "apiKeys.create", with(in, "ttlSeconds", ttl))
		if f.refused(a, fault.AccessDenied, "2026-11-29T12:06:11Z"); strings.Contains(a.body, "bcak_") {
			t.Errorf("%s: %s", name, a.body)
		}
	}
	if n := len(f.events(f.tenant, events.TypeAPIKeyCreated)); n != 1 {
		t.Errorf("%d keys were made", n)
	}
	given := with(in, "ttlSeconds", 1800)
	first := f.callAs(lent, "apiKeys.create", given).object(t)
	if first["expiresAt"] != "2026-11-29T12:06:11Z" {
		t.Errorf("it ends at %v", first["expiresAt"])
	}
	// A repeat makes no key, so it asks for nothing that is not left.
	f.sleep(10 * time.Minute)
	if again := f.callAs(lent, "apiKeys.create", given).object(t); again["id"] != first["id"] {
		t.Errorf("a repeat made %v", again["id"])
	}
}

func TestAPIKeysAreChecked(t *testing.T) {
	f := newFixture(t)
	in := map[string]any{"tenantId": f.tenant, "name": "ci", "actions": []any{"compute:nodes:read"}, "idempotencyKey": "k"}
	many := make([]any, 65)
	for i := range many {
		many[i] = "compute:nodes:read"
	}
	for name, c := range map[string]struct {
		field string
		value any
		text  string
	}{
		"no actions":         {"actions", []any{}, "actions must name 1 to 64 actions"},
		"too many":           {"actions", many, "actions must name"},
		"an unknown action":  {"actions", []any{"compute:nodes:raed"}, `actions[0] is "compute:nodes:raed", which is no action`},
		"an unknown group":   {"actions", []any{"compute:nodes:read", "compute:noodles:*"}, `actions[1]`},
		"half a word":        {"actions", []any{"compute:no*"}, `actions[0]`},
		"a bare star":        {"actions", []any{"*"}, `actions[0]`},
		"another's world":    {"actions", []any{"storage:*"}, `actions[0]`},
		"an empty one":       {"actions", []any{""}, `actions[0]`},
		"an action twice":    {"actions", []any{"compute:nodes:read", "compute:nodes:read"}, "twice"},
		"a text":             {"actions", "compute:nodes:read", `"actions" must be an array`},
		"59 s":               {"ttlSeconds", 59, `"ttlSeconds" must be from 60 to`},
		"no time":            {"ttlSeconds", 0, `"ttlSeconds"`},
		"more than a decade": {"ttlSeconds", 10 * 367 * 86400, `"ttlSeconds"`},
		"a wrapped lifetime": {"ttlSeconds", 1 << 55, `"ttlSeconds"`},
		"a key of one's own": {"key", "bcak_x", `unknown field "key"`},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url, key: f.key}
			g.refused(g.call("apiKeys.create", with(in, c.field, c.value)), fault.InvalidArgument, c.text)
		})
	}
	for _, good := range [][]any{{"compute:*"}, {"compute:nodes:*", "compute:events:read"}} {
		f.call("apiKeys.create", with(with(in, "actions", good), "idempotencyKey", good[0])).object(t)
	}
	// A pasted key is neither sent on nor repeated.
	a := f.call("apiKeys.revoke", map[string]any{"tenantId": f.tenant, "keyId": f.key})
	f.refused(a, fault.InvalidArgument, `"keyId"`)
	if strings.Contains(a.body, f.key[len(f.key)-43:]) {
		t.Error("a pasted key is repeated")
	}
}

// A key gives no more than it has, and reaches no other tenant unless it is the root tenant's.
func TestAPIKeysDoNotEscalate(t *testing.T) {
	f := newFixture(t)
	holder := func(tenant string, actions ...string) string {
		key, _ := f.newKey(store.APIKey{TenantID: tenant, Actions: append(actions, "compute:api-keys:create")})
		return key
	}
	for name, c := range map[string]struct {
		key    string
		tenant string
		give   []any
		code   fault.Code // "" is allowed
	}{
		"what it has":                    {holder(f.other, "compute:nodes:read"), f.other, []any{"compute:nodes:read"}, ""},
		"a part of a wildcard":           {holder(f.other, "compute:nodes:*"), f.other, []any{"compute:nodes:adopt", "compute:nodes:*"}, ""},
		"a smaller wildcard":             {holder(f.other, "compute:*"), f.other, []any{"compute:nodes:*"}, ""},
		"everything of everything":       {holder(f.other, "compute:*"), f.other, []any{"compute:*"}, ""},
		"what it has not":                {holder(f.other, "compute:nodes:read"), f.other, []any{"compute:nodes:adopt"}, fault.AccessDenied},
		"one of two":                     {holder(f.other, "compute:nodes:read"), f.other, []any{"compute:nodes:read", "compute:events:read"}, fault.AccessDenied},
		"a wildcard of one":              {holder(f.other, "compute:nodes:read"), f.other, []any{"compute:nodes:*"}, fault.AccessDenied},
		"a larger wildcard":              {holder(f.other, "compute:nodes:*"), f.other, []any{"compute:*"}, fault.AccessDenied},
		"a wildcard of all there is":     {holder(f.other, slices.Clone(httpapi.Actions)...), f.other, []any{"compute:nodes:*"}, fault.AccessDenied},
		"nothing, of a foreign tenant":   {holder(f.other, "compute:*"), f.tenant, []any{"compute:nodes:read"}, fault.NotFound},
		"to a tenant, by the root's":     {holder(f.tenant, "compute:nodes:read"), f.other, []any{"compute:nodes:read"}, ""},
		"more than the root's key has":   {holder(f.tenant, "compute:nodes:read"), f.other, []any{"compute:events:read"}, fault.AccessDenied},
		"more to the root itself":        {holder(f.tenant, "compute:nodes:read"), f.tenant, []any{"compute:*"}, fault.AccessDenied},
		"to nobody, by the root's":       {f.key, store.NewID(store.PrefixTenant, start), []any{"compute:nodes:read"}, fault.NotFound},
		"to nobody, by another tenant's": {f.otherKey, store.NewID(store.PrefixTenant, start), []any{"compute:nodes:read"}, fault.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url}
			a := g.callAs(c.key, "apiKeys.create", map[string]any{"tenantId": c.tenant, "name": "n", "actions": c.give, "idempotencyKey": name})
			if c.code != "" {
				if p := a.problem(t); p.Code != c.code {
					t.Errorf("%s, want %s", a.body, c.code)
				}
				return
			}
			made := a.object(t)
			if made["tenantId"] != c.tenant {
				t.Errorf("made %v", made)
			}
		})
	}
	// A tenant that exists and one that does not are told apart by nobody else.
	ask := func(tenant string) string {
		body := f.callAs(f.otherKey, "apiKeys.list", map[string]any{"tenantId": tenant}).body
		return strings.ReplaceAll(body, tenant, "")
	}
	if exists, not := ask(f.tenant), ask(store.NewID(store.PrefixTenant, start)); exists != not {
		t.Errorf("%s and %s", exists, not)
	}
}

// The root tenant's keys handle those of every tenant, and no other's do.
func TestAPIKeysOfOtherTenants(t *testing.T) {
	f := newFixture(t)
	made := read[httpapi.CreatedAPIKey](t, f.call("apiKeys.create", map[string]any{
		"tenantId": f.other, "name": "admin", "actions": []any{"compute:*"}, "idempotencyKey": "k",
	}))
	// It acts for its tenant.
	f.callAs(made.Key, "nodes.list", map[string]any{"tenantId": f.other}).object(t)
	f.refused(f.callAs(made.Key, "nodes.list", map[string]any{"tenantId": f.tenant}), fault.NotFound, "no tenant")
	if n := len(f.events(f.other, events.TypeAPIKeyCreated)); n != 1 {
		t.Errorf("the key's tenant hears of it %d times", n)
	}
	list := read[httpapi.List[httpapi.APIKey]](t, f.call("apiKeys.list", map[string]any{"tenantId": f.other}))
	if len(list.Items) != 2 {
		t.Errorf("listed %+v", list)
	}
	// A key is revoked under its own tenant only.
	f.refused(f.call("apiKeys.revoke", map[string]any{"tenantId": f.tenant, "keyId": made.ID}), fault.NotFound, "does not exist")
	f.refused(f.callAs(f.otherKey, "apiKeys.revoke", map[string]any{"tenantId": f.tenant, "keyId": f.keyID}), fault.NotFound, "does not exist")
	f.refused(f.callAs(f.otherKey, "apiKeys.revoke", map[string]any{"tenantId": f.other, "keyId": f.keyID}), fault.NotFound, "does not exist")
	f.call("apiKeys.revoke", map[string]any{"tenantId": f.other, "keyId": made.ID}).object(t)
	if a := f.callAs(made.Key, "nodes.list", map[string]any{"tenantId": f.other}); a.status != http.StatusUnauthorized {
		t.Errorf("a revoked key gets status %d", a.status)
	}
	// Its own, too.
	own, id := f.newKey(store.APIKey{TenantID: f.other, Actions: []string{"compute:api-keys:revoke"}})
	f.callAs(own, "apiKeys.revoke", map[string]any{"tenantId": f.other, "keyId": id}).object(t)
	f.refused(f.callAs(own, "apiKeys.revoke", map[string]any{"tenantId": f.other, "keyId": id}), fault.Unauthenticated, "")
}

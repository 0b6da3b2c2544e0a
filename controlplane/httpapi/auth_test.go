package httpapi_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// requests is a good request of every method, as far as its shape goes.
func (f *fixture) requests() map[string]map[string]any {
	node := map[string]any{"tenantId": f.tenant, "nodeId": store.NewID(store.PrefixNode, start)}
	request := map[string]any{"tenantId": f.tenant, "poolId": f.pool, "requestId": store.NewID(store.PrefixJoinRequest, start)}
	return map[string]map[string]any{
		"tenants.create":       {"name": "n", "idempotencyKey": "k"},
		"sites.create":         {"tenantId": f.tenant, "name": "n", "idempotencyKey": "k"},
		"sites.update":         {"tenantId": f.tenant, "siteId": f.site, "name": "eu"},
		"pools.create":         {"tenantId": f.tenant, "siteId": f.site, "name": "n", "idempotencyKey": "k"},
		"pools.update":         {"tenantId": f.tenant, "poolId": f.spare, "name": "spare"},
		"pools.archive":        {"tenantId": f.tenant, "poolId": f.noBCD},
		"apiKeys.create":       {"tenantId": f.tenant, "name": "n", "actions": []any{"compute:api-keys:create"}, "idempotencyKey": "k"},
		"apiKeys.list":         {"tenantId": f.tenant},
		"apiKeys.revoke":       {"tenantId": f.tenant, "keyId": store.NewID(store.PrefixKey, start)},
		"siteTokens.create":    {"tenantId": f.tenant, "siteId": f.site, "ttlSeconds": 3600, "idempotencyKey": "k"},
		"siteTokens.list":      {"tenantId": f.tenant, "siteId": f.site},
		"siteTokens.revoke":    {"tenantId": f.tenant, "siteId": f.site, "tokenId": store.NewID(store.PrefixToken, start)},
		"tenants.list":         {},
		"sites.list":           {"tenantId": f.tenant},
		"pools.list":           {"tenantId": f.tenant},
		"joinTokens.create":    f.minimal("k"),
		"joinTokens.list":      {"tenantId": f.tenant, "poolId": f.pool},
		"joinTokens.revoke":    {"tenantId": f.tenant, "poolId": f.pool, "tokenId": store.NewID(store.PrefixToken, start)},
		"nodes.list":           {"tenantId": f.tenant},
		"nodes.get":            node,
		"nodes.adopt":          node,
		"nodes.cordon":         node,
		"nodes.uncordon":       node,
		"nodes.revokeIdentity": node,
		"nodes.delete":         node,
		"joinRequests.list":    {"tenantId": f.tenant, "poolId": f.pool},
		"ekAllow.add":          {"tenantId": f.tenant, "poolId": f.pool, "ekSha256": strings.Repeat("a5", 32), "idempotencyKey": "k"},
		"ekAllow.list":         {"tenantId": f.tenant, "poolId": f.pool},
		"ekAllow.remove":       {"tenantId": f.tenant, "poolId": f.pool, "entryId": store.NewID(store.PrefixEKAllow, start)},
		"joinRequests.approve": request,
		"joinRequests.reject":  request,
		"events.list":          {"tenantId": f.tenant},
	}
}

// Req: JT-008 JT-044 JT-048 JT-055 AP-022 AP-023 AP-027 AP-032
func TestDecisions(t *testing.T) {
	f := newFixture(t)
	requests := f.requests()
	node := requests["nodes.get"]["nodeId"].(string)
	want := map[string]string{
		"tenants.create":       "compute:tenants:create on compute-tenant/" + f.tenant,
		"sites.create":         "compute:sites:manage on compute-tenant/" + f.tenant,
		"sites.update":         "compute:sites:manage on compute-site/" + f.site,
		"pools.create":         "compute:pools:manage on compute-tenant/" + f.tenant,
		"pools.update":         "compute:pools:manage on compute-pool/" + f.spare,
		"pools.archive":        "compute:pools:manage on compute-pool/" + f.noBCD,
		"apiKeys.create":       "compute:api-keys:create on compute-tenant/" + f.tenant,
		"apiKeys.list":         "compute:api-keys:read on compute-tenant/" + f.tenant,
		"apiKeys.revoke":       "compute:api-keys:revoke on compute-api-key/" + requests["apiKeys.revoke"]["keyId"].(string),
		"siteTokens.create":    "compute:sites:manage on compute-site/" + f.site,
		"siteTokens.list":      "compute:sites:manage on compute-site/" + f.site,
		"siteTokens.revoke":    "compute:sites:manage on compute-site/" + f.site,
		"tenants.list":         "compute:tenants:read on compute-tenant/" + f.tenant,
		"sites.list":           "compute:sites:read on compute-tenant/" + f.tenant,
		"pools.list":           "compute:pools:read on compute-tenant/" + f.tenant,
		"joinTokens.create":    "compute:join-tokens:create on compute-pool/" + f.pool,
		"joinTokens.list":      "compute:join-tokens:read on compute-pool/" + f.pool,
		"joinTokens.revoke":    "compute:join-tokens:revoke on compute-pool/" + f.pool,
		"nodes.list":           "compute:nodes:read on compute-tenant/" + f.tenant,
		"nodes.get":            "compute:nodes:read on compute-node/" + node,
		"nodes.adopt":          "compute:nodes:adopt on compute-node/" + node,
		"nodes.cordon":         "compute:nodes:cordon on compute-node/" + node,
		"nodes.uncordon":       "compute:nodes:cordon on compute-node/" + node,
		"nodes.revokeIdentity": "compute:nodes:revoke-identity on compute-node/" + node,
		"nodes.delete":         "compute:nodes:delete on compute-node/" + node,
		"ekAllow.add":          "compute:ek-allow:create on compute-pool/" + f.pool,
		"ekAllow.list":         "compute:ek-allow:read on compute-pool/" + f.pool,
		"ekAllow.remove":       "compute:ek-allow:delete on compute-pool/" + f.pool,
		"joinRequests.list":    "compute:join-tokens:read on compute-pool/" + f.pool,
		"joinRequests.approve": "compute:join-tokens:create on compute-pool/" + f.pool,
		"joinRequests.reject":  "compute:join-tokens:create on compute-pool/" + f.pool,
		"events.list":          "compute:events:read on compute-tenant/" + f.tenant,
	}
	for _, method := range httpapi.Methods() {
		t.Run(method, func(t *testing.T) {
			f.decisions.asked = nil
			f.call(method, requests[method])
			if diff := cmp.Diff([]string{want[method]}, f.decisions.asked); diff != "" {
				t.Error(diff)
			}
			action, _, _ := strings.Cut(want[method], " ")
			if !slices.Contains(httpapi.Actions, action) {
				t.Errorf("%q is not among the actions, so that no API key could be made for it", action)
			}

			// A key with that action only, of that method's tenant, is let through to the method.
			allowed, _ := f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{action}})
			if a := f.callAs(allowed, method, requests[method]); a.status != http.StatusOK && a.problem(t).Code != fault.NotFound && a.problem(t).Code != fault.AlreadyExists {
				t.Errorf("with %s: status %d, %s", action, a.status, a.body)
			}
			// One with everything else is refused, and nothing happens.
			var others []string
			for _, w := range want {
				if other, _, _ := strings.Cut(w, " "); other != action {
					others = append(others, other)
				}
			}
			g := &fixture{t: t, url: f.url}
			denied, _ := f.newKey(store.APIKey{TenantID: f.tenant, Actions: others})
			g.refused(g.callAs(denied, method, requests[method]), fault.AccessDenied, "may not "+action)
		})
	}
	if got := f.call("joinTokens.list", map[string]any{"tenantId": f.tenant, "poolId": f.spare}).object(t); len(got["items"].([]any)) != 0 {
		t.Error("a refused call left something behind")
	}
}

func TestKeyActions(t *testing.T) {
	for name, test := range map[string]struct {
		allowed []string
		want    bool
	}{
		"nothing":              {nil, false},
		"the action":           {[]string{"compute:nodes:read"}, true},
		"another":              {[]string{"compute:nodes:revoke-identity"}, false},
		"a group":              {[]string{"compute:nodes:*"}, true},
		"another group":        {[]string{"compute:join-tokens:*"}, false},
		"all":                  {[]string{"compute:*"}, true},
		"a bare star":          {[]string{"*"}, false},
		"half a word":          {[]string{"compute:nod*"}, false},
		"a prefix without one": {[]string{"compute:nodes:"}, false},
		"the second":           {[]string{"compute:events:read", "compute:nodes:read"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			err := httpapi.KeyActions{}.Authorize(t.Context(), httpapi.Caller{Actions: test.allowed}, "compute:nodes:read", "compute-node/x")
			if (err == nil) != test.want {
				t.Errorf("Authorize = %v", err)
			}
			if err != nil && !fault.Is(err, fault.AccessDenied) {
				t.Errorf("code %s", fault.CodeOf(err))
			}
		})
	}
}

func TestUnauthenticated(t *testing.T) {
	f := newFixture(t)
	expired, _ := f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{"compute:*"}, ExpiresAt: start.Add(time.Minute)})
	revoked, id := f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{"compute:*"}})
	for _, key := range []string{expired, revoked} {
		f.callAs(key, "tenants.list", map[string]any{}).object(t)
	}
	f.write(func(tx *store.Tx) error { _, err := tx.RevokeAPIKey(id); return err })
	f.sleep(time.Minute)
	unknown, _ := apikeys.New()

	want := ""
	for name, header := range map[string][]string{
		"none":            nil,
		"empty":           {""},
		"no scheme":       {f.key},
		"another scheme":  {"Basic " + f.key},
		"two":             {"Bearer " + f.key, "Bearer " + f.key},
		"unknown":         {"Bearer " + unknown},
		"cut off":         {"Bearer " + f.key[:len(f.key)-1]},
		"longer":          {"Bearer " + f.key + "A"},
		"no prefix":       {"Bearer " + strings.TrimPrefix(f.key, "bcak_")},
		"a join token":    {"Bearer bcjt_jt_x." + strings.TrimPrefix(f.key, "bcak_")},
		"standard base64": {"Bearer bcak_" + strings.Repeat("+", 43)},
		"expired":         {"Bearer " + expired},
		"revoked":         {"Bearer " + revoked},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, f.url+"/tenants/list", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", "application/json")
			r.Header["Authorization"] = header
			a := (&fixture{t: t}).do(r)
			if p := a.problem(t); a.status != http.StatusUnauthorized || p.Code != fault.Unauthenticated || p.Hint == "" {
				t.Errorf("status %d: %s", a.status, a.body)
			}
			if a.header.Get("WWW-Authenticate") == "" {
				t.Error("no WWW-Authenticate")
			}
			// What is wrong with a credential is not told.
			if want == "" {
				want = a.body
			}
			if a.body != want {
				t.Errorf("answers %s, others get %s", a.body, want)
			}
		})
	}
}

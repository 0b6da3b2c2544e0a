package controlplanetest_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/docs"
)

// groups returns the groups of the HTTP API that the release notes count to a version.
func groups(t *testing.T, version string) (all []string) {
	t.Helper()
	notes, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^- ` + regexp.QuoteMeta(version) + `: ([^.]*)\.`).FindSubmatch(notes)
	if line == nil {
		t.Fatalf("the release notes name no groups of %s", version)
	}
	for _, m := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllSubmatch(line[1], -1) {
		all = append(all, string(m[1]))
	}
	slices.Sort(all)
	return all
}

// The release notes say of each group of the API which version it is of.
//
// Req: JF-089
func TestTheReleaseNotesNameEachGroup(t *testing.T) {
	var document struct{ Paths map[string]any }
	if err := json.Unmarshal(docs.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	var known []string
	for path := range document.Paths {
		if parts := strings.Split(path, "/"); len(parts) == 3 && !strings.HasPrefix(parts[1], ".") {
			known = append(known, parts[1])
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	later := groups(t, "v0.2")
	if diff := cmp.Diff([]string{"joinRequests", "siteTokens"}, later); diff != "" {
		t.Errorf("v0.2: %s", diff)
	}
	named := slices.Concat(groups(t, "v0.1"), later, groups(t, "v0.3"))
	slices.Sort(named)
	if diff := cmp.Diff(known, named); diff != "" {
		t.Errorf("groups, - in the API, + in the notes:\n%s", diff)
	}
}

// A machine joins with a token, renews and connects on a server that has that attestor alone, and its operator needs no
// group of v0.2: here they do not answer.
//
// Req: JF-089
func TestTokenJoinsNeedNothingOfTheNextVersion(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{
		Attestors: controlplane.AttestorsConfig{JoinToken: &controlplane.JoinTokenConfig{}},
	})
	if a := cp.Server().Config().Attestors; a.Discovery != nil || a.X509PoP != nil {
		t.Fatalf("attestors %+v, want join-token alone", a)
	}
	target, err := url.Parse(cp.Server().APIURL())
	if err != nil {
		t.Fatal(err)
	}
	base := target.Path
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: target.Scheme, Host: target.Host})
	later := groups(t, "v0.2")
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if group, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, base+"/"), "/"); slices.Contains(later, group) {
			t.Errorf("%s was called", r.URL.Path)
			http.NotFound(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	text, err := os.ReadFile(filepath.Join(cp.Dir, "admin.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var admin struct {
		Key string `toml:"api_key"`
	}
	if err := toml.Unmarshal(text, &admin); err != nil {
		t.Fatal(err)
	}
	api, err := client.New(front.URL+base, admin.Key)
	if err != nil {
		t.Fatal(err)
	}
	call := func(method string, in, out any) {
		t.Helper()
		if err := api.Call(t.Context(), method, in, out); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}

	var tenants httpapi.List[httpapi.Tenant]
	call("tenants.list", httpapi.ListTenants{Own: true}, &tenants)
	tenant := tenants.Items[0].ID
	var sites httpapi.List[httpapi.Site]
	call("sites.list", httpapi.ListSites{TenantID: tenant}, &sites)
	var pool httpapi.Pool
	call("pools.create", httpapi.CreatePool{
		TenantID: tenant, SiteID: sites.Items[0].ID, Name: "metal", IdempotencyKey: "p",
		Policy: &httpapi.PoolPolicy{JoinAttestors: []string{"join-token"}},
	}, &pool)
	var token httpapi.CreatedJoinToken
	call("joinTokens.create", httpapi.CreateJoinToken{TenantID: tenant, PoolID: pool.ID, TTLSeconds: 3600, IdempotencyKey: "t"}, &token)

	m := newMachine(t, cp)
	if err := m.join(cp.GatewayURL, token.Token); err != nil {
		t.Fatal(err)
	}
	if err := m.renew(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	cp.WaitForEvent(t, events.TypeNodeConnected, 1)
	var nodes httpapi.List[httpapi.Node]
	call("nodes.list", httpapi.ListNodes{TenantID: tenant, PoolID: pool.ID}, &nodes)
	if len(nodes.Items) != 1 || nodes.Items[0].ID != m.admission.GetNodeId() || !nodes.Items[0].Connected {
		t.Errorf("nodes %+v", nodes.Items)
	}
	call("joinTokens.revoke", httpapi.RevokeJoinToken{TenantID: tenant, PoolID: pool.ID, TokenID: token.ID}, &httpapi.ListedJoinToken{})

	// And a pool that no longer lists join-token takes none.
	call("pools.update", httpapi.UpdatePool{
		TenantID: tenant, PoolID: pool.ID, Policy: &httpapi.PoolPolicy{JoinAttestors: []string{"tpm"}},
	}, &pool)
	call("joinTokens.create", httpapi.CreateJoinToken{TenantID: tenant, PoolID: pool.ID, TTLSeconds: 3600, IdempotencyKey: "t2"}, &token)
	if err := newMachine(t, cp).join(cp.GatewayURL, token.Token); err == nil {
		t.Error("a pool without join-token in its policy took a token")
	}
	last := cp.WaitForEvent(t, events.TypeJoinRefused, 1)
	if !strings.Contains(string(last.Data), `"reason":"join:pool-attestor"`) {
		t.Errorf("refused as %s", last.Data)
	}
}

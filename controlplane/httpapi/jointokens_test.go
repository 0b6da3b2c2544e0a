package httpapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// example is the request of the documentation's example.
func (f *fixture) example(key string) map[string]any {
	return map[string]any{
		"tenantId": f.tenant, "poolId": f.pool, "ttlSeconds": 3600, "maxUses": 1,
		"expect": map[string]any{"serial": "SN-7701"}, "idempotencyKey": key,
	}
}

// minimal is a request with nothing but what is required.
func (f *fixture) minimal(key string) map[string]any {
	return map[string]any{"tenantId": f.tenant, "poolId": f.pool, "ttlSeconds": 60, "idempotencyKey": key}
}

// Req: JT-005 JT-011 JT-028 JT-038 JT-039 JT-053 JT-070
func TestCreateAnswersTheRecordAndTheTokenOnce(t *testing.T) {
	f := newFixture(t)
	first := f.call("joinTokens.create", f.example("adopt-rack-b7-u12")).object(t)
	want := []string{"allowReclaim", "expect", "expiresAt", "hosted", "id", "poolId", "role", "siteId", "token", "usesLeft"}
	if diff := cmp.Diff(want, keysOf(first)); diff != "" {
		t.Fatal(diff)
	}
	id, token := first["id"].(string), first["token"].(string)
	if !strings.HasPrefix(token, "bcjt_"+id+".") {
		t.Errorf("token %q of id %q", token, id)
	}
	record := map[string]any{
		"id": id, "poolId": f.pool, "siteId": f.site, "role": "node", "usesLeft": 1.0, "expect": map[string]any{"serial": "SN-7701"},
		"allowReclaim": false, "hosted": nil, "expiresAt": "2026-11-29T12:06:11Z",
	}
	if diff := cmp.Diff(record, with(first, "token", nil)); diff != "" {
		t.Error(diff)
	}

	// The same call again, later: the same record, and no key named token.
	f.sleep(time.Minute)
	again := f.call("joinTokens.create", f.example("adopt-rack-b7-u12"))
	if diff := cmp.Diff(record, again.object(t)); diff != "" {
		t.Error(diff)
	}
	_, secret, _ := strings.Cut(token, ".")
	for name, a := range map[string]answer{
		"replay": again,
		"list":   f.call("joinTokens.list", map[string]any{"tenantId": f.tenant, "poolId": f.pool, "includeInactive": true}),
		"revoke": f.call("joinTokens.revoke", map[string]any{"tenantId": f.tenant, "poolId": f.pool, "tokenId": id}),
		"events": f.call("events.list", map[string]any{"tenantId": f.tenant}),
	} {
		if a.status != 200 || !strings.Contains(a.body, id) {
			t.Errorf("%s: status %d, %s", name, a.status, a.body)
		}
		if strings.Contains(a.body, secret) {
			t.Errorf("%s shows the secret", name)
		}
	}

	// The role is not the caller's to choose.
	f.refused(f.call("joinTokens.create", with(f.minimal("r"), "role", "site")), fault.InvalidArgument, `unknown field "role"`)
}

// Req: JT-030 JT-035
func TestCreateDefaults(t *testing.T) {
	f := newFixture(t)
	got := f.call("joinTokens.create", f.minimal("k")).object(t)
	for key, want := range map[string]any{"usesLeft": 1.0, "allowReclaim": false, "expect": nil, "hosted": nil, "role": "node"} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
	full := with(with(with(f.minimal("l"), "allowReclaim", true), "hosted", "kubernetes"), "maxUses", 10000)
	got = f.call("joinTokens.create", full).object(t)
	for key, want := range map[string]any{"usesLeft": 10000.0, "allowReclaim": true, "hosted": "kubernetes"} {
		if diff := cmp.Diff(want, got[key]); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
}

// Req: JT-010 JT-027 JT-029 JT-030 JT-031 JT-032 JT-033 JT-034 JT-036 JT-037
func TestCreateRefuses(t *testing.T) {
	f := newFixture(t)
	expect := func(key string, value any) map[string]any {
		return with(f.minimal("k"), "expect", map[string]any{key: value})
	}
	for name, test := range map[string]struct {
		in   map[string]any
		code fault.Code
		text string
	}{
		"no tenant":             {with(f.minimal("k"), "tenantId", nil), fault.InvalidArgument, `field "tenantId" is required`},
		"no pool":               {with(f.minimal("k"), "poolId", nil), fault.InvalidArgument, `field "poolId" is required`},
		"no lifetime":           {with(f.minimal("k"), "ttlSeconds", nil), fault.InvalidArgument, `field "ttlSeconds" is required`},
		"no idempotency key":    {with(f.minimal("k"), "idempotencyKey", nil), fault.InvalidArgument, `field "idempotencyKey" is required`},
		"an empty key":          {f.minimal(""), fault.InvalidArgument, "idempotencyKey"},
		"too long a key":        {f.minimal(strings.Repeat("k", 256)), fault.InvalidArgument, "idempotencyKey"},
		"a tenant that is none": {with(f.minimal("k"), "tenantId", "acme"), fault.InvalidArgument, `"tenantId"`},
		"a pool that is none":   {with(f.minimal("k"), "poolId", f.site), fault.InvalidArgument, `"poolId"`},
		"59 seconds":            {with(f.minimal("k"), "ttlSeconds", 59), fault.InvalidArgument, "ttlSeconds"},
		"a day and a second":    {with(f.minimal("k"), "ttlSeconds", 86401), fault.InvalidArgument, "ttlSeconds"},
		"negative":              {with(f.minimal("k"), "ttlSeconds", -60), fault.InvalidArgument, "ttlSeconds"},
		"a lifetime that wraps": {with(f.minimal("k"), "ttlSeconds", 18446744133), fault.InvalidArgument, "ttlSeconds"},
		"half seconds":          {with(f.minimal("k"), "ttlSeconds", 90.5), fault.InvalidArgument, `field "ttlSeconds" must be a whole number`},
		"no uses":               {with(f.minimal("k"), "maxUses", 0), fault.InvalidArgument, "maxUses"},
		"10001 uses":            {with(f.minimal("k"), "maxUses", 10001), fault.InvalidArgument, "maxUses"},
		"an empty expect":       {with(f.minimal("k"), "expect", map[string]any{}), fault.InvalidArgument, "expect"},
		"an unknown identifier": {expect("hostname", "h"), fault.InvalidArgument, `unknown field "expect.hostname"`},
		"an empty identifier":   {expect("serial", ""), fault.InvalidArgument, `field "expect.serial" is empty`},
		"another MAC syntax":    {expect("mac", "aa-bb-cc-dd-ee-ff"), fault.InvalidArgument, "expect.mac"},
		"a Cisco MAC":           {expect("mac", "aabb.ccdd.eeff"), fault.InvalidArgument, "expect.mac"},
		"a short MAC":           {expect("mac", "aa:bb:cc:dd:ee"), fault.InvalidArgument, "expect.mac"},
		"a MIG instance":        {expect("gpuUuid", "MIG-5b63bd3c-9b4d-5a3e-8b56-5a3c0a1d2e3f"), fault.InvalidArgument, "expect.gpuUuid"},
		"a bare GPU UUID":       {expect("gpuUuid", "5b63bd3c-9b4d-5a3e-8b56-5a3c0a1d2e3f"), fault.InvalidArgument, "expect.gpuUuid"},
		"hosted elsewhere":      {with(f.minimal("k"), "hosted", "nomad"), fault.InvalidArgument, "hosted"},
		"hosted nowhere":        {with(f.minimal("k"), "hosted", ""), fault.InvalidArgument, "hosted"},
		"a pool without bcd":    {with(f.minimal("k"), "poolId", f.noBCD), fault.InvalidState, `agent "none"`},
	} {
		t.Run(name, func(t *testing.T) {
			(&fixture{t: t}).refused(f.call("joinTokens.create", test.in), test.code, test.text)
		})
	}
	if list := f.call("joinTokens.list", map[string]any{"tenantId": f.tenant, "poolId": f.pool, "includeInactive": true}).object(t); len(list["items"].([]any)) != 0 {
		t.Errorf("a refused call made a token: %v", list)
	}
	for _, seconds := range []int{60, 86400} {
		a := f.call("joinTokens.create", with(f.minimal(fmt.Sprint(seconds)), "ttlSeconds", seconds))
		expires, _ := time.Parse(time.RFC3339, a.object(t)["expiresAt"].(string))
		if got := expires.Sub(start); got != time.Duration(seconds)*time.Second {
			t.Errorf("lives %s, want %d s", got, seconds)
		}
	}
}

// Req: JT-009
func TestAnotherTenantDoesNotSeeThePool(t *testing.T) {
	f := newFixture(t)
	for name, test := range map[string]struct{ key, tenant, pool string }{
		"their key, their tenant, our pool": {f.otherKey, f.other, f.pool},
		"their key, our tenant, our pool":   {f.otherKey, f.tenant, f.pool},
		"our key, their tenant, their pool": {f.key, f.other, f.foreign},
		"our key, our tenant, their pool":   {f.key, f.tenant, f.foreign},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url}
			at := map[string]any{"tenantId": test.tenant, "poolId": test.pool}
			g.refused(g.callAs(test.key, "joinTokens.create", with(with(at, "ttlSeconds", 60), "idempotencyKey", "k")), fault.NotFound, "")
			g.refused(g.callAs(test.key, "joinTokens.list", at), fault.NotFound, "")
			g.refused(g.callAs(test.key, "joinTokens.revoke", with(at, "tokenId", store.NewID(store.PrefixToken, start))), fault.NotFound, "")
		})
	}
	for _, tenant := range []string{f.tenant, f.other} {
		if found := f.events(tenant, events.TypeJoinTokenCreated); len(found) != 0 {
			t.Errorf("a refused call made a token: %v", found)
		}
	}
}

// Req: JT-040
func TestIdempotencyKeyForSomethingElse(t *testing.T) {
	f := newFixture(t)
	first := f.call("joinTokens.create", f.example("k")).object(t)
	for name, in := range map[string]map[string]any{
		"pool":         with(f.example("k"), "poolId", f.spare),
		"expect":       with(f.example("k"), "expect", map[string]any{"serial": "SN-7702"}),
		"no expect":    with(f.example("k"), "expect", nil),
		"allowReclaim": with(f.example("k"), "allowReclaim", true),
		"hosted":       with(f.example("k"), "hosted", "kubernetes"),
	} {
		t.Run(name, func(t *testing.T) {
			(&fixture{t: t}).refused(f.call("joinTokens.create", in), fault.Conflict, "idempotency key")
		})
	}
	// Another lifetime or number of uses is not another token.
	for key, value := range map[string]any{"ttlSeconds": 7200, "maxUses": 5} {
		got := f.call("joinTokens.create", with(f.example("k"), key, value)).object(t)
		if diff := cmp.Diff(with(first, "token", nil), got); diff != "" {
			t.Errorf("%s: %s", key, diff)
		}
	}
}

// Req: JT-037
func TestIdempotencyKeyOfAnotherCaller(t *testing.T) {
	f := newFixture(t)
	colleague, _ := f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{"compute:join-tokens:create"}})
	a := f.call("joinTokens.create", f.example("k")).object(t)
	b := f.callAs(colleague, "joinTokens.create", f.example("k")).object(t)
	if a["id"] == b["id"] || b["token"] == nil {
		t.Errorf("two callers share the token %v: %v", a["id"], b)
	}
	c := f.callAs(f.otherKey, "joinTokens.create", with(with(f.example("k"), "tenantId", f.other), "poolId", f.foreign)).object(t)
	if c["id"] == a["id"] || c["token"] == nil {
		t.Errorf("two tenants share the token %v: %v", a["id"], c)
	}
}

// Req: JT-041 JT-042 JT-043 JT-050 JT-051
func TestTokenEvents(t *testing.T) {
	f := newFixture(t)
	type data struct {
		TokenID string  `json:"tokenId"`
		Pinned  *bool   `json:"pinned"`
		Hosted  *string `json:"hosted"`
	}
	kubernetes, yes, no := "kubernetes", true, false
	var want []data
	for _, made := range []struct {
		in   map[string]any
		want data
	}{
		{f.example("pinned"), data{Pinned: &yes}},
		{f.minimal("free"), data{Pinned: &no}},
		{with(f.minimal("hosted"), "hosted", "kubernetes"), data{Pinned: &no, Hosted: &kubernetes}},
	} {
		made.want.TokenID = f.call("joinTokens.create", made.in).object(t)["id"].(string)
		f.call("joinTokens.create", made.in).object(t) // a replay publishes nothing
		want = append(want, made.want)
	}
	list := read[httpapi.List[httpapi.Event]](t, f.call("events.list", map[string]any{"tenantId": f.tenant, "type": "security.join-token.created"}))
	var got []data
	for _, e := range list.Items {
		var d data
		if err := json.Unmarshal(e.Data, &d); err != nil {
			t.Fatal(err)
		}
		got = append(got, d)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	revoke := map[string]any{"tenantId": f.tenant, "poolId": f.pool, "tokenId": want[0].TokenID}
	for range 2 {
		if got := f.call("joinTokens.revoke", revoke).object(t); got["id"] != want[0].TokenID || got["state"] != "revoked" {
			t.Errorf("revoke answers %v", got)
		}
	}
	revoked := f.events(f.tenant, events.TypeJoinTokenRevoked)
	if len(revoked) != 1 || !strings.Contains(string(revoked[0].Data), want[0].TokenID) {
		t.Errorf("revoked events: %v", revoked)
	}
}

// Req: JT-045 JT-046
func TestListShowsLiveTokens(t *testing.T) {
	f := newFixture(t)
	create := func(in map[string]any) string { return f.call("joinTokens.create", in).object(t)["id"].(string) }
	short := create(f.minimal("short"))
	revoked, used, live := create(f.example("revoked")), create(f.example("used")), create(f.example("live"))
	create(with(f.example("elsewhere"), "poolId", f.spare))
	f.call("joinTokens.revoke", map[string]any{"tenantId": f.tenant, "poolId": f.pool, "tokenId": revoked}).object(t)
	f.write(func(tx *store.Tx) error { return tx.SpendToken(used) })
	f.sleep(time.Minute)

	states := func(in map[string]any) map[string]string {
		got := map[string]string{}
		for _, item := range read[httpapi.List[httpapi.ListedJoinToken]](t, f.call("joinTokens.list", in)).Items {
			got[item.ID] = item.State
		}
		return got
	}
	in := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	if diff := cmp.Diff(map[string]string{live: "live"}, states(in)); diff != "" {
		t.Error(diff)
	}
	all := map[string]string{live: "live", short: "expired", revoked: "revoked", used: "used-up"}
	if diff := cmp.Diff(all, states(with(in, "includeInactive", true))); diff != "" {
		t.Error(diff)
	}
}

// Req: JT-047
func TestListPages(t *testing.T) {
	f := newFixture(t)
	var want []string
	f.write(func(tx *store.Tx) error {
		want = nil
		for i := range 250 {
			id := store.NewID(store.PrefixToken, start.Add(time.Duration(i)*time.Millisecond))
			want = append(want, id)
			err := tx.InsertToken(store.Token{
				ID: id, TenantID: f.tenant, PoolID: f.pool, SiteID: f.site, Role: store.TokenNode, MaxUses: 1,
				CreatedBy: f.keyID, ExpiresAt: start.Add(time.Hour),
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	in := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	for limit, size := range map[any]int{nil: 100, 200: 200, 1: 1} {
		page := read[httpapi.List[httpapi.ListedJoinToken]](t, f.call("joinTokens.list", with(in, "limit", limit)))
		if len(page.Items) != size || page.NextCursor == "" {
			t.Errorf("limit %v gives %d tokens, next %q", limit, len(page.Items), page.NextCursor)
		}
	}
	for _, limit := range []int{0, 201, -1} {
		f.refused(f.call("joinTokens.list", with(in, "limit", limit)), fault.InvalidArgument, `field "limit" must be from 1 to 200`)
	}
	f.refused(f.call("joinTokens.list", with(in, "cursor", "250")), fault.InvalidArgument, `"cursor"`)

	var got []string
	for cursor := any(nil); ; {
		page := read[httpapi.List[httpapi.ListedJoinToken]](t, f.call("joinTokens.list", with(in, "cursor", cursor)))
		for _, item := range page.Items {
			got = append(got, item.ID)
		}
		if page.NextCursor == "" {
			break
		}
		cursor = page.NextCursor
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestRevokeRefuses(t *testing.T) {
	f := newFixture(t)
	made := f.call("joinTokens.create", f.minimal("k")).object(t)
	at := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	pasted := f.call("joinTokens.revoke", with(at, "tokenId", made["token"]))
	f.refused(pasted, fault.InvalidArgument, "tokenId")
	_, secret, _ := strings.Cut(made["token"].(string), ".")
	if strings.Contains(pasted.body, secret) {
		t.Error("the answer repeats a pasted secret")
	}
	f.refused(f.call("joinTokens.revoke", with(at, "tokenId", store.NewID(store.PrefixToken, start))), fault.NotFound, "does not exist")
	f.refused(f.call("joinTokens.revoke", with(with(at, "poolId", f.spare), "tokenId", made["id"])), fault.NotFound, "does not exist")
	if found := f.events(f.tenant, events.TypeJoinTokenRevoked); len(found) != 0 {
		t.Errorf("a refused call revoked: %v", found)
	}
}

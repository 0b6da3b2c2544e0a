package httpapi_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
)

// Req: JT-054 JT-055 JT-056
func TestSiteTokens(t *testing.T) {
	f := newFixture(t)
	ref := map[string]any{"tenantId": f.tenant, "siteId": f.site}
	in := with(with(ref, "ttlSeconds", 3600), "idempotencyKey", "k")
	first := f.call("siteTokens.create", with(in, "maxUses", 16)).object(t)
	text, _ := first["token"].(string)
	id, _, err := bearer.Parse([]byte(text))
	if err != nil || id != first["id"] {
		t.Fatalf("token %q, %v", text, err)
	}
	record := map[string]any{"id": id, "siteId": f.site, "role": "site", "usesLeft": 16.0, "expiresAt": "2026-11-29T12:06:11Z"}
	if diff := cmp.Diff(with(record, "token", text), first); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(record, f.call("siteTokens.create", in).object(t)); diff != "" {
		t.Errorf("a repeat: %s", diff)
	}
	elsewhere := f.customSite()
	f.refused(f.call("siteTokens.create", with(in, "siteId", elsewhere)), fault.Conflict, `"k"`)

	one := f.call("siteTokens.create", with(in, "idempotencyKey", "one")).object(t)
	if one["usesLeft"] != 1.0 {
		t.Errorf("by default %v uses", one["usesLeft"])
	}
	for name, c := range map[string]struct {
		key  string
		code fault.Code
		in   map[string]any
		text string
	}{
		"17 uses":               {f.key, fault.InvalidArgument, with(in, "maxUses", 17), "maxUses must be a whole number from 1 to 16"},
		"no use":                {f.key, fault.InvalidArgument, with(in, "maxUses", 0), "maxUses"},
		"59 s":                  {f.key, fault.InvalidArgument, with(in, "ttlSeconds", 59), "ttlSeconds"},
		"a wrapped lifetime":    {f.key, fault.InvalidArgument, with(in, "ttlSeconds", 1<<55), "ttlSeconds"},
		"a pool":                {f.key, fault.InvalidArgument, with(in, "poolId", f.pool), `unknown field "poolId"`},
		"a role":                {f.key, fault.InvalidArgument, with(in, "role", "node"), `unknown field "role"`},
		"no site":               {f.key, fault.NotFound, with(in, "siteId", store.NewID(store.PrefixSite, start)), "does not exist"},
		"another tenant":        {f.key, fault.NotFound, with(in, "tenantId", f.other), "no tenant"},
		"another tenant's site": {f.otherKey, fault.NotFound, with(in, "tenantId", f.other), "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url}
			g.refused(g.callAs(c.key, "siteTokens.create", c.in), c.code, c.text)
		})
	}

	states := func(in map[string]any) map[string]string {
		got := map[string]string{}
		for cursor := any(nil); ; {
			page := read[httpapi.List[httpapi.ListedSiteToken]](t, f.call("siteTokens.list", with(with(in, "limit", 1), "cursor", cursor)))
			for _, item := range page.Items {
				got[item.ID] = item.State
			}
			if page.NextCursor == "" {
				return got
			}
			cursor = page.NextCursor
		}
	}
	f.call("joinTokens.create", f.minimal("a node's")).object(t)
	all := map[string]string{id: "live", one["id"].(string): "live"}
	if diff := cmp.Diff(all, states(ref)); diff != "" {
		t.Error(diff)
	}
	for range 2 {
		ended := f.call("siteTokens.revoke", with(ref, "tokenId", id)).object(t)
		if diff := cmp.Diff(with(record, "state", "revoked"), ended); diff != "" {
			t.Error(diff)
		}
	}
	f.sleep(time.Hour)
	if got := states(ref); len(got) != 0 {
		t.Errorf("live: %v", got)
	}
	if diff := cmp.Diff(map[string]string{id: "revoked", one["id"].(string): "expired"}, states(with(ref, "includeInactive", true))); diff != "" {
		t.Error(diff)
	}
	a := f.call("siteTokens.revoke", with(ref, "tokenId", text))
	f.refused(a, fault.InvalidArgument, "is not the id of a join token")
	if secret := text[len(text)-43:]; strings.Contains(a.body, secret) {
		t.Error("a pasted token is repeated")
	}
	if n := len(f.events(f.tenant, events.TypeJoinTokenRevoked)); n != 1 {
		t.Errorf("told %d times", n)
	}
}

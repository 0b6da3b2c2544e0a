package httpapi_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func publicPEM(t *testing.T, key any) (text, hash string) {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(der)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), hex.EncodeToString(digest[:])
}

func TestEKAllow(t *testing.T) {
	f := newFixture(t)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, hash := publicPEM(t, &key.PublicKey)
	ref := map[string]any{"tenantId": f.tenant, "poolId": f.pool}
	in := with(with(ref, "ekSha256", strings.ToUpper(hash)), "idempotencyKey", "k")
	made := f.call("ekAllow.add", with(in, "note", "rack B7 u12")).object(t)
	id, _ := made["id"].(string)
	want := map[string]any{
		"id": id, "poolId": f.pool, "siteId": f.site, "ekSha256": hash, "note": "rack B7 u12", "createdBy": f.keyID,
		"createdAt": "2026-11-29T11:06:11Z", "removedAt": nil,
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Error(diff)
	}
	// A repeat, the key itself in the place of its hash too, makes nothing twice; another request under the key is a conflict.
	repeat := with(with(in, "note", "rack B7 u12"), "ekPublic", public)
	for _, in := range []map[string]any{repeat, with(repeat, "ekSha256", nil)} {
		if diff := cmp.Diff(want, f.call("ekAllow.add", in).object(t)); diff != "" {
			t.Errorf("a repeat: %s", diff)
		}
	}
	f.refused(f.call("ekAllow.add", in), fault.Conflict, `"k"`)

	small, _ := publicPEM(t, func() any {
		k, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return &k.PublicKey
	}())
	other := strings.Repeat("a5", 32)
	fresh := with(with(ref, "ekSha256", other), "idempotencyKey", "fresh")
	for name, c := range map[string]struct {
		key  string
		code fault.Code
		in   map[string]any
		text string
	}{
		"no key":                       {f.key, fault.InvalidArgument, with(fresh, "ekSha256", nil), `"ekSha256" and "ekPublic"`},
		"an empty one":                 {f.key, fault.InvalidArgument, with(fresh, "ekSha256", ""), "64 hex digits"},
		"too short":                    {f.key, fault.InvalidArgument, with(fresh, "ekSha256", other[2:]), "64 hex digits"},
		"no hex":                       {f.key, fault.InvalidArgument, with(fresh, "ekSha256", "x"+other[1:]), "64 hex digits"},
		"two that differ":              {f.key, fault.InvalidArgument, with(fresh, "ekPublic", public), "its SHA-256 is " + hash},
		"no PEM":                       {f.key, fault.InvalidArgument, with(fresh, "ekPublic", "x"), "PUBLIC KEY"},
		"more than one":                {f.key, fault.InvalidArgument, with(fresh, "ekPublic", public+public), "PUBLIC KEY"},
		"a private key":                {f.key, fault.InvalidArgument, with(fresh, "ekPublic", strings.ReplaceAll(public, "PUBLIC", "PRIVATE")), "PUBLIC KEY"},
		"an unknown curve":             {f.key, fault.InvalidArgument, with(with(fresh, "ekSha256", nil), "ekPublic", small), "P-224"},
		"a huge one":                   {f.key, fault.InvalidArgument, with(fresh, "ekPublic", strings.Repeat("x", ekallow.MaxPublic+1)), "4097 bytes"},
		"a long note":                  {f.key, fault.InvalidArgument, with(fresh, "note", strings.Repeat("n", ekallow.MaxNote+1)), "257 bytes"},
		"a note of another line":       {f.key, fault.InvalidArgument, with(fresh, "note", "a\nb"), "cannot be printed"},
		"no idempotency key":           {f.key, fault.InvalidArgument, with(fresh, "idempotencyKey", ""), "idempotencyKey"},
		"a pool without bcd":           {f.key, fault.InvalidState, with(fresh, "poolId", f.noBCD), "no daemon"},
		"listed already":               {f.key, fault.AlreadyExists, with(fresh, "ekSha256", hash), id},
		"listed for another pool":      {f.key, fault.AlreadyExists, with(with(fresh, "ekSha256", hash), "poolId", f.spare), id},
		"listed by another tenant":     {f.otherKey, fault.AlreadyExists, map[string]any{"tenantId": f.other, "poolId": f.foreign, "ekSha256": hash, "idempotencyKey": "o"}, "by another tenant"},
		"another tenant's pool":        {f.key, fault.NotFound, with(fresh, "poolId", f.foreign), "does not exist"},
		"no pool":                      {f.key, fault.NotFound, with(fresh, "poolId", store.NewID(store.PrefixPool, start)), "does not exist"},
		"a name for an entry's id":     {f.key, fault.InvalidArgument, with(fresh, "entryId", id), `unknown field "entryId"`},
		"a token for the hash":         {f.key, fault.InvalidArgument, with(fresh, "ekSha256", "bcjt_secret"), "64 hex digits"},
		"a number in the hash's place": {f.key, fault.InvalidArgument, with(fresh, "ekSha256", 7), "ekSha256"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &fixture{t: t, url: f.url}
			a := g.callAs(c.key, "ekAllow.add", c.in)
			g.refused(a, c.code, c.text)
			if strings.Contains(name, "another tenant") && strings.Contains(a.body, id) {
				t.Error("another tenant's entry is shown")
			}
		})
	}
	f.write(func(tx *store.Tx) error {
		p, err := tx.Pool(f.spare)
		if err != nil {
			return err
		}
		p.Policy.JoinAttestors = []string{"join-token"}
		return tx.UpdatePool(p)
	})
	f.refused(f.call("ekAllow.add", with(fresh, "poolId", f.spare)), fault.InvalidState, `does not admit attestor "tpm"`)
	f.write(func(tx *store.Tx) error {
		p, err := tx.Pool(f.spare)
		if err != nil {
			return err
		}
		p.Policy.JoinAttestors, p.ArchivedAt = nil, start
		return tx.UpdatePool(p)
	})
	f.refused(f.call("ekAllow.add", with(fresh, "poolId", f.spare)), fault.InvalidState, "archived")

	second := f.call("ekAllow.add", fresh).object(t)["id"].(string)
	list := func() (ids []string) {
		for cursor := any(nil); ; {
			page := read[httpapi.List[httpapi.EKAllow]](t, f.call("ekAllow.list", with(with(ref, "limit", 1), "cursor", cursor)))
			for _, e := range page.Items {
				ids = append(ids, e.ID)
			}
			if page.NextCursor == "" {
				return ids
			}
			cursor = page.NextCursor
		}
	}
	if diff := cmp.Diff([]string{id, second}, list()); diff != "" {
		t.Error(diff)
	}
	f.refused(f.callAs(f.otherKey, "ekAllow.list", with(ref, "tenantId", f.other)), fault.NotFound, "does not exist")
	f.refused(f.callAs(f.otherKey, "ekAllow.remove", map[string]any{"tenantId": f.other, "poolId": f.foreign, "entryId": id}), fault.NotFound, "does not exist")
	f.refused(f.call("ekAllow.remove", with(ref, "entryId", hash)), fault.InvalidArgument, `"entryId"`)
	f.refused(f.call("ekAllow.remove", with(ref, "entryId", store.NewID(store.PrefixEKAllow, start))), fault.NotFound, "does not exist")
	for range 2 {
		if diff := cmp.Diff(with(want, "removedAt", "2026-11-29T11:06:11Z"), f.call("ekAllow.remove", with(ref, "entryId", id)).object(t)); diff != "" {
			t.Error(diff)
		}
	}
	if diff := cmp.Diff([]string{second}, list()); diff != "" {
		t.Error(diff)
	}
	// Off the list, it may be listed again, by the other tenant too.
	f.callAs(f.otherKey, "ekAllow.add", map[string]any{"tenantId": f.other, "poolId": f.foreign, "ekSha256": hash, "idempotencyKey": "o"}).object(t)

	added, removed := f.events(f.tenant, events.TypeEKAllowAdded), f.events(f.tenant, events.TypeEKAllowRemoved)
	if len(added) != 2 || len(removed) != 1 {
		t.Fatalf("told of %d added, %d removed", len(added), len(removed))
	}
	wantAdded := events.EKAllowAdded{EntryID: id, PoolID: f.pool, SiteID: f.site, EKSHA256: hash, AddedBy: f.keyID}
	wantRemoved := events.EKAllowRemoved{EntryID: id, PoolID: f.pool, SiteID: f.site, EKSHA256: hash, RemovedBy: f.keyID}
	var gotAdded events.EKAllowAdded
	var gotRemoved events.EKAllowRemoved
	if err := json.Unmarshal(added[0].Data, &gotAdded); err != nil || gotAdded != wantAdded {
		t.Errorf("event %+v, %v", gotAdded, err)
	}
	if err := json.Unmarshal(removed[0].Data, &gotRemoved); err != nil || gotRemoved != wantRemoved {
		t.Errorf("event %+v, %v", gotRemoved, err)
	}
	var actions []string
	f.write(func(tx *store.Tx) error {
		rows, err := tx.Audit(f.tenant, "", 100)
		for _, row := range rows {
			actions = append(actions, fmt.Sprintf("%s %t %t", row.Action, row.Subject == id, row.Actor == f.keyID))
		}
		return err
	})
	if diff := cmp.Diff([]string{"ek-allow.added true true", "ek-allow.added false true", "ek-allow.removed true true"}, actions); diff != "" {
		t.Errorf("audit: %s", diff)
	}
}

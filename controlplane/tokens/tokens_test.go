package tokens_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

const (
	tenant, other     = "tn_a", "tn_b"
	site, site2       = "site_a", "site_b"
	pool, unmanned    = "pool_a", "pool_none"
	pool2, archived   = "pool_b", "pool_old"
	identity, another = "key_1", "key_2"
)

type world struct {
	*tokens.Service
	now  time.Time
	path string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{now: epoch, path: filepath.Join(t.TempDir(), "control.db")}
	s, err := store.Open(t.Context(), store.Options{Path: w.path, Now: func() time.Time { return w.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w.Service = &tokens.Service{Store: s}
	err = s.Write(t.Context(), func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: tenant}), tx.InsertTenant(store.Tenant{ID: other}),
			tx.InsertSite(store.Site{ID: site, TenantID: tenant}), tx.InsertSite(store.Site{ID: site2, TenantID: tenant}),
			tx.InsertPool(store.Pool{ID: pool, TenantID: tenant, SiteID: site, Agent: store.AgentBCD}),
			tx.InsertPool(store.Pool{ID: pool2, TenantID: tenant, SiteID: site, Agent: store.AgentBCD}),
			tx.InsertPool(store.Pool{ID: unmanned, TenantID: tenant, SiteID: site, Agent: store.AgentNone}),
			tx.InsertPool(store.Pool{ID: archived, TenantID: tenant, SiteID: site, Agent: store.AgentBCD, ArchivedAt: epoch}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func request(change ...func(*tokens.CreateRequest)) tokens.CreateRequest {
	r := tokens.CreateRequest{TenantID: tenant, PoolID: pool, TTL: time.Hour, IdempotencyKey: "adopt-rack-b7-u12"}
	for _, c := range change {
		c(&r)
	}
	return r
}

func (w *world) create(t *testing.T, change ...func(*tokens.CreateRequest)) (store.Token, bearer.Token) {
	t.Helper()
	made, text, err := w.Create(t.Context(), identity, request(change...))
	if err != nil {
		t.Fatal(err)
	}
	return made, text
}

func (w *world) events(t *testing.T) (all []events.Event) {
	t.Helper()
	err := w.Store.Read(t.Context(), func(tx *store.Tx) (err error) {
		all, err = tx.Events(tenant, 0, 10_000)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func key(k string) func(*tokens.CreateRequest) {
	return func(r *tokens.CreateRequest) { r.IdempotencyKey = k }
}

// Req: JT-002 JT-003 JT-004 JT-006 JT-028 JT-030 JT-035 JT-053 JT-070
func TestCreate(t *testing.T) {
	w := newWorld(t)
	made, text := w.create(t)
	want := store.Token{
		ID: made.ID, TenantID: tenant, PoolID: pool, SiteID: site, Role: store.TokenNode, SecretSHA256: made.SecretSHA256,
		MaxUses: 1, UsesLeft: 1, CreatedBy: identity, CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	if diff := cmp.Diff(want, made); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if !regexp.MustCompile(`^bcjt_jt_[0-9a-z]{26}\.[A-Za-z0-9_-]{43}$`).Match(text.Bytes()) {
		t.Error("the bearer has another form")
	}
	id, secret, err := bearer.Parse(text.Bytes())
	if err != nil || id != made.ID || !secret.Matches(made.SecretSHA256[:]) {
		t.Errorf("the bearer is not the record's: %v", err)
	}
	var stored store.Token
	if err := w.Store.Read(t.Context(), func(tx *store.Tx) (err error) { stored, err = tx.Token(made.ID); return err }); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(made, stored); diff != "" {
		t.Errorf("row (-answer +row):\n%s", diff)
	}
}

// The database holds the digest and the secret nowhere, in whichever of its files.
//
// Req: JT-006 JT-007
func TestDatabaseHoldsNoSecret(t *testing.T) {
	w := newWorld(t)
	made, text := w.create(t)
	_, encoded, _ := bytes.Cut(text.Bytes(), []byte("."))
	raw, err := base64.RawURLEncoding.DecodeString(string(encoded))
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(w.path + "*")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, f := range files {
		dump, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(dump, raw) || bytes.Contains(dump, encoded) {
			t.Errorf("%s holds the secret", f)
		}
		found = found || bytes.Contains(dump, made.SecretSHA256[:])
	}
	if !found {
		t.Error("no file holds the digest: this test looks at the wrong files")
	}
}

// Req: JT-004
func TestSecretsDiffer(t *testing.T) {
	w := newWorld(t)
	seen := map[string]bool{}
	for i := range 100 {
		_, text := w.create(t, key(fmt.Sprint(i)))
		_, encoded, _ := bytes.Cut(text.Bytes(), []byte("."))
		seen[string(encoded)] = true
	}
	if len(seen) != 100 {
		t.Errorf("%d secrets of 100", len(seen))
	}
}

func number(n int64) *int64 { return &n }

// Req: JT-029 JT-030 JT-032 JT-033 JT-034 JT-036 JT-037
func TestCreateChecksItsRequest(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		ok     bool
		change func(*tokens.CreateRequest)
	}{
		"59 s":            {false, func(r *tokens.CreateRequest) { r.TTL = 59 * time.Second }},
		"60 s":            {true, func(r *tokens.CreateRequest) { r.TTL = 60 * time.Second }},
		"86400 s":         {true, func(r *tokens.CreateRequest) { r.TTL = 86_400 * time.Second }},
		"86401 s":         {false, func(r *tokens.CreateRequest) { r.TTL = 86_401 * time.Second }},
		"90.5 s":          {false, func(r *tokens.CreateRequest) { r.TTL = 90_500 * time.Millisecond }},
		"no ttl":          {false, func(r *tokens.CreateRequest) { r.TTL = 0 }},
		"0 uses":          {false, func(r *tokens.CreateRequest) { r.MaxUses = number(0) }},
		"1 use":           {true, func(r *tokens.CreateRequest) { r.MaxUses = number(1) }},
		"10000 uses":      {true, func(r *tokens.CreateRequest) { r.MaxUses = number(10_000) }},
		"10001 uses":      {false, func(r *tokens.CreateRequest) { r.MaxUses = number(10_001) }},
		"empty expect":    {false, func(r *tokens.CreateRequest) { r.Expect = &hwclaims.Expect{} }},
		"MAC with dashes": {false, func(r *tokens.CreateRequest) { r.Expect = &hwclaims.Expect{MAC: "b4-96-91-a7-00-01"} }},
		"MAC":             {true, func(r *tokens.CreateRequest) { r.Expect = &hwclaims.Expect{MAC: "b4:96:91:a7:00:01"} }},
		"MIG instance": {false, func(r *tokens.CreateRequest) {
			r.Expect = &hwclaims.Expect{GPUUUID: "MIG-8c1d2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6"}
		}},
		"GPU": {true, func(r *tokens.CreateRequest) {
			r.Expect = &hwclaims.Expect{GPUUUID: "GPU-8c1d2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6"}
		}},
		"hosted elsewhere":     {false, func(r *tokens.CreateRequest) { r.Hosted = "nomad" }},
		"hosted":               {true, func(r *tokens.CreateRequest) { r.Hosted = "kubernetes" }},
		"no key":               {false, func(r *tokens.CreateRequest) { r.IdempotencyKey = "" }},
		"very long key":        {false, func(r *tokens.CreateRequest) { r.IdempotencyKey = string(bytes.Repeat([]byte("k"), 256)) }},
		"key with a NUL":       {false, func(r *tokens.CreateRequest) { r.IdempotencyKey = "a\x00b" }},
		"key with a half rune": {false, func(r *tokens.CreateRequest) { r.IdempotencyKey = "a\ufffd" }},
		"key that is no text":  {false, func(r *tokens.CreateRequest) { r.IdempotencyKey = "a\xff" }},
		"key with words":       {true, func(r *tokens.CreateRequest) { r.IdempotencyKey = "rack b7, Gerät 12" }},
		"longest key there":    {true, func(r *tokens.CreateRequest) { r.IdempotencyKey = string(bytes.Repeat([]byte("k"), 255)) }},
	} {
		_, _, err := w.Create(t.Context(), identity, request(key(name), c.change))
		if c.ok && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !c.ok && !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%s: %v, want INVALID_ARGUMENT", name, err)
		}
	}
}

// Req: JT-009 JT-010
func TestCreateChecksThePool(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		code   fault.Code
		change func(*tokens.CreateRequest)
	}{
		"another tenant's pool": {fault.NotFound, func(r *tokens.CreateRequest) { r.TenantID = other }},
		"no such pool":          {fault.NotFound, func(r *tokens.CreateRequest) { r.PoolID = "pool_x" }},
		"no daemon":             {fault.InvalidState, func(r *tokens.CreateRequest) { r.PoolID = unmanned }},
		"archived":              {fault.InvalidState, func(r *tokens.CreateRequest) { r.PoolID = archived }},
	} {
		if _, _, err := w.Create(t.Context(), identity, request(c.change)); !fault.Is(err, c.code) {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if got := w.events(t); len(got) != 0 {
		t.Errorf("events %v", got)
	}
	for _, p := range []string{pool, unmanned, archived} {
		page, err := w.List(t.Context(), tokens.ListRequest{TenantID: tenant, PoolID: p, IncludeInactive: true})
		if err != nil || len(page.Tokens) != 0 {
			t.Errorf("tokens %v, %v", page.Tokens, err)
		}
	}
}

// Req: JT-005 JT-037 JT-039 JT-040
func TestCreateIsIdempotent(t *testing.T) {
	w := newWorld(t)
	made, _ := w.create(t)
	w.now = epoch.Add(time.Minute)
	again, text, err := w.Create(t.Context(), identity, request(func(r *tokens.CreateRequest) {
		r.TTL, r.MaxUses = 2*time.Hour, number(9) // not compared: the original record is the answer
	}))
	if err != nil || !text.IsZero() {
		t.Errorf("the replay: %v, with a bearer: %v", err, !text.IsZero())
	}
	if diff := cmp.Diff(made, again); diff != "" {
		t.Errorf("another record (-first +replay):\n%s", diff)
	}
	for name, change := range map[string]func(*tokens.CreateRequest){
		"pool":         func(r *tokens.CreateRequest) { r.PoolID = pool2 },
		"expect":       func(r *tokens.CreateRequest) { r.Expect = &hwclaims.Expect{Serial: "SN-7701"} },
		"allowReclaim": func(r *tokens.CreateRequest) { r.AllowReclaim = true },
		"hosted":       func(r *tokens.CreateRequest) { r.Hosted = "kubernetes" },
	} {
		if _, _, err := w.Create(t.Context(), identity, request(change)); !fault.Is(err, fault.Conflict) {
			t.Errorf("another %s: %v, want CONFLICT", name, err)
		}
	}
	second, text, err := w.Create(t.Context(), another, request())
	if err != nil || second.ID == made.ID || text.IsZero() {
		t.Errorf("another identity: %v, the same token: %v", err, second.ID == made.ID)
	}
	if got := w.events(t); len(got) != 2 {
		t.Errorf("%d events, want 2", len(got))
	}
}

// Req: JT-041 JT-042 JT-043
func TestCreateIsTold(t *testing.T) {
	w := newWorld(t)
	plain, _ := w.create(t)
	pinned, _ := w.create(t, key("2"), func(r *tokens.CreateRequest) {
		r.Expect, r.Hosted = &hwclaims.Expect{Serial: "SN-7701"}, "kubernetes"
	})
	all := w.events(t)
	if len(all) != 2 {
		t.Fatalf("%d events", len(all))
	}
	for i, want := range []map[string]any{
		{"tokenId": plain.ID, "poolId": pool, "siteId": site, "role": "node", "createdBy": identity, "pinned": false},
		{"tokenId": pinned.ID, "poolId": pool, "siteId": site, "role": "node", "createdBy": identity, "pinned": true, "hosted": "kubernetes"},
	} {
		var got map[string]any
		if err := json.Unmarshal(all[i].Data, &got); err != nil {
			t.Fatal(err)
		}
		if all[i].Type != "security.join-token.created" {
			t.Errorf("type %q", all[i].Type)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("event (-want +got):\n%s", diff)
		}
	}
}

// Req: JT-045 JT-046
func TestListShowsLiveTokens(t *testing.T) {
	w := newWorld(t)
	live, _ := w.create(t, key("live"))
	expired, _ := w.create(t, key("expired"), func(r *tokens.CreateRequest) { r.TTL = time.Minute })
	revoked, _ := w.create(t, key("revoked"))
	used, _ := w.create(t, key("used"))
	w.create(t, key("elsewhere"), func(r *tokens.CreateRequest) { r.PoolID = pool2 })
	if _, err := w.Revoke(t.Context(), identity, tenant, pool, revoked.ID); err != nil {
		t.Fatal(err)
	}
	if err := w.Store.Write(t.Context(), func(tx *store.Tx) error { return tx.SpendToken(used.ID) }); err != nil {
		t.Fatal(err)
	}
	w.now = epoch.Add(time.Minute)
	ids := func(inactive bool) (out []string) {
		page, err := w.List(t.Context(), tokens.ListRequest{TenantID: tenant, PoolID: pool, IncludeInactive: inactive})
		if err != nil || page.NextCursor != "" {
			t.Fatalf("%v, cursor %q", err, page.NextCursor)
		}
		for _, tok := range page.Tokens {
			out = append(out, tok.ID)
		}
		return out
	}
	if got := ids(false); !slices.Equal(got, []string{live.ID}) {
		t.Errorf("live: %v", got)
	}
	if got, want := ids(true), []string{live.ID, expired.ID, revoked.ID, used.ID}; !slices.Equal(got, want) {
		t.Errorf("all: %v, want %v", got, want)
	}
	if _, err := w.List(t.Context(), tokens.ListRequest{TenantID: other, PoolID: pool}); !fault.Is(err, fault.NotFound) {
		t.Errorf("another tenant: %v", err)
	}
}

// Req: JT-047
func TestListPages(t *testing.T) {
	w := newWorld(t)
	err := w.Store.Write(t.Context(), func(tx *store.Tx) error {
		for range 250 {
			if err := tx.InsertToken(store.Token{
				ID: tx.NewID(store.PrefixToken), TenantID: tenant, PoolID: pool, SiteID: site, Role: store.TokenNode, MaxUses: 1,
				ExpiresAt: epoch.Add(time.Hour),
			}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := tokens.ListRequest{TenantID: tenant, PoolID: pool}
	var sizes []int
	seen := map[string]bool{}
	for {
		page, err := w.List(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, len(page.Tokens))
		for _, tok := range page.Tokens {
			seen[tok.ID] = true
		}
		if r.Cursor = page.NextCursor; r.Cursor == "" {
			break
		}
	}
	if !slices.Equal(sizes, []int{100, 100, 50}) || len(seen) != 250 {
		t.Errorf("pages of %v, %d tokens", sizes, len(seen))
	}
	r.Limit = 200
	if page, err := w.List(t.Context(), r); err != nil || len(page.Tokens) != 200 {
		t.Errorf("%d tokens, %v", len(page.Tokens), err)
	}
	for _, bad := range []tokens.ListRequest{
		{TenantID: tenant, PoolID: pool, Limit: 201}, {TenantID: tenant, PoolID: pool, Limit: -1}, {TenantID: tenant, PoolID: pool, Cursor: "x"},
	} {
		if _, err := w.List(t.Context(), bad); !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// Req: JT-050 JT-051
func TestRevoke(t *testing.T) {
	w := newWorld(t)
	made, _ := w.create(t)
	for range 2 {
		got, err := w.Revoke(t.Context(), another, tenant, pool, made.ID)
		if err != nil {
			t.Fatal(err)
		}
		want := made
		want.RevokedAt = epoch
		if diff := cmp.Diff(want, got, cmpopts.EquateApproxTime(0)); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		w.now = w.now.Add(time.Minute)
	}
	all := w.events(t)
	if len(all) != 2 || all[1].Type != "security.join-token.revoked" ||
		string(all[1].Data) != `{"tokenId":"`+made.ID+`","poolId":"pool_a","revokedBy":"key_2"}` {
		t.Errorf("events %s", all[len(all)-1].Data)
	}
	for name, c := range map[string][3]string{
		"another tenant": {other, pool, made.ID}, "another pool": {tenant, pool2, made.ID}, "no such token": {tenant, pool, "jt_x"},
	} {
		if _, err := w.Revoke(t.Context(), identity, c[0], c[1], c[2]); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Req: JT-052 JT-056 JT-058 JT-060 JT-061
func TestIssue(t *testing.T) {
	w := newWorld(t)
	const mac = "b4:96:91:a7:00:01"
	for name, c := range map[string]struct {
		code    fault.Code
		request tokens.IssueRequest
	}{
		"site":                        {"", tokens.IssueRequest{Role: store.TokenSite, SiteID: site, MaxUses: 16}},
		"site, 17 uses":               {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenSite, SiteID: site, MaxUses: 17}},
		"site and pool":               {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenSite, SiteID: site, PoolID: pool}},
		"no such site":                {fault.NotFound, tokens.IssueRequest{Role: store.TokenSite, SiteID: "site_x"}},
		"provisioned":                 {"", tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: pool}},
		"provisioned for a node":      {"", tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: pool, NodeID: "node_x"}},
		"provisioned, 2 uses":         {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: pool, MaxUses: 2}},
		"provisioned into no pool":    {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenProvisioned}},
		"provisioned, unmanned pool":  {fault.InvalidState, tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: unmanned}},
		"discovery":                   {"", tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac}},
		"discovery at a site":         {"", tokens.IssueRequest{Role: store.TokenDiscovery, SiteID: site, MAC: mac}},
		"discovery of a workflow":     {"", tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac, WorkflowID: "wf_1"}},
		"discovery, site and pool":    {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, SiteID: site, PoolID: pool, MAC: mac}},
		"discovery nowhere":           {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: mac}},
		"discovery, no such site":     {fault.NotFound, tokens.IssueRequest{Role: store.TokenDiscovery, SiteID: "site_x", MAC: mac}},
		"a workflow in two lines":     {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac, WorkflowID: "a\nb"}},
		"a long workflow":             {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac, WorkflowID: strings.Repeat("w", 129)}},
		"provisioned of a workflow":   {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: pool, WorkflowID: "wf_1"}},
		"discovery for no MAC":        {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool}},
		"discovery, 2 uses":           {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac, MaxUses: 2}},
		"discovery, other MAC form":   {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: "b49691a70001"}},
		"discovery for a node":        {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenDiscovery, PoolID: pool, MAC: mac, NodeID: "n"}},
		"node":                        {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenNode, PoolID: pool}},
		"no role":                     {fault.InvalidArgument, tokens.IssueRequest{PoolID: pool}},
		"provisioned for a MAC":       {fault.InvalidArgument, tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: pool, MAC: mac}},
		"provisioned, no such a pool": {fault.NotFound, tokens.IssueRequest{Role: store.TokenProvisioned, PoolID: "pool_x"}},
	} {
		c.request.TTL, c.request.IssuedBy = time.Hour, "deploy"
		made, text, err := w.Issue(t.Context(), c.request)
		if fault.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %q", name, err, c.code)
			continue
		}
		if err != nil {
			continue
		}
		if made.Role != c.request.Role || made.UsesLeft != max(1, c.request.MaxUses) || made.SiteID != site || made.TenantID != tenant ||
			made.NodeID != c.request.NodeID || made.PoolID != c.request.PoolID || made.WorkflowID != c.request.WorkflowID || made.AllowReclaim != (made.NodeID != "") || text.ID() != made.ID {
			t.Errorf("%s: %+v", name, made)
		}
		if bound := made.Expect != nil && *made.Expect == (hwclaims.Expect{MAC: mac}); bound != (made.Role == store.TokenDiscovery) {
			t.Errorf("%s: expect %+v", name, made.Expect)
		}
	}
	if _, _, err := w.Issue(t.Context(), tokens.IssueRequest{Role: store.TokenSite, SiteID: site, TTL: 25 * time.Hour}); !fault.Is(err, fault.InvalidArgument) {
		t.Errorf("25 h: %v", err)
	}
}

// Req: JT-054 JT-056
func TestSiteTokens(t *testing.T) {
	w := newWorld(t)
	ask := func(change ...func(*tokens.CreateSiteRequest)) tokens.CreateSiteRequest {
		r := tokens.CreateSiteRequest{TenantID: tenant, SiteID: site, TTL: time.Hour, IdempotencyKey: "k"}
		for _, c := range change {
			c(&r)
		}
		return r
	}
	made, text, err := w.CreateSite(t.Context(), identity, ask(func(r *tokens.CreateSiteRequest) { r.MaxUses = number(16) }))
	if err != nil {
		t.Fatal(err)
	}
	want := store.Token{
		ID: made.ID, TenantID: tenant, SiteID: site, Role: store.TokenSite, SecretSHA256: made.SecretSHA256, MaxUses: 16, UsesLeft: 16,
		CreatedBy: identity, CreatedAt: epoch, ExpiresAt: epoch.Add(time.Hour),
	}
	if diff := cmp.Diff(want, made); diff != "" || text.ID() != made.ID {
		t.Errorf("made (-want +got):\n%s", diff)
	}
	// The lifetime and the uses are not compared, as those of a node token are not.
	again, text, err := w.CreateSite(t.Context(), identity, ask())
	if err != nil || !text.IsZero() || !cmp.Equal(again, made) {
		t.Errorf("replay: %+v, %v", again, err)
	}
	// A node token's key is another.
	if _, text, err := w.Create(t.Context(), identity, request(key("k"))); err != nil || text.IsZero() {
		t.Errorf("the same key of joinTokens.create: %v", err)
	}
	for name, c := range map[string]struct {
		code   fault.Code
		change func(*tokens.CreateSiteRequest)
	}{
		"another tenant's site": {fault.NotFound, func(r *tokens.CreateSiteRequest) { r.TenantID = other }},
		"no such site":          {fault.NotFound, func(r *tokens.CreateSiteRequest) { r.SiteID = "site_x" }},
		"no use":                {fault.InvalidArgument, func(r *tokens.CreateSiteRequest) { r.MaxUses = number(0) }},
		"17 uses":               {fault.InvalidArgument, func(r *tokens.CreateSiteRequest) { r.MaxUses = number(17) }},
		"59 s":                  {fault.InvalidArgument, func(r *tokens.CreateSiteRequest) { r.TTL = 59 * time.Second }},
		"no key":                {fault.InvalidArgument, func(r *tokens.CreateSiteRequest) { r.IdempotencyKey = "" }},
	} {
		if _, _, err := w.CreateSite(t.Context(), identity, ask(func(r *tokens.CreateSiteRequest) { r.IdempotencyKey = "other" }, c.change)); fault.CodeOf(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
	if _, _, err := w.CreateSite(t.Context(), identity, ask(func(r *tokens.CreateSiteRequest) { r.SiteID = site2 })); !fault.Is(err, fault.Conflict) {
		t.Errorf("the key for another site: %v", err)
	}

	// Neither list shows the other's tokens, and neither revokes them.
	node, _ := w.create(t, key("node"))
	for _, inactive := range []bool{false, true} {
		page, err := w.List(t.Context(), tokens.ListRequest{TenantID: tenant, SiteID: site, IncludeInactive: inactive})
		if err != nil || len(page.Tokens) != 1 || page.Tokens[0].ID != made.ID {
			t.Errorf("the site's tokens: %+v, %v", page, err)
		}
	}
	if _, err := w.List(t.Context(), tokens.ListRequest{TenantID: other, SiteID: site}); !fault.Is(err, fault.NotFound) {
		t.Errorf("list of another tenant: %v", err)
	}
	for name, call := range map[string]func() (store.Token, error){
		"node token at the site":   func() (store.Token, error) { return w.RevokeSite(t.Context(), identity, tenant, site, node.ID) },
		"site token in the pool":   func() (store.Token, error) { return w.Revoke(t.Context(), identity, tenant, pool, made.ID) },
		"site token at another":    func() (store.Token, error) { return w.RevokeSite(t.Context(), identity, tenant, site2, made.ID) },
		"site token of no tenant":  func() (store.Token, error) { return w.RevokeSite(t.Context(), identity, other, site, made.ID) },
		"site token that is not":   func() (store.Token, error) { return w.RevokeSite(t.Context(), identity, tenant, site, "jt_x") },
		"site token at an unknown": func() (store.Token, error) { return w.RevokeSite(t.Context(), identity, tenant, "site_x", made.ID) },
	} {
		if _, err := call(); !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for range 2 {
		ended, err := w.RevokeSite(t.Context(), identity, tenant, site, made.ID)
		if err != nil || !ended.RevokedAt.Equal(epoch) {
			t.Errorf("revoke: %+v, %v", ended, err)
		}
	}
	var told []string
	for _, e := range w.events(t) {
		var data struct{ TokenID, PoolID, SiteID, Role string }
		if err := json.Unmarshal(e.Data, &data); err != nil {
			t.Fatal(err)
		}
		if data.TokenID == made.ID {
			told = append(told, fmt.Sprintf("%s %s%s %s", e.Type, data.PoolID, data.SiteID, data.Role))
		}
	}
	if diff := cmp.Diff([]string{"security.join-token.created site_a site", "security.join-token.revoked site_a "}, told); diff != "" {
		t.Error(diff)
	}
}

package httpapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// start is when the fixture's clock begins.
var start = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

// fixture is the API over a real database and a real listener, with two tenants.
type fixture struct {
	t     *testing.T
	store store.Store
	url   string // with the base path
	log   *bytes.Buffer

	tenant, other      string // ids of tenants
	site               string
	pool, spare, noBCD string // pools of tenant: two with bcd, one without
	foreign            string // other's pool
	key, otherKey      string // bearer forms, may do everything
	keyID              string
	decisions          *recorder
	mu                 sync.Mutex
	time               time.Time
	connected          map[string]bool
}

// recorder is the authorizer of the fixture: the keys' actions, and a record of what was asked.
type recorder struct {
	mu    sync.Mutex
	asked []string
}

func (r *recorder) Authorize(ctx context.Context, c httpapi.Caller, action, resource string) error {
	r.mu.Lock()
	r.asked = append(r.asked, action+" on "+resource)
	r.mu.Unlock()
	return httpapi.KeyActions{}.Authorize(ctx, c, action, resource)
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, time: start, decisions: &recorder{}, log: &bytes.Buffer{}, connected: map[string]bool{}}
	var err error
	f.store, err = store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "db"), Now: f.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.store.Close(); err != nil {
			t.Error(err)
		}
	})
	f.write(func(tx *store.Tx) error {
		f.tenant, f.other = tx.NewID(store.PrefixTenant), tx.NewID(store.PrefixTenant)
		f.site = tx.NewID(store.PrefixSite)
		f.pool, f.spare = tx.NewID(store.PrefixPool), tx.NewID(store.PrefixPool)
		f.noBCD, f.foreign = tx.NewID(store.PrefixPool), tx.NewID(store.PrefixPool)
		for id, name := range map[string]string{f.tenant: "acme", f.other: "umbrella"} {
			if err := tx.InsertTenant(store.Tenant{ID: id, Name: name}); err != nil {
				return err
			}
		}
		if err := tx.InsertSite(store.Site{ID: f.site, TenantID: f.tenant, Name: "eu"}); err != nil {
			return err
		}
		for _, p := range []store.Pool{
			{ID: f.pool, TenantID: f.tenant, Name: "default", Agent: store.AgentBCD},
			{ID: f.spare, TenantID: f.tenant, Name: "spare", Agent: store.AgentBCD},
			{ID: f.noBCD, TenantID: f.tenant, Name: "cloud", Agent: store.AgentNone},
			{ID: f.foreign, TenantID: f.other, Name: "theirs", Agent: store.AgentBCD},
		} {
			p.SiteID = f.site
			if err := tx.InsertPool(p); err != nil {
				return err
			}
		}
		return nil
	})
	f.key, f.keyID = f.newKey(store.APIKey{TenantID: f.tenant, Actions: []string{"compute:*"}})
	f.otherKey, _ = f.newKey(store.APIKey{TenantID: f.other, Actions: []string{"compute:*"}})
	f.url = f.serve(httpapi.Options{Version: "0.1.0"}) + "/api/compute"
	return f
}

// serve starts an API over the fixture's database and returns its URL.
func (f *fixture) serve(o httpapi.Options) string {
	o.RootTenant = f.tenant
	o.Store, o.Tokens, o.Authorizer = f.store, &tokens.Service{Store: f.store}, f.decisions
	o.Connected = func(id string) bool { return f.connected[id] }
	o.Log = slog.New(slog.NewTextHandler(f.log, nil))
	api, err := httpapi.New(o)
	if err != nil {
		f.t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(nil)
	s.Config = httpapi.NewServer(api, o.Log)
	s.Start()
	f.t.Cleanup(s.Close)
	return s.URL
}

func (f *fixture) now() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.time
}

func (f *fixture) sleep(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.time = f.time.Add(d)
}

func (f *fixture) write(fn func(*store.Tx) error) {
	f.t.Helper()
	if err := f.store.Write(f.t.Context(), fn); err != nil {
		f.t.Fatal(err)
	}
}

// newKey stores an API key and returns its bearer form and its id.
func (f *fixture) newKey(k store.APIKey) (bearer, id string) {
	f.t.Helper()
	var digest [sha256.Size]byte
	bearer, digest = apikeys.New()
	f.write(func(tx *store.Tx) error {
		k.ID, k.SHA256 = tx.NewID(store.PrefixKey), digest
		return tx.InsertAPIKey(k)
	})
	return bearer, k.ID
}

// answer is what the API answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// problem reads a failed answer.
func (a answer) problem(t *testing.T) httpapi.Problem {
	t.Helper()
	var p httpapi.Problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status < 400 {
		t.Fatalf("status %d is no problem: %s", a.status, a.body)
	}
	return p
}

// object reads a good answer with its keys as they are.
func (a answer) object(t *testing.T) map[string]any {
	t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(a.body), &o); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	return o
}

// read reads a good answer into a type.
func read[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &v); err != nil || a.status != http.StatusOK {
		t.Fatalf("status %d: %s", a.status, a.body)
	}
	return v
}

// post calls a method with a JSON text.
func (f *fixture) post(key, method, body string) answer {
	f.t.Helper()
	r, err := http.NewRequestWithContext(f.t.Context(), http.MethodPost, f.url+"/"+strings.ReplaceAll(method, ".", "/"), strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	a := f.do(r)
	follow(f.t, method, body, a)
	return a
}

func (f *fixture) do(r *http.Request) answer {
	f.t.Helper()
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return answer{status: response.StatusCode, header: response.Header, body: string(body)}
}

// call calls a method with the tenant's key and a request made of keys and values.
func (f *fixture) call(method string, in map[string]any) answer {
	f.t.Helper()
	return f.callAs(f.key, method, in)
}

func (f *fixture) callAs(key, method string, in map[string]any) answer {
	f.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.post(key, method, string(body))
}

// refused checks that an answer failed with the code and the text.
func (f *fixture) refused(a answer, code fault.Code, text string) {
	f.t.Helper()
	p := a.problem(f.t)
	if p.Code != code || !strings.Contains(p.Message, text) {
		f.t.Errorf("%s %q, want %s with %q", p.Code, p.Message, code, text)
	}
}

// events returns the tenant's events of a type.
func (f *fixture) events(tenant string, kind events.Type) (found []events.Event) {
	f.t.Helper()
	err := f.store.Read(f.t.Context(), func(tx *store.Tx) (err error) {
		found, err = tx.EventsMatching(tenant, store.EventFilter{Type: kind}, 1000)
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

// keysOf returns the sorted keys of an object.
func keysOf(o map[string]any) []string {
	var keys []string
	for k := range o {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// with returns a copy of a request with one key changed; a nil value takes the key out.
func with(in map[string]any, key string, value any) map[string]any {
	out := map[string]any{}
	for k, v := range in {
		out[k] = v
	}
	out[key] = value
	if value == nil {
		delete(out, key)
	}
	return out
}

// customSite makes a custom site of the tenant.
func (f *fixture) customSite() string {
	f.t.Helper()
	id := store.NewID(store.PrefixSite, f.now())
	f.write(func(tx *store.Tx) error {
		return tx.InsertSite(store.Site{ID: id, TenantID: f.tenant, Name: "custom", Custom: true})
	})
	return id
}

// audit returns the tenant's audit rows of an action.
func (f *fixture) audit(tenant string, action events.Action) (found []events.Audit) {
	f.t.Helper()
	err := f.store.Read(f.t.Context(), func(tx *store.Tx) error {
		all, err := tx.Audit(tenant, "", 1000)
		for _, a := range all {
			if a.Action == action {
				found = append(found, a)
			}
		}
		return err
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

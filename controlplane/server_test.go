package controlplane_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

const secret = "correct horse battery staple"

// bundle is the PKI of most tests: opening pki.age is slow on purpose.
var bundle = sync.OnceValues(func() (*pki.Bundle, error) { return pki.New("compute.test", time.Now()) })

// options are those of a control plane in dir, which it makes, on free ports.
func options(t *testing.T, dir string) controlplane.Options {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b, err := bundle()
	if err != nil {
		t.Fatal(err)
	}
	return controlplane.Options{
		Dir: dir, Bundle: b, Now: time.Now, Log: slog.New(slog.DiscardHandler), Version: "0.0.0-test",
		FirstConfig: controlplane.Config{
			API: controlplane.APIConfig{Listen: "127.0.0.1:0"}, Gateway: controlplane.GatewayConfig{Listen: "127.0.0.1:0"},
		},
	}
}

// run runs a server until the function that it returns is called.
func run(t *testing.T, o controlplane.Options) (*controlplane.Server, func()) {
	t.Helper()
	s, err := controlplane.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	stop := func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

type adminFile struct {
	URL    string `toml:"url"`
	APIKey string `toml:"api_key"`
}

func readAdmin(t *testing.T, dir string) (a adminFile) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "admin.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := toml.Unmarshal(text, &a); err != nil {
		t.Fatal(err)
	}
	return a
}

// count calls a list method of the API with the admin's key and returns how many items there are.
func count(t *testing.T, c *http.Client, a adminFile, method string, in any) int {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.URL+"/"+method, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.APIKey)
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %s (%v)", method, resp.Status, text, err)
	}
	var list struct {
		Items []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	return len(list.Items)
}

func checkFirstStart(t *testing.T, s *controlplane.Server, dir string) {
	t.Helper()
	root := s.Config().RootTenant
	a := readAdmin(t, dir)
	for method, in := range map[string]any{
		"tenants/list": map[string]any{}, "sites/list": map[string]any{"tenantId": root}, "pools/list": map[string]any{"tenantId": root},
	} {
		if n := count(t, http.DefaultClient, a, method, in); n != 1 {
			t.Errorf("%s: %d items, want 1", method, n)
		}
	}
	err := s.Store().Read(t.Context(), func(tx *store.Tx) error {
		keys, err := tx.APIKeys(root, true, "", 100)
		if len(keys) != 1 {
			t.Errorf("%d API keys, want 1", len(keys))
		}
		pools, _ := tx.Pools(root, true, "", 100)
		if len(pools) != 1 || pools[0].Agent != store.AgentBCD {
			t.Errorf("pools %+v, want one that runs bcd", pools)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestFirstStartAndTheNextOnes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	s, stop := run(t, options(t, dir))
	checkFirstStart(t, s, dir)
	for _, name := range []string{"admin.toml", "server.toml", "control-plane.db"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v (%v), want 0600", name, info.Mode().Perm(), err)
		}
	}
	if s.APIURL() != readAdmin(t, dir).URL {
		t.Errorf("admin.toml names %s, the API is at %s", readAdmin(t, dir).URL, s.APIURL())
	}
	first, config := files(t, dir), s.Config()
	stop()

	s, stop = run(t, options(t, dir))
	checkFirstStart(t, s, dir)
	if d := cmp.Diff(config, s.Config()); d != "" {
		t.Errorf("the second start has another configuration: (-first +second)\n%s", d)
	}
	if d := cmp.Diff(first, files(t, dir)); d != "" {
		t.Errorf("the second start wrote files: (-first +second)\n%s", d)
	}
	stop()

	// Its owner moved the key elsewhere: no other key is made.
	if err := os.Remove(filepath.Join(dir, "admin.toml")); err != nil {
		t.Fatal(err)
	}
	run(t, options(t, dir))
	if _, err := os.Stat(filepath.Join(dir, "admin.toml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("admin.toml was made again (%v)", err)
	}
}

func TestPKIOfTheDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	want, err := pki.Init(dir, "compute.test", secret, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, dir)
	o.Bundle, o.Secret = nil, "guess"
	if _, err := controlplane.New(t.Context(), o); !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), "the secret is wrong") {
		t.Errorf("wrong secret: %v", err)
	}
	o.Secret = secret
	s, _ := run(t, o)
	if s.PKI().Pins() != want.Public().Pins() {
		t.Error("the server runs with other keys than its directory's")
	}
}

func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	content := map[string]string{}
	for _, name := range []string{"admin.toml", "server.toml"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		content[name] = string(text)
	}
	return content
}

// The first start is stopped after each of its steps; the next start ends where an undisturbed one does.
func TestFirstStartSurvivesACrash(t *testing.T) {
	for _, step := range []string{"insert the tenant", "insert the site", "insert the pool", "insert the API key"} {
		t.Run(step, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			o := options(t, dir)
			o.AfterStep = func(at string) error {
				if at == step {
					return errors.New("power cut")
				}
				return nil
			}
			if _, err := controlplane.New(t.Context(), o); err == nil || !strings.Contains(err.Error(), "power cut") {
				t.Fatalf("error %v, want the power cut", err)
			}
			s, _ := run(t, options(t, dir))
			checkFirstStart(t, s, dir)
		})
	}
	t.Run("before server.toml", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cp")
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		o := options(t, dir)
		o.FirstConfig.Gateway.Listen = taken.Addr().String()
		if _, err := controlplane.New(t.Context(), o); !fault.Is(err, fault.Config) || !strings.Contains(err.Error(), "gateway.listen") {
			t.Fatalf("taken port: error %v", err)
		}
		s, _ := run(t, options(t, dir))
		checkFirstStart(t, s, dir)
	})
	t.Run("before admin.toml", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cp")
		o := options(t, dir)
		o.AfterStep = func(at string) error {
			if at == "insert the API key" {
				return errors.New("power cut")
			}
			return nil
		}
		if _, err := controlplane.New(t.Context(), o); err == nil {
			t.Fatal("no power cut")
		}
		if err := os.Remove(filepath.Join(dir, "admin.toml")); err != nil {
			t.Fatal(err)
		}
		s, _ := run(t, options(t, dir))
		checkFirstStart(t, s, dir)
	})
}

func TestOneServerOnADirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	_, stop := run(t, options(t, dir))
	_, err := controlplane.New(t.Context(), options(t, dir))
	if !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), "better-compute") {
		t.Errorf("second server: %v, want %s", err, fault.Busy)
	}
	stop()
	run(t, options(t, dir))
}

// Req: NC-003
func TestStartsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string, o *controlplane.Options)
		code   fault.Code
		text   string
	}{
		"no PKI": {func(_ *testing.T, _ string, o *controlplane.Options) {
			o.Bundle, o.Secret = nil, secret
		}, fault.Config, "pki.age"},
		"unknown key":       {serverTOML("[join]\ncert_ttl = 60\n"), fault.Config, `line 2, column 1: unknown key "join.cert_ttl"`},
		"wrong type":        {serverTOML("[join]\ncert_ttl_seconds = \"1h\"\n"), fault.Config, "line 2"},
		"long certificates": {serverTOML("[join]\ncert_ttl_seconds = 86401\n"), fault.Config, "cert_ttl_seconds is 86401"},
		"negative lifetime": {serverTOML("[join]\ncert_ttl_seconds = -1\n"), fault.Config, "cert_ttl_seconds is -1"},
		"unknown approval":  {serverTOML("[attestors.discovery]\napproval = \"sometimes\"\n"), fault.Config, `attestors.discovery.approval is "sometimes"`},
		"short wait":        {serverTOML("[attestors.discovery]\npending_ttl_seconds = 59\n"), fault.Config, "attestors.discovery.pending_ttl_seconds is 59"},
		"long wait":         {serverTOML("[attestors.discovery]\npending_ttl_seconds = 604801\n"), fault.Config, "attestors.discovery.pending_ttl_seconds is 604801"},
		"key of x509pop":    {serverTOML("[attestors.x509pop]\ndays = 7\n"), fault.Config, `unknown key "attestors.x509pop.days"`},
		"unknown attestor":  {serverTOML("[attestors.password]\n"), fault.Config, `unknown key "attestors.password"`},
		"plain gateway":     {serverTOML("[gateway]\nurl = \"http://x\"\n"), fault.Config, "gateway.url"},
		"URL with a path":   {serverTOML("[gateway]\nurl = \"https://x/y\"\n"), fault.Config, "gateway.url"},
		"half of TLS":       {serverTOML("[api]\nlisten = \"127.0.0.1:0\"\ntls_cert = \"a\"\n"), fault.Config, "go together"},
		"bad address":       {serverTOML("[api]\nlisten = \"8080\"\n"), fault.Config, "api.listen"},
		"negative limit":    {serverTOML("[gateway]\nrefused_burst = -1\n"), fault.Config, "refused_burst"},
		"foreign root tenant": {func(t *testing.T, dir string, o *controlplane.Options) {
			s, err := controlplane.New(t.Context(), options(t, dir))
			check(t, err)
			check(t, s.Close())
			serverTOML("root_tenant = \"tn_01k5w000000000000000000000\"\n")(t, dir, o)
		}, fault.Config, `root_tenant "tn_01k5w000000000000000000000" is not in the database`},
		"a root tenant that is no id": {serverTOML("root_tenant = \"root\"\n"), fault.Config, `root_tenant is "root"`},
		"zero lifetime":               {serverTOML("[join]\ncert_ttl_seconds = 0\n"), fault.Config, "cert_ttl_seconds is 0"},
		"zero limit":                  {serverTOML("[gateway]\nrefused_per_second = 0\n"), fault.Config, "refused_per_second is 0"},
		"no base path":                {serverTOML("base_path = \"\"\n"), fault.Config, `base_path is ""`},
		"base path with a space":      {serverTOML("base_path = \"/a b\"\n"), fault.Config, `base_path is "/a b"`},
		"base path that climbs":       {serverTOML("base_path = \"/a/..\"\n"), fault.Config, `base_path is "/a/.."`},
		"a site that is no id":        {serverTOML("[gateway]\nsites = [\"eu\"]\n"), fault.Config, `gateway.sites[0] is "eu"`},
		"no address":                  {serverTOML("[join]\nlisten = \"\"\n"), fault.Config, `join.listen is ""`},
		"a port that is none":         {serverTOML("[join]\nlisten = \"127.0.0.1:70000\"\n[api]\nlisten=\"127.0.0.1:0\"\n"), fault.Config, "join.listen"},
		"name with a port":            {serverTOML("[gateway]\nserver_name = \"gw.example.com:443\"\n"), fault.Config, "gateway.server_name is"},
		"TLS without files": {
			serverTOML("[api]\nlisten = \"127.0.0.1:0\"\ntls_cert = \"a\"\ntls_key = \"b\"\n[gateway]\nlisten=\"127.0.0.1:0\"\n"),
			fault.Config, "HTTP API's certificate",
		},
		"not TOML":        {serverTOML("[join\n"), fault.Config, "line 1, column"},
		"a key twice":     {serverTOML("[join]\nlisten = \"a:1\"\nlisten = \"b:1\"\n"), fault.Config, "line 3"},
		"unknown section": {serverTOML("[attestors.password]\n"), fault.Config, `unknown key "attestors.password"`},
		"empty rule":      {serverTOML("[attestors.discovery]\napproval = \"\"\n"), fault.Config, `attestors.discovery.approval is ""`},
		"another rule":    {serverTOML("[attestors.discovery]\napproval = \"sometimes\"\n"), fault.Config, `attestors.discovery.approval is "sometimes"`},
		"zero wait":       {serverTOML("[attestors.discovery]\npending_ttl_seconds = 0\n"), fault.Config, "pending_ttl_seconds is 0"},
		"key of a section without": {
			serverTOML("[attestors.x509pop]\ndays = 7\n"), fault.Config, `line 2, column 1: unknown key "attestors.x509pop.days"`,
		},
		"base path": {
			serverTOML("base_path = \"api\"\n[api]\nlisten = \"127.0.0.1:0\"\n[gateway]\nlisten=\"127.0.0.1:0\"\n"),
			fault.Config, "base path",
		},
		"no URL for every address": {func(_ *testing.T, _ string, o *controlplane.Options) {
			o.FirstConfig.Gateway.Listen = "0.0.0.0:0"
		}, fault.Config, "has no URL"},
		"gateway.crt alone": {func(t *testing.T, dir string, _ *controlplane.Options) {
			issueGateway(t, dir, "127.0.0.1")
			remove(t, filepath.Join(dir, pki.GatewayKeyFile))
		}, fault.Config, "gateway.key"},
		"gateway.crt for another name": {func(t *testing.T, dir string, _ *controlplane.Options) {
			issueGateway(t, dir, "gw.example.com")
		}, fault.Config, "gateway.crt"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			o := options(t, dir)
			c.change(t, dir, &o)
			s, err := controlplane.New(t.Context(), o)
			if err == nil {
				_ = s.Close()
			}
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v (%s), want %s with %q", err, fault.CodeOf(err), c.code, c.text)
			}
		})
	}
}

func serverTOML(text string) func(*testing.T, string, *controlplane.Options) {
	return func(t *testing.T, dir string, _ *controlplane.Options) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "server.toml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func issueGateway(t *testing.T, dir string, names ...string) *pki.Credential {
	t.Helper()
	b, err := bundle()
	if err != nil {
		t.Fatal(err)
	}
	c, err := b.IssueGatewayFiles(dir, names, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Req: CF-004
func TestGatewayPresentsTheIssuedCertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	o := options(t, dir)
	o.FirstConfig.Gateway.ServerName = "gw.eu.example.com"
	issued := issueGateway(t, dir, "gw.eu.example.com", "127.0.0.1")
	s, _ := run(t, o)

	roots := x509.NewCertPool()
	roots.AddCert(s.PKI().ServingCA())
	conn, err := tls.Dial("tcp", s.GatewayAddr(), &tls.Config{RootCAs: roots, ServerName: "gw.eu.example.com", NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	chain := conn.ConnectionState().PeerCertificates
	if len(chain) != 2 || !chain[0].Equal(issued.Leaf) || !chain[1].Equal(s.PKI().ServingCA()) {
		t.Errorf("the gateway presents %d certificates, and not the issued one with its CA", len(chain))
	}
}

func TestAnEndingGatewayCertificateIsWarnedAbout(t *testing.T) {
	for name, c := range map[string]struct {
		in   time.Duration
		warn bool
	}{"fresh": {0, false}, "ending": {370 * 24 * time.Hour, true}} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			o := options(t, dir)
			issueGateway(t, dir, "127.0.0.1")
			var log bytes.Buffer
			o.Log = slog.New(slog.NewTextHandler(&log, nil))
			o.Now = func() time.Time { return time.Now().Add(c.in) }
			s, err := controlplane.New(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if got := strings.Contains(log.String(), "renew gateway certificate"); got != c.warn {
				t.Errorf("warned %v, want %v: %s", got, c.warn, log.String())
			}
		})
	}
}

func TestGatewayIssuesItselfACertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	o := options(t, dir)
	o.FirstConfig.Gateway.ServerName = "gw.eu.example.com"
	s, _ := run(t, o)
	roots := x509.NewCertPool()
	roots.AddCert(s.PKI().ServingCA())
	for _, name := range []string{"gw.eu.example.com", "127.0.0.1"} {
		conn, err := tls.Dial("tcp", s.GatewayAddr(), &tls.Config{RootCAs: roots, ServerName: name, NextProtos: []string{"h2"}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		_ = conn.Close()
	}
}

func TestAPISpeaksTLSWhereItHasACertificate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	o := options(t, dir)
	issueGateway(t, dir, "127.0.0.1")
	o.FirstConfig.API.TLSCert, o.FirstConfig.API.TLSKey = pki.GatewayCertFile, pki.GatewayKeyFile
	s, _ := run(t, o)
	a := readAdmin(t, dir)
	if !strings.HasPrefix(a.URL, "https://127.0.0.1:") {
		t.Errorf("admin.toml names %s", a.URL)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.PKI().ServingCA())
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	if n := count(t, c, a, "tenants/list", map[string]any{}); n != 1 {
		t.Errorf("%d tenants", n)
	}
	c.CloseIdleConnections()
}

func TestGatewaySitesOfTheCommandLineWin(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	o := options(t, dir)
	o.GatewaySites = []string{"site_1"}
	s, stop := run(t, o)
	if d := cmp.Diff([]string{"site_1"}, s.Config().Gateway.Sites); d != "" {
		t.Error(d)
	}
	stop()
	s, _ = run(t, options(t, dir))
	if got := s.Config().Gateway.Sites; len(got) > 0 {
		t.Errorf("the flag of one start became the configuration: %q", got)
	}
}

// A server.toml without a section for an attestor has none.
func TestAttestorsAreThoseWithASection(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	s, stop := run(t, options(t, dir))
	if s.Config().Attestors.JoinToken == nil {
		t.Error("the first start has no attestor")
	}
	stop()
	text, err := os.ReadFile(filepath.Join(dir, "server.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "[attestors.join-token]") {
		t.Fatalf("server.toml has no section for join-token:\n%s", text)
	}
	for _, section := range []string{"discovery", "x509pop"} {
		if strings.Contains(string(text), section) {
			t.Errorf("the first start switches on %s:\n%s", section, text)
		}
	}
	without := strings.Replace(string(text), "[attestors.join-token]", "[attestors.discovery]\n[attestors.x509pop]", 1)
	if err := os.WriteFile(filepath.Join(dir, "server.toml"), []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	s, stop = run(t, options(t, dir))
	got := s.Config().Attestors
	if got.JoinToken != nil {
		t.Error("an attestor without a section is there")
	}
	if got.X509PoP == nil || got.Discovery == nil || *got.Discovery != (controlplane.DiscoveryConfig{Approval: "unknown-machines", PendingTTLSeconds: 86400}) {
		t.Errorf("attestors %+v, discovery %+v", got, got.Discovery)
	}
	stop()
	with := strings.Replace(without, "[attestors.discovery]", "[attestors.discovery]\napproval = \"always\"\npending_ttl_seconds = 60", 1)
	if err := os.WriteFile(filepath.Join(dir, "server.toml"), []byte(with), 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ = run(t, options(t, dir))
	if d := s.Config().Attestors.Discovery; *d != (controlplane.DiscoveryConfig{Approval: "always", PendingTTLSeconds: 60}) {
		t.Errorf("discovery %+v", d)
	}
}

func TestCloseWithoutRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	s, err := controlplane.New(t.Context(), options(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	run(t, options(t, dir))
}

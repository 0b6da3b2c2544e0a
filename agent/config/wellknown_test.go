package config_test

import (
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/seal"
)

// server is a control plane's web server that records what it was asked for.
type server struct {
	url   string
	roots *x509.CertPool

	mu    sync.Mutex
	paths []string
}

func (s *server) fetcher() config.Fetcher { return config.Fetcher{Roots: s.roots} }

func (s *server) requests() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.paths)
}

// serveFunc runs a server with a certificate for example.com and 127.0.0.1.
func serveFunc(t *testing.T, h http.HandlerFunc) *server {
	t.Helper()
	s := &server{}
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.paths = append(s.paths, r.Method+" "+r.URL.String())
		s.mu.Unlock()
		h(w, r)
	}))
	web.EnableHTTP2 = true
	web.Config.ErrorLog = log.New(io.Discard, "", 0) // of handshakes that are meant to fail
	web.StartTLS()
	t.Cleanup(web.Close)
	s.url = web.URL + "/api/compute"
	s.roots = x509.NewCertPool()
	s.roots.AddCert(web.Certificate())
	return s
}

func serve(t *testing.T, body []byte) *server {
	return serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/compute/.well-known/better-compute" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(body)
	})
}

func vector(t *testing.T) []byte {
	t.Helper()
	b, err := os.ReadFile("../../testdata/vectors/well-known.json")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// change returns the vector's document after a change.
func change(t *testing.T, f func(d map[string]any)) []byte {
	t.Helper()
	var d map[string]any
	if err := json.Unmarshal(vector(t), &d); err != nil {
		t.Fatal(err)
	}
	f(d)
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func documentOf(t *testing.T, jwk []byte) []byte {
	return change(t, func(d map[string]any) { d["join"].(map[string]any)["encryptionJwk"] = json.RawMessage(jwk) })
}

// Req: CF-020 CF-021
func TestVectorIsReadWhole(t *testing.T) {
	s := serve(t, vector(t))
	for _, base := range []string{s.url, s.url + "/", s.url + "//"} {
		d, err := s.fetcher().Document(t.Context(), base)
		if err != nil {
			t.Fatal(err)
		}
		if d.Version != "0.1.0" || d.BasePath != "/api/compute" || d.Gateway.URL != "https://gw.eu.example.com" ||
			d.Gateway.ServerName != "gw.eu.example.com" || !strings.HasPrefix(d.Gateway.ServingCAPin, "sha256/") {
			t.Errorf("%+v", d)
		}
		der, err := base64.StdEncoding.DecodeString(d.Join.SigningCertificate)
		if err != nil {
			t.Fatal(err)
		}
		certificate, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		if got := pin.OfCertificate(certificate).String(); got != d.Join.SigningKeyPin {
			t.Errorf("the vector's signing pin is %s, its certificate's %s", d.Join.SigningKeyPin, got)
		}
		p, err := pin.Parse(d.Join.EncryptionKeyPin)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.JoinKey(pin.Set{p}); err != nil {
			t.Error(err)
		}
	}
	for _, got := range s.requests() {
		if got != "GET /api/compute/.well-known/better-compute" {
			t.Errorf("asked for %q", got)
		}
	}
}

// Req: CF-017 CF-021
func TestOnlyThePinsDecide(t *testing.T) {
	key, jwk, p := newKey(t)
	_, _, other := newKey(t)
	honest := serve(t, documentOf(t, jwk))
	if got, err := honest.fetcher().JoinKey(t.Context(), honest.url, pin.Set{other, p}); err != nil || !got.Equal(key) {
		t.Errorf("%v", err)
	}
	// The document's own pin says that its key is right. Nobody asks it.
	evil := serve(t, change(t, func(d map[string]any) {
		join := d["join"].(map[string]any)
		join["encryptionJwk"], join["encryptionKeyPin"] = json.RawMessage(jwk), p.String()
	}))
	got, err := evil.fetcher().JoinKey(t.Context(), evil.url, pin.Set{other})
	if !got.IsZero() || fault.CodeOf(err) != fault.Verification {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(err.Error(), p.String()) || !strings.Contains(err.Error(), other.String()) || !strings.Contains(err.Error(), evil.url) || fault.HintOf(err) == "" {
		t.Errorf("%q, hint %q", err, fault.HintOf(err))
	}
	// A pin in the document that does not fit is no reason to refuse a key that ours names.
	odd := serve(t, change(t, func(d map[string]any) {
		join := d["join"].(map[string]any)
		join["encryptionJwk"], join["encryptionKeyPin"] = json.RawMessage(jwk), "sha256/odd"
	}))
	if _, err := odd.fetcher().JoinKey(t.Context(), odd.url, pin.Set{p}); err != nil {
		t.Error(err)
	}
}

// Req: SS-005
func TestDocumentsThatAreOfNoUse(t *testing.T) {
	_, _, p := newKey(t)
	protocol := func(min, max int) []byte {
		return change(t, func(d map[string]any) { d["protocol"] = map[string]int{"min": min, "max": max} })
	}
	for name, c := range map[string]struct {
		body    []byte
		code    fault.Code
		message string
	}{
		"no JSON":               {[]byte("<html>"), fault.Config, "cannot read the document"},
		"empty":                 {nil, fault.Config, "cannot read the document"},
		"another name":          {change(t, func(d map[string]any) { d["name"] = "other" }), fault.Config, `is named "other"`},
		"no name":               {change(t, func(d map[string]any) { delete(d, "name") }), fault.Config, `is named ""`},
		"only newer protocols":  {protocol(2, 3), fault.Config, "speaks protocol 2 to 3, and this bcd speaks 1"},
		"only older protocols":  {protocol(0, 0), fault.Config, "speaks protocol 0 to 0, and this bcd speaks 1"},
		"no protocol":           {change(t, func(d map[string]any) { delete(d, "protocol") }), fault.Config, "speaks protocol 0 to 0"},
		"no join section":       {change(t, func(d map[string]any) { delete(d, "join") }), fault.InvalidConfig, "publishes none"},
		"join is null":          {change(t, func(d map[string]any) { d["join"] = nil }), fault.InvalidConfig, "publishes none"},
		"no key":                {change(t, func(d map[string]any) { d["join"] = map[string]any{} }), fault.InvalidConfig, "publishes none"},
		"a key of another kind": {documentOf(t, []byte(`{"kty":"RSA","n":"AQAB","e":"AQAB"}`)), fault.Verification, `"kty" is "RSA"`},
		"a private key":         {documentOf(t, []byte(`{"kty":"EC","crv":"P-256","x":"AA","y":"AA","d":"AA"}`)), fault.Verification, "private key"},
		"too large":             {append(vector(t), make([]byte, 64<<10)...), fault.Config, "has more than 65536 bytes"},
	} {
		s := serve(t, c.body)
		_, err := s.fetcher().JoinKey(t.Context(), s.url, pin.Set{p})
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.message) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s), hint %q", name, err, fault.CodeOf(err), fault.HintOf(err))
		}
	}
	for name, body := range map[string][]byte{
		"members of tomorrow": change(t, func(d map[string]any) { d["tomorrow"] = map[string]any{"a": 1}; d["join"].(map[string]any)["more"] = 1 }),
		"more protocols":      protocol(1, 4),
		"no gateway":          change(t, func(d map[string]any) { delete(d, "gateway") }),
		"the largest":         append(vector(t), []byte(strings.Repeat(" ", 64<<10-len(vector(t))))...),
	} {
		s := serve(t, body)
		if _, err := s.fetcher().Document(t.Context(), s.url); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Req: CF-043
func TestServerMustBeAnHTTPSURL(t *testing.T) {
	for _, server := range []string{
		"http://compute.example.com/api/compute", "compute.example.com", "", "https://", "ftp://compute.example.com", "https://compute.example.com?x=1",
		"https://compute.example.com/#x", "https://user:hunter2@compute.example.com", "https://compute.example.com:0", "https://a b", "//compute.example.com",
		"https://compute.example.com:99999/api", "https:compute.example.com", "HTTP://compute.example.com",
	} {
		_, err := config.Fetcher{}.Document(t.Context(), server)
		if fault.CodeOf(err) != fault.Config || !strings.Contains(fault.HintOf(err), "https://") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", server, err)
		}
	}
}

// Req: CF-043
func TestServerThatTheSystemDoesNotTrust(t *testing.T) {
	s := serve(t, vector(t))
	for name, f := range map[string]config.Fetcher{
		"the system's roots": {},
		"other roots":        {Roots: x509.NewCertPool()},
		"expired":            {Roots: s.roots, Now: func() time.Time { return time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC) }},
	} {
		_, err := f.Document(t.Context(), s.url)
		if fault.CodeOf(err) != fault.Verification || fault.HintOf(err) == "" {
			t.Errorf("%s: %v (%s)", name, err, fault.CodeOf(err))
		}
	}
	_, err := s.fetcher().Document(t.Context(), strings.Replace(s.url, "127.0.0.1", "localhost", 1))
	if fault.CodeOf(err) != fault.Verification {
		t.Errorf("another name: %v (%s)", err, fault.CodeOf(err))
	}
	if n := len(s.requests()); n != 0 {
		t.Errorf("%d requests reached it", n)
	}
}

func TestRedirects(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(vector(t)) }))
	t.Cleanup(plain.Close)
	other := serve(t, vector(t))
	self := serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		target := map[string]string{
			"/moved/.well-known/better-compute":     "/api/compute/.well-known/better-compute",
			"/downgrade/.well-known/better-compute": plain.URL + "/api/compute/.well-known/better-compute",
			"/foreign/.well-known/better-compute":   other.url + "/.well-known/better-compute",
			"/user/.well-known/better-compute":      "https://user:hunter2@" + r.Host + "/api/compute/.well-known/better-compute",
			"/loop/.well-known/better-compute":      "/loop/.well-known/better-compute",
		}[r.URL.Path]
		if target == "" {
			_, _ = w.Write(vector(t))
			return
		}
		http.Redirect(w, r, target, http.StatusFound)
	})
	origin := strings.TrimSuffix(self.url, "/api/compute")
	if _, err := self.fetcher().Document(t.Context(), origin+"/moved"); err != nil {
		t.Errorf("on the same server: %v", err)
	}
	// All of these servers have one certificate, so that nothing but the rule stands in the way.
	for _, path := range []string{"/downgrade", "/foreign", "/user", "/loop"} {
		_, err := self.fetcher().Document(t.Context(), origin+path)
		if fault.CodeOf(err) != fault.Config || !strings.Contains(err.Error(), "it redirects") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v (%s)", path, err, fault.CodeOf(err))
		}
	}
	if n := len(other.requests()); n != 0 {
		t.Errorf("%d requests reached the other server", n)
	}
	if n := strings.Count(strings.Join(self.requests(), "\n"), "/loop"); n > 4 {
		t.Errorf("%d requests for a loop", n)
	}
}

// Req: CF-020
func TestNotFoundSaysWhereAControlPlaneUsuallyIs(t *testing.T) {
	s := serve(t, vector(t))
	origin := strings.TrimSuffix(s.url, "/api/compute")
	_, err := s.fetcher().Document(t.Context(), origin)
	if fault.CodeOf(err) != fault.Config || fault.HintOf(err) != "try --server "+s.url {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
	gone := serveFunc(t, http.NotFound)
	_, err = gone.fetcher().Document(t.Context(), gone.url)
	if fault.CodeOf(err) != fault.Config || fault.HintOf(err) != "check the path of --server" {
		t.Errorf("%v, hint %q", err, fault.HintOf(err))
	}
}

func TestAnswersThatMayBeBetterLater(t *testing.T) {
	for status, code := range map[int]fault.Code{
		500: fault.Unreachable, 502: fault.Unreachable, 503: fault.Unreachable, 429: fault.Unreachable,
		401: fault.Config, 403: fault.Config, 204: fault.Config, 304: fault.Config,
	} {
		s := serveFunc(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
		_, err := s.fetcher().Document(t.Context(), s.url)
		if fault.CodeOf(err) != code || !strings.Contains(err.Error(), fmt.Sprint(status)) {
			t.Errorf("%d: %v (%s)", status, err, fault.CodeOf(err))
		}
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	_, err = config.Fetcher{}.Document(t.Context(), "https://"+address)
	if fault.CodeOf(err) != fault.Unreachable || fault.HintOf(err) == "" || strings.Count(err.Error(), address) > 2 {
		t.Errorf("%v (%s)", err, fault.CodeOf(err))
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(plain.Close)
	_, err = config.Fetcher{}.Document(t.Context(), strings.Replace(plain.URL, "http:", "https:", 1))
	if fault.CodeOf(err) != fault.Unreachable {
		t.Errorf("HTTP behind the port: %v (%s)", err, fault.CodeOf(err))
	}
	hang := serveFunc(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := hang.fetcher().Document(ctx, hang.url); fault.CodeOf(err) != fault.Unreachable {
		t.Errorf("a server that never ends its answer: %v (%s)", err, fault.CodeOf(err))
	}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if _, err := hang.fetcher().Document(ctx, hang.url); err == nil {
		t.Error("fetched although the caller gave up")
	}
}

func TestZeroDocumentHasNoKey(t *testing.T) {
	if key, err := (&config.Document{}).JoinKey(nil); err == nil || !key.Equal(seal.Key{}) {
		t.Errorf("%v", err)
	}
}

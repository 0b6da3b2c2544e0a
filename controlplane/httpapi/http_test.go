package httpapi_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestRequestsThatAreNoCalls(t *testing.T) {
	f := newFixture(t)
	for name, test := range map[string]struct {
		method, path, kind, body string
		header                   string // a further header's name
		status                   int
		code                     fault.Code
		text                     string
	}{
		"no such method":      {"POST", "/nodes/fly", "application/json", "{}", "", 404, fault.NotFound, "not a method"},
		"no such group":       {"POST", "/noses/list", "application/json", "{}", "", 404, fault.NotFound, ""},
		"a dot for a slash":   {"POST", "/nodes.list", "application/json", "{}", "", 404, fault.NotFound, ""},
		"a slash more":        {"POST", "/nodes/list/", "application/json", "{}", "", 404, fault.NotFound, ""},
		"two slashes":         {"POST", "//nodes/list", "application/json", "{}", "", 404, fault.NotFound, ""},
		"the base path":       {"POST", "", "application/json", "{}", "", 404, fault.NotFound, ""},
		"above it":            {"POST", "/../compute/nodes/list", "application/json", "{}", "", 404, fault.NotFound, ""},
		"GET":                 {"GET", "/tenants/list", "", "", "", 405, fault.InvalidArgument, "it takes POST"},
		"POST of a document":  {"POST", "/.well-known/better-compute", "application/json", "{}", "", 405, fault.InvalidArgument, "GET"},
		"no type":             {"POST", "/tenants/list", "", "{}", "", 400, fault.InvalidArgument, "Content-Type"},
		"a form":              {"POST", "/tenants/list", "application/x-www-form-urlencoded", "{}", "", 400, fault.InvalidArgument, "Content-Type"},
		"a form's text":       {"POST", "/tenants/list", "text/plain", "{}", "", 400, fault.InvalidArgument, "Content-Type"},
		"another charset":     {"POST", "/tenants/list", "application/json; charset=utf-16", "{}", "", 400, fault.InvalidArgument, "Content-Type"},
		"utf-8":               {"POST", "/tenants/list", "application/json; charset=UTF-8", "{}", "", 200, "", ""},
		"compressed":          {"POST", "/tenants/list", "application/json", "{}", "Content-Encoding", 400, fault.InvalidArgument, "Content-Encoding"},
		"the largest":         {"POST", "/tenants/list", "application/json", "{}" + strings.Repeat(" ", httpapi.MaxBody-2), "", 200, "", ""},
		"one byte more":       {"POST", "/tenants/list", "application/json", "{}" + strings.Repeat(" ", httpapi.MaxBody-1), "", 400, fault.InvalidArgument, "65536"},
		"no body":             {"POST", "/tenants/list", "application/json", "", "", 400, fault.InvalidArgument, "not complete"},
		"an unknown field":    {"POST", "/tenants/list", "application/json", `{"tenantId":"x"}`, "", 400, fault.InvalidArgument, `unknown field "tenantId"`},
		"a good call, at all": {"POST", "/tenants/list", "application/json", "{}", "", 200, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), test.method, f.url+test.path, strings.NewReader(test.body))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "bearer "+f.key)
			if test.kind != "" {
				r.Header.Set("Content-Type", test.kind)
			}
			if test.header != "" {
				r.Header.Set(test.header, "gzip")
			}
			g := &fixture{t: t}
			a := g.do(r)
			if a.status != test.status {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			if test.code != "" {
				g.refused(a, test.code, test.text)
			}
			if a.status == http.StatusMethodNotAllowed && a.header.Get("Allow") == "" {
				t.Error("no Allow")
			}
			for header, want := range map[string]string{
				"Content-Type": "application/json", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store",
				"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Referrer-Policy": "no-referrer",
				"Access-Control-Allow-Origin": "", "Strict-Transport-Security": "",
			} {
				if got := a.header.Get(header); got != want {
					t.Errorf("%s: %q, want %q", header, got, want)
				}
			}
		})
	}
}

func TestHealth(t *testing.T) {
	f := newFixture(t)
	root := strings.TrimSuffix(f.url, "/api/compute")
	if a := f.get(root + "/healthz"); a.status != 200 || a.object(t)["status"] != "ok" {
		t.Errorf("status %d: %s", a.status, a.body)
	}
}

// broken is a database that cannot be read any more.
type broken struct{ store.Store }

func (broken) Read(context.Context, func(*store.Tx) error) error {
	return errors.New("disk I/O error on /var/lib/db")
}

// A failure of the server's own tells its log what happened and the caller only that it did.
func TestInternalErrorsStayInside(t *testing.T) {
	f := newFixture(t)
	f.store = broken{f.store}
	root := f.serve(httpapi.Options{})
	a := f.get(root + "/healthz")
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, "unavailable") {
		t.Errorf("health: status %d: %s", a.status, a.body)
	}
	f.url = root + "/api/compute"
	a = f.call("tenants.list", map[string]any{})
	if p := a.problem(t); a.status != http.StatusInternalServerError || p.Code != fault.Failed || strings.Contains(a.body, "disk") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if !strings.Contains(f.log.String(), "answer failed") || !strings.Contains(f.log.String(), "disk I/O error") {
		t.Errorf("the log says %q", f.log)
	}
}

// A client that sends its header a byte at a time is cut off, and so is one whose header is huge.
func TestServerLimits(t *testing.T) {
	f := newFixture(t)
	s := httpapi.NewServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	for name, limit := range map[string]bool{
		"ReadHeaderTimeout": s.ReadHeaderTimeout > 0, "ReadTimeout": s.ReadTimeout > 0, "WriteTimeout": s.WriteTimeout > 0,
		"IdleTimeout": s.IdleTimeout > 0, "MaxHeaderBytes": s.MaxHeaderBytes > 0,
	} {
		if !limit {
			t.Errorf("%s is not set", name)
		}
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimSuffix(strings.TrimPrefix(f.url, "http://"), "/api/compute"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// The server may stop reading before all is written.
	_, _ = fmt.Fprintf(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\nX: %s\r\n\r\n", strings.Repeat("x", 32<<10))
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("status %d", response.StatusCode)
	}
}

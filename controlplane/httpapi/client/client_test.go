package client_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/internal/fault"
)

func TestNew(t *testing.T) {
	for base, good := range map[string]bool{
		"https://compute.example.com/api/compute":      true,
		"https://compute.example.com:8443/api/compute": true,
		"http://127.0.0.1:8080/api/compute":            true,
		"http://[::1]:8080/api/compute":                true,
		"http://localhost/api/compute":                 true,
		"http://compute.example.com/api/compute":       false,
		"http://127.0.0.1.example.com/api/compute":     false,
		"http://192.0.2.1/api/compute":                 false,
		"ftp://localhost/api/compute":                  false,
		"https://user:pass@compute.example.com":        false,
		"https://compute.example.com/?a=b":             false,
		"https://compute.example.com/#a":               false,
		"compute.example.com":                          false,
		"https://":                                     false,
		"":                                             false,
		"https://%zz":                                  false,
	} {
		_, err := client.New(base, "key")
		if (err == nil) != good {
			t.Errorf("%q: %v", base, err)
		}
		if err != nil && !fault.Is(err, fault.Config) {
			t.Errorf("%q: code %s", base, fault.CodeOf(err))
		}
	}
}

// serve returns a client of a handler. The base has a trailing slash, as people write it.
func serve(t *testing.T, h http.HandlerFunc) *client.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := client.New(s.URL+"/api/compute/", "bcak_x")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCall(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if err := json.NewEncoder(w).Encode(map[string]string{
			"method": r.Method, "path": r.URL.Path, "type": r.Header.Get("Content-Type"), "key": r.Header.Get("Authorization"), "body": string(body),
		}); err != nil {
			t.Error(err)
		}
	})
	var got map[string]string
	if err := c.Call(t.Context(), "joinTokens.create", map[string]int{"a": 1}, &got); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{
		"method": "POST", "path": "/api/compute/joinTokens/create", "type": "application/json", "key": "Bearer bcak_x", "body": `{"a":1}`,
	} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
}

func TestFailures(t *testing.T) {
	for name, test := range map[string]struct {
		status     int
		body       string
		code       fault.Code
		text, hint string
	}{
		"the API's":          {409, `{"code":"CONFLICT","message":"it was used","hint":"use another"}`, fault.Conflict, "it was used", "use another"},
		"without a hint":     {404, `{"code":"NOT_FOUND","message":"no pool"}`, fault.NotFound, "no pool", ""},
		"a proxy's page":     {404, "<html>", fault.Failed, "answered HTTP status 404", "check that the context's URL"},
		"a proxy in trouble": {502, "<html>", fault.Unreachable, "answered HTTP status 502", "check that the context's URL"},
		"half a problem":     {500, `{"code":"FAILED"}`, fault.Failed, "answered HTTP status 500", "check that the context's URL"},
		"not JSON":           {200, "<html>", fault.Failed, "cannot read the answer", ""},
		"too large":          {200, strings.Repeat(" ", 16<<20+1), fault.Failed, "larger than", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(test.status)
				_, _ = io.WriteString(w, test.body) // the client may stop reading
			})
			err := c.Call(t.Context(), "a.b", struct{}{}, &struct{}{})
			if err == nil {
				t.Fatal("no error")
			}
			if !fault.Is(err, test.code) || !strings.Contains(err.Error(), test.text) || !strings.HasPrefix(fault.HintOf(err), test.hint) {
				t.Errorf("%s %q, hint %q", fault.CodeOf(err), err, fault.HintOf(err))
			}
		})
	}
}

// A redirect could take the API key to another host.
func TestRedirectsAreNotFollowed(t *testing.T) {
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer elsewhere.Close()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
	})
	if err := c.Call(t.Context(), "a.b", struct{}{}, &struct{}{}); err == nil || !strings.Contains(err.Error(), "HTTP status 307") {
		t.Errorf("error %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	gone := httptest.NewServer(nil)
	base := gone.URL
	gone.Close()
	c, err := client.New(base, "SECRET")
	if err != nil {
		t.Fatal(err)
	}
	err = c.Call(t.Context(), "a.b", struct{}{}, &struct{}{})
	if !fault.Is(err, fault.Unreachable) || fault.HintOf(err) == "" || strings.Count(err.Error(), base) != 1 {
		t.Errorf("%s %q, hint %q", fault.CodeOf(err), err, fault.HintOf(err))
	}
	if strings.Contains(err.Error(), "SECRET") {
		t.Error("the error shows the key")
	}

	// A connection that breaks in the middle of the answer is no answer.
	cut := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "{")
	})
	if err := cut.Call(t.Context(), "a.b", struct{}{}, &struct{}{}); !fault.Is(err, fault.Unreachable) {
		t.Errorf("%s %q", fault.CodeOf(err), err)
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the client leaves
		cancel()
		<-r.Context().Done()
	})
	if err := c.Call(ctx, "a.b", struct{}{}, &struct{}{}); err == nil || !strings.HasPrefix(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
}

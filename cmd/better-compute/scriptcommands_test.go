package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// patience is how long a script waits for a server.
const patience = 20 * time.Second

var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"exits":     exits,
	"mode":      mode,
	"waitfor":   waitfor,
	"waitglob":  waitglob,
	"ready":     ready,
	"capture":   capture,
	"bind":      bind,
	"umask":     umask,
	"spend":     spend,
	"expired":   expired,
	"record":    record,
	"mount":     mount,
	"unmount":   unmount,
	"fill":      fill,
	"newer":     newer,
	"condemn":   condemn,
	"waits":     waits,
	"jsonlines": jsonlines,
}

// exits runs a command that must end with the status: exits 78 better-compute ….
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status command…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit := (*exec.ExitError)(nil); err != nil {
		if !asExit(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func asExit(err error, to **exec.ExitError) bool {
	e, ok := err.(*exec.ExitError)
	*to = e
	return ok
}

// mode checks a file's permissions: mode 600 file.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	info, err := os.Lstat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); (got == args[0]) == neg {
		ts.Fatalf("mode of %s is %s", args[1], got)
	}
}

// ready waits until the server that a context file names answers.
func ready(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		c, err := loadContext(path)
		if err != nil {
			continue
		}
		response, err := http.Get(strings.TrimSuffix(c.URL, "/api/compute") + "/healthz")
		if err != nil {
			continue
		}
		response.Body.Close()
		if response.StatusCode == http.StatusOK {
			return
		}
	}
	ts.Fatalf("no server answers at the URL in %s", args[0])
}

// bind puts the first match of a pattern's group in a file into a variable: bind ID stdout '(jt_[0-9a-z]+)'.
func bind(ts *testscript.TestScript, _ bool, args []string) {
	m := regexp.MustCompile(args[2]).FindStringSubmatch(ts.ReadFile(args[1]))
	if m == nil {
		ts.Fatalf("%s does not match %s", args[1], args[2])
	}
	ts.Setenv(args[0], m[1])
}

// capture puts a proxy before the server of a context file and records the requests that come through it:
// capture context newcontext record. The record has a line "METHOD PATH" and a line with the body for each.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	c, err := loadContext(ts.MkAbs(args[0]))
	ts.Check(err)
	target, err := url.Parse(c.URL)
	ts.Check(err)
	record := ts.MkAbs(args[2])
	ts.Check(os.WriteFile(record, nil, 0o600))
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: target.Scheme, Host: target.Host})
	var mu sync.Mutex
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		mu.Lock()
		defer mu.Unlock()
		f, err := os.OpenFile(record, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			fmt.Fprintf(f, "%s %s\n%s\n", r.Method, r.URL.Path, body)
			f.Close()
		}
		proxy.ServeHTTP(w, r)
	}))
	ts.Defer(server.Close)
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), fmt.Appendf(nil, "url = %q\napi_key = %q\n", server.URL+target.Path, c.APIKey), 0o600))
}

// waitfor waits until a file matches a pattern: waitfor file pattern.
func waitfor(ts *testscript.TestScript, _ bool, args []string) {
	pattern := regexp.MustCompile("(?m)" + args[1])
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if text, err := os.ReadFile(ts.MkAbs(args[0])); err == nil && pattern.Match(text) {
			return
		}
	}
	ts.Fatalf("%s never matched %s", args[0], args[1])
}

// waitglob waits for a file and puts its folder into a variable: waitglob FOLDER tmp/*/file.
func waitglob(ts *testscript.TestScript, _ bool, args []string) {
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if found, err := filepath.Glob(ts.MkAbs(args[1])); err == nil && len(found) == 1 {
			if info, err := os.Stat(found[0]); err == nil && info.Size() > 0 {
				ts.Setenv(args[0], filepath.Dir(found[0]))
				return
			}
		}
	}
	ts.Fatalf("no file is %s", args[1])
}

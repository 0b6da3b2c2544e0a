package helper_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// A program of the node's user that holds as many connections as it can, and sends nothing, half a request, or garbage,
// keeps the node's own signature waiting for a moment at most.
func TestHostileClientBlocksNobody(t *testing.T) {
	w := newWorld(t, tpmkeytest.Any(t))
	key := w.newKey(identity.KeyFile)
	sign := func() error {
		_, err := signing.Sign(key, signing.CommandResult, []byte("result"))
		return err
	}
	for name, sends := range map[string]string{
		"nothing":        "",
		"half a line":    "POST /v1/si",
		"half a header":  "POST /v1/sign-tls13 HTTP/1.1\r\nHost: x\r\nX-Y: ",
		"half a body":    "POST /v1/sign-tls13 HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{\"key\":",
		"no HTTP":        "\x80\x01\x00\x00\x00\x0c\x00\x00\x01\x44\x00\x00",
		"a huge header":  "POST /v1/sign-tls13 HTTP/1.1\r\nX: " + strings.Repeat("y", 1<<16),
		"a huge body":    "POST /v1/sign-tls13 HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n" + strings.Repeat(" ", 1<<17),
		"an endless one": "POST /v1/sign-tls13 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\n \r\n", 1<<10),
	} {
		t.Run(name, func(t *testing.T) {
			var held []net.Conn
			for range 4 * helper.MaxClients {
				conn, err := (&net.Dialer{}).DialContext(t.Context(), "unix", w.socket())
				if err != nil {
					t.Fatal(err)
				}
				held = append(held, conn)
				if err := conn.SetWriteDeadline(time.Now().Add(time.Second)); err != nil {
					t.Fatal(err)
				}
				_, _ = io.WriteString(conn, sends) // the helper may close it meanwhile
			}
			deadline(t, "the node's signature", 3*time.Second, sign)
			for _, conn := range held {
				_ = conn.Close()
			}
		})
	}
}

// Calls that are all under way take turns at the TPM. The node's own is one of them.
func TestManyCallsTakeTurns(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	w := newWorld(t, tpm)
	key := w.newKey(identity.KeyFile)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stopped := make(chan struct{})
	for range 4 * helper.MaxClients {
		go func() {
			defer func() { stopped <- struct{}{} }()
			for ctx.Err() == nil {
				_, _ = w.keys().Attester().AKPublic(ctx) // it is there to be in the way
			}
		}()
	}
	for range 3 {
		deadline(t, "the node's signature", 20*time.Second, func() error {
			_, err := signing.Sign(key, signing.CommandResult, []byte("result"))
			return err
		})
	}
	cancel()
	for range 4 * helper.MaxClients {
		<-stopped
	}
	w.stop() // what was asked for last is at its end
	if handles := tpm.Handles(t); len(handles) > 0 {
		t.Errorf("the helper left %v loaded", handles)
	}
}

// What is being signed when the helper is told to stop is signed to its end.
func TestStopLetsSignaturesEnd(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	w := newWorld(t, tpm)
	key := w.newKey(identity.KeyFile)
	reached := make(chan struct{}, 1)
	tpm.Intercept(func(c tpm2.TPMCC) tpmkeytest.Action {
		if c == tpm2.TPMCCSign {
			reached <- struct{}{}
			time.Sleep(200 * time.Millisecond) // a slow chip
		}
		return tpmkeytest.Action{}
	})
	signed := make(chan error, 1)
	go func() {
		_, err := signing.Sign(key, signing.CommandResult, []byte("result"))
		signed <- err
	}()
	<-reached
	w.stop()
	if err := <-signed; err != nil {
		t.Error(err)
	}
}

// The gate closes whoever has not sent his request, oldest first, and nobody who waits for an answer.
func TestGate(t *testing.T) {
	dir, err := os.MkdirTemp("", "gate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	gate := helper.NewGate(l, func(uint32) bool { return true }, slog.New(slog.DiscardHandler))
	defer gate.Close()
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := gate.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	connect := func() net.Conn {
		t.Helper()
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	var ours, theirs []net.Conn
	for range helper.MaxClients {
		theirs = append(theirs, connect())
		ours = append(ours, <-accepted)
	}
	for _, c := range ours[:helper.MaxClients-1] {
		helper.Work(c)
	}
	theirs = append(theirs, connect())
	last := <-accepted
	idle := theirs[helper.MaxClients-1]
	if _, err := idle.Read(make([]byte, 1)); err == nil {
		t.Error("the idle connection is still open")
	}
	if err := theirs[0].SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs[0].Read(make([]byte, 1)); !os.IsTimeout(err) {
		t.Errorf("a connection at work: %v", err)
	}
	helper.Work(last)
	connect()
	select {
	case <-accepted:
		t.Fatal("more connections than there is room for")
	case <-time.After(50 * time.Millisecond):
	}
	if err := ours[3].Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case c, open := <-accepted:
		if !open || c == nil {
			t.Error("no connection took the free place")
		}
	case <-time.After(5 * time.Second):
		t.Fatal("the free place is not taken")
	}
}

// Req: HL-002
func TestListening(t *testing.T) {
	w := newWorld(t, nil)
	serve := func(o helper.Options) error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		return helper.Serve(ctx, o, cancel)
	}
	if err := serve(w.options()); !fault.Is(err, fault.Busy) {
		t.Errorf("a second helper: %v", err)
	}
	w.stop()
	// A dead helper leaves its socket.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.socket(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := serve(w.options()); err != nil {
		t.Errorf("after a dead helper: %v", err)
	}
	for name, prepare := range map[string]func(o *helper.Options) error{
		"a file in its place": func(o *helper.Options) error {
			return os.WriteFile(o.Socket, nil, 0o600)
		},
		"a folder that others write": func(o *helper.Options) error {
			o.Socket = filepath.Join(w.dir, "open", "s")
			return mkdir(filepath.Dir(o.Socket), 0o777)
		},
		"another user's folder": func(o *helper.Options) error {
			if os.Geteuid() != 0 {
				t.Skip("needs root, to give files away")
			}
			o.Socket = filepath.Join(w.dir, "theirs", "s")
			if err := mkdir(filepath.Dir(o.Socket), 0o755); err != nil {
				return err
			}
			return os.Chown(filepath.Dir(o.Socket), nodeUID, nodeUID)
		},
		"no parent": func(o *helper.Options) error {
			o.Socket = filepath.Join(w.dir, "a", "b", "s")
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := w.options()
			if err := prepare(&o); err != nil {
				t.Fatal(err)
			}
			if err := serve(o); !fault.Is(err, fault.Unwritable) && !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
				t.Errorf("error %v (%s)", err, fault.HintOf(err))
			}
		})
	}
	o := w.options()
	o.Socket = filepath.Join(w.dir, "new", "s")
	if err := serve(o); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Dir(o.Socket)); err != nil || info.Mode() != os.ModeDir|os.ModeSticky|0o775 {
		t.Errorf("the new folder: %v, %v", info.Mode(), err)
	}
}

func mkdir(path string, mode os.FileMode) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// Without a TPM no request, whatever is in it, gets a key or a signature, and none breaks the helper.
func FuzzRequest(f *testing.F) {
	for i := range helper.Paths {
		for _, b := range []string{"", "{}", "null", `{"key":"0","message":"AAAA"}`, `{"key":"0","purpose":"renew-pop","payload":"AAAA"}`, `{"key":"0","csr_sha256":"AAAA"}`} {
			f.Add(uint8(i), []byte(b)) //nolint:gosec // there are eight paths
		}
	}
	dir := f.TempDir()
	store, err := tpmkey.New(tpmkey.Options{Device: filepath.Join(dir, "no-tpm")})
	if err != nil {
		f.Fatal(err)
	}
	handler := helper.Handler(helper.Options{DataDir: dir, TPM: store, Log: slog.New(slog.DiscardHandler)})
	f.Fuzz(func(t *testing.T, which uint8, body []byte) {
		path := helper.Paths[int(which)%len(helper.Paths)]
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, bytes.NewReader(body)))
		reads := strings.HasSuffix(path, "/config") || strings.HasSuffix(path, "/firmware-claims")
		if answer.Code == http.StatusOK && !reads {
			t.Errorf("%s with %q: %d %s", path, body, answer.Code, answer.Body)
		}
		if answer.Code != http.StatusOK && answer.Code != http.StatusBadRequest && answer.Code != http.StatusServiceUnavailable {
			t.Errorf("%s with %q: status %d", path, body, answer.Code)
		}
	})
}

// What a helper of another version, or something else, answers is an error and never a signature.
func TestStrangeAnswers(t *testing.T) {
	dir, err := os.MkdirTemp("", "helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, answer := range map[string]string{
		"nothing":            "",
		"garbage":            "\x00\x01\x02",
		"no JSON":            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
		"another member":     "HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n{\"x\":1}",
		"cut":                "HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n{\"document\":\"",
		"a refusal of words": "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno",
		"too large":          fmt.Sprintf("HTTP/1.1 200 OK\r\n\r\n{\"document\":%q}", strings.Repeat("x", helper.MaxMessage)),
		"a redirect":         "HTTP/1.1 302 Found\r\nLocation: http://example.com/\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1<<10))
					_, _ = io.WriteString(conn, answer)
					_ = conn.Close()
				}
			}()
			if document, err := helper.NewClient(socket).Config(t.Context()); err == nil {
				t.Errorf("the configuration is %q", document)
			}
		})
	}
}

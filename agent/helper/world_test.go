package helper_test

import (
	"bytes"
	"context"
	"crypto"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/statefile"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// nodeUID is a user who is nobody on a usual machine.
const nodeUID = 61234

// world is a helper with a TPM, and the folder that it serves.
type world struct {
	t      *testing.T
	tpm    *tpmkeytest.TPM // nil without one
	dir    string
	log    *lines
	client *helper.Client
	stop   func()
}

// newWorld starts a helper. The tests are its client as root, or as the node's own user.
func newWorld(t *testing.T, tpm *tpmkeytest.TPM) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "helper") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user's programs connect to the socket in it
		t.Fatal(err)
	}
	w := &world{t: t, tpm: tpm, dir: dir, log: &lines{}}
	w.client = helper.NewClient(w.socket())
	w.start()
	return w
}

func (w *world) socket() string { return filepath.Join(w.dir, "run", "helper.sock") }

func (w *world) data() string { return filepath.Join(w.dir, "data") }

func (w *world) options() helper.Options {
	w.t.Helper()
	device := filepath.Join(w.dir, "no-tpm")
	if w.tpm != nil {
		device = w.tpm.Device()
	}
	store, err := tpmkey.New(tpmkey.Options{Device: device, Timeout: 20 * time.Second})
	if err != nil {
		w.t.Fatal(err)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = nodeUID, nodeUID
	}
	return helper.Options{
		Socket: w.socket(), UID: uid, GID: gid, DataDir: w.data(), TPM: store,
		Hardware: hwclaims.Options{Root: "../../testdata/hosts/dell-r750-h100"}, Config: "site = \"site_1\"\n",
		Log: w.slog(),
	}
}

// start starts the helper, until the test ends or stop is called.
func (w *world) start() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	o := w.options()
	go func() { ended <- helper.Serve(ctx, o, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		w.t.Fatalf("the helper does not start: %v", err)
	}
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Errorf("the helper ended: %v", err)
		}
	})
	w.t.Cleanup(w.stop)
}

// keys returns the node's keys, which are in the TPM or not at all.
func (w *world) keys() *helper.Keys {
	w.t.Helper()
	keys, err := w.client.Keys(tpmkey.Required, w.slog())
	if err != nil {
		w.t.Fatal(err)
	}
	return keys
}

// newKey makes a key and puts it on the disk under a name.
func (w *world) newKey(name string) crypto.Signer {
	w.t.Helper()
	record, key, err := w.keys().New(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(name, record)
	return key
}

func (w *world) write(name string, content []byte) {
	w.t.Helper()
	dir, err := statefile.Open(w.data())
	if err != nil {
		w.t.Fatal(err)
	}
	defer dir.Close()
	if err := dir.Replace(name, content); err != nil {
		w.t.Fatal(err)
	}
}

// ask makes a call with any body and returns the answer's status and body.
func (w *world) ask(method, path string, body any) (int, string) {
	w.t.Helper()
	text, isText := body.(string)
	if !isText {
		b, err := json.Marshal(body)
		if err != nil {
			w.t.Fatal(err)
		}
		text = string(b)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.socket())
	}}}
	req, err := http.NewRequestWithContext(w.t.Context(), method, "http://helper"+path, bytes.NewReader([]byte(text)))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(answer)
}

// lines is a log that a test reads.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (w *world) slog() *slog.Logger { return slog.New(slog.NewTextHandler(w.log, nil)) }

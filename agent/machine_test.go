package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/statefile"
)

// recordedHost is a recorded server whose hardware is trusted.
const recordedHost = "../testdata/hosts/dell-r750-h100"

// anotherHost is the same server with a UUID and a serial of its own, made from name.
func anotherHost(t *testing.T, name string) string {
	t.Helper()
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS(recordedHost)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(name))
	for file, value := range map[string]string{
		"product_uuid":   fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		"product_serial": fmt.Sprintf("%X", sum[16:22]),
	} {
		if err := os.WriteFile(filepath.Join(root, "sys/class/dmi/id", file), []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// machine is a machine that joins a control plane: a folder for its configuration and its state, a recorded server's
// hardware, a key in a file.
type machine struct {
	t    *testing.T
	cp   *controlplanetest.ControlPlane
	dir  string
	log  *lines
	now  func() time.Time
	step func(op, name string)
	// sleep passes the waits of a join; nil waits.
	sleep func(context.Context, time.Duration) error
	euid  func() int // nil is the test's own
	url   string
	host  string
	more  string // lines of config.toml
	tpm   string // lines of [tpm]
}

func newMachine(t *testing.T, cp *controlplanetest.ControlPlane) *machine {
	t.Helper()
	return &machine{t: t, cp: cp, dir: t.TempDir(), log: &lines{}, now: time.Now, url: cp.GatewayURL, host: recordedHost, tpm: "mode = \"off\""}
}

func (m *machine) data() string { return filepath.Join(m.dir, "data") }

func (m *machine) config() *config.Config {
	m.t.Helper()
	path := m.cp.WriteConfig(m.t, m.dir, m.url, m.more+"\n[tpm]\n"+m.tpm+"\n[status]\nsocket = \""+m.socket()+"\"\n")
	c, err := config.Load(config.Options{Path: path, Flags: config.Flags{DataDir: m.data(), HostRoot: m.host}})
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

func (m *machine) socket() string { return filepath.Join(m.dir, "status.sock") }

func (m *machine) agent() *agent.Agent {
	m.t.Helper()
	var state []statefile.Option
	if m.step != nil {
		state = append(state, statefile.WithStep(m.step))
	}
	a, err := agent.New(agent.Options{
		Config: m.config(), Version: "test", Now: m.now, State: state, Sleep: m.sleep, EUID: m.euid,
		Log: slog.New(slog.NewTextHandler(m.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return a
}

// join joins with a token.
func (m *machine) join(token string) (agent.JoinResult, error) {
	m.t.Helper()
	return m.joinWithin(token, 3*time.Second)
}

func (m *machine) joinWithin(token string, patience time.Duration) (agent.JoinResult, error) {
	m.t.Helper()
	return m.agent().Join(m.t.Context(), agent.JoinOptions{Stdin: strings.NewReader(token), Patience: patience})
}

// run runs the daemon until the function that it returns is called, which returns the daemon's error.
func (m *machine) run() (stop func() error) {
	m.t.Helper()
	ctx, cancel := context.WithCancel(m.t.Context())
	ended := make(chan error, 1)
	a := m.agent()
	go func() { ended <- a.Run(ctx, agent.Notifier{}) }()
	var once sync.Once
	var err error
	stop = func() error {
		once.Do(func() { cancel(); err = <-ended })
		return err
	}
	m.t.Cleanup(func() { _ = stop() })
	return stop
}

// files returns the names in the data directory.
func (m *machine) files() []string {
	m.t.Helper()
	entries, err := os.ReadDir(m.data())
	if err != nil && !os.IsNotExist(err) {
		m.t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != statefile.LockName {
			names = append(names, e.Name())
		}
	}
	return names
}

// newToken makes a token with a number of uses.
func newToken(t *testing.T, cp *controlplanetest.ControlPlane, uses int64) string {
	t.Helper()
	return cp.NewToken(t, tokens.CreateRequest{MaxUses: &uses})
}

// usesLeft returns how often a token may still be used.
func usesLeft(t *testing.T, cp *controlplanetest.ControlPlane, token string) int64 {
	t.Helper()
	id, _, _ := strings.Cut(strings.TrimPrefix(token, "bcjt_"), ".")
	return cp.Token(t, id).UsesLeft
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

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, within time.Duration, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not: %s", within, what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func openDir(t *testing.T, path string) *statefile.Dir {
	t.Helper()
	dir, err := statefile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

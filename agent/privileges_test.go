package agent_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/internal/fault"
)

// separated is a machine with a [helper] for the user nobody, whose helper runs until the test ends.
func separated(t *testing.T, cp *controlplanetest.ControlPlane) (m *machine, socket string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, which the helper is")
	}
	dir, err := os.MkdirTemp("", "agent") // t.TempDir is too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m = newMachine(t, cp)
	socket = filepath.Join(dir, "run", "helper.sock")
	m.more = fmt.Sprintf("[helper]\nuser = \"nobody\"\nsocket = %q\n", socket)
	return m, socket
}

func runHelper(t *testing.T, m *machine, socket string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	a := m.agent()
	go func() { ended <- a.RunHelper(ctx, agent.Notifier{}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the helper ended: %v", err)
		}
	})
	eventually(t, "the helper listens", 5*time.Second, func() bool { _, err := os.Stat(socket); return err == nil })
}

// A node that can read no configuration gets what it needs of it from the helper; where there is no helper, it is told what
// is wrong with its own.
// Req: HL-001
func TestConfigurationFromTheHelper(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, socket := separated(t, cp)
	missing := errors.New("there is none")
	if _, err := agent.ConfigFromHelper(t.Context(), socket, config.Flags{}, missing); !errors.Is(err, missing) {
		t.Errorf("without a helper: %v", err)
	}
	runHelper(t, m, socket)
	got, err := agent.ConfigFromHelper(t.Context(), socket, config.Flags{}, missing)
	if err != nil {
		t.Fatal(err)
	}
	want := m.config()
	want.Path = config.DefaultPath
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The node's side takes the root-only claims from the helper, and comes to the hardware that root sees.
func TestClaimsFromTheHelper(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, socket := separated(t, cp)
	want, err := m.agent().Claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	node := *m
	node.euid = func() int { return 65534 }
	node.host = anotherHost(t, "blind")
	path := filepath.Join(node.host, "sys/class/dmi/id/product_uuid")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path, 0o700); err != nil { // what no user can read
		t.Fatal(err)
	}
	if _, err := node.agent().Claims(t.Context()); !fault.Is(err, fault.Unreachable) {
		t.Errorf("without a helper: %v", err)
	}
	runHelper(t, m, socket)
	got, err := node.agent().Claims(t.Context())
	if err != nil || got.Incomplete() != nil || got.Assess().HardwareKey == nil {
		t.Fatalf("%+v, %v", got, err)
	}
	if diff := cmp.Diff(want.Claims, got.Claims); diff != "" {
		t.Error(diff)
	}
}

// A join that fails gives nothing away: the identity is handed over when there is one.
// Req: RS-011
func TestRefusedJoinHandsNothingOver(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := separated(t, cp)
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Fatal(err)
	}
	uid, err := strconv.Atoi(nobody.Uid)
	if err != nil {
		t.Fatal(err)
	}
	before := *m
	before.more = ""
	if _, err := before.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	reset := func(token string) error {
		_, err := m.reset(token)
		return err
	}
	if err := reset("bcjt_jt_01k5w0x5eqf2rvs3y5c6hz8m9t.AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"); !fault.Is(err, fault.AccessDenied) {
		t.Fatalf("error %v", err)
	}
	for _, name := range []string{"", "identity.json", "node.key"} {
		if got := ownerOf(t, filepath.Join(m.data(), name)); got != 0 {
			t.Errorf("after a refusal %q belongs to %d", name, got)
		}
	}
	if err := reset(reclaimToken(t, cp)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "identity.json", "node.key"} {
		if got := ownerOf(t, filepath.Join(m.data(), name)); got != uid {
			t.Errorf("%q belongs to %d", name, got)
		}
	}
}

func ownerOf(t *testing.T, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

package vm_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/better-compute/bcd/e2e/vm"
)

// How long a test waits, where everything is emulated on a busy host.
const (
	bootPatience    = 5 * time.Minute
	commandPatience = 2 * time.Minute
)

// image is the folder of the image. Without one the tests of this package do not run: "make e2e" makes it.
func image(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("BCD_VM_IMAGE")
	if dir == "" {
		t.Skip("BCD_VM_IMAGE names no image of a server: make e2e")
	}
	if names := vm.Missing(dir); len(names) != 0 {
		t.Fatalf("missing: %q", names)
	}
	return dir
}

// build builds a program as the Makefile does, into a folder.
func build(t *testing.T, dir, pkg string) string {
	t.Helper()
	path := filepath.Join(dir, filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", "grpcnotrace", "-o", path, pkg)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// server is a server on which bcd is installed as a package would.
type server struct {
	t *testing.T
	vm.Server
	on *vm.Running
}

// newServer puts what an administrator brings into the folder that the guest shares.
func newServer(t *testing.T, p *plane, dir string) *server {
	t.Helper()
	share := filepath.Join(dir, "share")
	if err := os.CopyFS(filepath.Join(share, "units"), os.DirFS("../../packaging/systemd")); err != nil {
		t.Fatal(err)
	}
	build(t, share, "./cmd/bcd")
	s := &server{t: t, Server: vm.Server{
		Image: image(t), Share: share,
		UUID: "4c4c4544-0037-5810-804b-b7c04f395132", Serial: "7XK9Q2", Vendor: "Contoso, Inc.", Product: "Server 1000", MAC: "3c:ec:ef:10:20:30",
		Name: gateway, Port: gatewayPort, HostPort: p.port,
	}}
	s.bring("config.toml", p.read("bcd/config.toml"))
	t.Cleanup(func() {
		if s.on != nil {
			_ = s.on.Kill() // the test has failed already
		}
	})
	return s
}

// bring puts a file into the shared folder.
func (s *server) bring(name, content string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.Share, name), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// boot turns the server on.
func (s *server) boot() {
	s.t.Helper()
	begun := time.Now()
	ctx, cancel := context.WithTimeout(s.t.Context(), bootPatience)
	defer cancel()
	on, err := s.Boot(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	s.on = on
	s.t.Logf("booted in %s", time.Since(begun).Round(time.Second))
}

// off shuts the server down.
func (s *server) off() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), bootPatience)
	defer cancel()
	if err := s.on.Off(ctx); err != nil {
		s.t.Fatal(err)
	}
	s.on = nil
}

// run runs a script that must end with the exit status.
func (s *server) run(status int, script string) vm.Result {
	s.t.Helper()
	r := s.try(script)
	if r.Status != status {
		s.t.Fatalf("%s\nexit status %d, want %d\n%s%s\n%s", script, r.Status, status, r.Stdout, r.Stderr, s.try("journalctl -u bcd --no-pager -n 60").Stdout)
	}
	return r
}

// try runs a script that may fail.
func (s *server) try(script string) vm.Result {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), commandPatience)
	defer cancel()
	begun := time.Now()
	r, err := s.on.Run(ctx, script)
	if err != nil {
		s.t.Fatalf("%s: %v\n%s", script, err, s.on.Console())
	}
	if took := time.Since(begun); took > 5*time.Second {
		s.t.Logf("%.60q took %s", script, took.Round(time.Second))
	}
	return r
}

// install installs bcd, its unit and its configuration on a new disk, and starts nothing.
func (s *server) install() {
	s.t.Helper()
	s.run(0, `set -e
cd `+vm.ShareInGuest+`
install -m 0755 bcd /usr/local/bin/bcd
install -m 0644 units/bcd.service /etc/systemd/system/bcd.service
install -d -m 0755 /etc/bcd
sed '/^data_dir/,$d' config.toml > /etc/bcd/config.toml
printf '[tpm]\nmode = "required"\n' >> /etc/bcd/config.toml
chmod 0600 /etc/bcd/config.toml
sync
systemctl daemon-reload`)
}

// status is what "bcd status" tells.
type status struct {
	State    string `json:"state"`
	Problem  string `json:"problem"`
	Identity struct {
		NodeID string `json:"node_id"`
		Key    string `json:"key"`
		Serial string `json:"certificate_serial"`
	} `json:"identity"`
}

// status asks the daemon, in whatever state it is.
func (s *server) status() (st status) {
	s.t.Helper()
	r := s.try("bcd status --output json")
	if err := json.Unmarshal([]byte(r.Stdout), &st); err != nil {
		s.t.Logf("bcd status: exit status %d: %s%s", r.Status, r.Stdout, r.Stderr)
		return status{}
	}
	return st
}

// waitFor waits until the daemon's status is as wanted, and returns it.
func (s *server) waitFor(what string, patience time.Duration, holds func(status) bool) status {
	s.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Second) {
		st := s.status()
		if holds(st) {
			return st
		}
		if time.Now().After(end) {
			s.t.Fatalf("not %s after %s: %+v\n%s", what, patience, st, s.try("systemctl status bcd --no-pager; journalctl -u bcd --no-pager -n 60").Stdout)
		}
	}
}

// connected waits until the daemon has a session as a node.
func (s *server) connected(node string) status {
	s.t.Helper()
	return s.waitFor("connected as "+node, commandPatience, func(st status) bool { return st.State == "connected" && st.Identity.NodeID == node })
}

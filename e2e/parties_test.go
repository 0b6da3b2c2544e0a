package e2e_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// plane is a control plane as a process.
type plane struct {
	t       *testing.T
	program string
	dir     string
	env     []string
	server  *process
}

// startPlane makes a PKI and starts a server on free ports, as an operator does by hand.
func startPlane(t *testing.T, program string, env []string, flags ...string) *plane {
	t.Helper()
	return startPlaneWith(t, program, env, "", flags...)
}

// startPlaneWith does the same with a server.toml.
func startPlaneWith(t *testing.T, program string, env []string, config string, flags ...string) *plane {
	t.Helper()
	p := &plane{t: t, program: program, dir: filepath.Join(shortDir(t), "cp")}
	p.env = append(env, "BETTER_COMPUTE_SECRET=correct horse battery staple", "BETTER_COMPUTE_CONTEXT="+filepath.Join(p.dir, "admin.toml"))
	p.run("pki", "init", "--trust-domain", "compute.example.com", "--dir", p.dir)
	ports := []string{"--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0"}
	if config != "" {
		ports = nil // they are in the file
		config = "[api]\nlisten = \"127.0.0.1:0\"\n[gateway]\nlisten = \"127.0.0.1:0\"\n" + config
		if err := os.WriteFile(filepath.Join(p.dir, "server.toml"), []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p.server = start(t, p.env, program, slices.Concat([]string{"serve", "--dir", p.dir}, ports, flags)...)
	p.server.waitFor("\nready\n", 1)
	return p
}

// shortDir returns a folder whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "e2e-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// run runs a command of the operator.
func (p *plane) run(args ...string) string {
	p.t.Helper()
	out, _ := run(p.t, 0, p.env, p.program, args...)
	return out
}

// token makes a token for one machine, in a file.
func (p *plane) token(name string) (path string) {
	p.t.Helper()
	path = filepath.Join(p.dir, name)
	p.run("join-tokens", "create", "--ttl", "10m", "--out", path)
	return path
}

// event is one of the control plane's.
type event struct {
	Type string         `json:"type"`
	Data map[string]any `json:"data"`
}

// events returns the events of a type, oldest first.
func (p *plane) events(kind string) (found []event) {
	p.t.Helper()
	for line := range strings.Lines(p.run("events", "list", "--output", "json")) {
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Fatalf("%v: %s", err, line)
		}
		if e.Type == kind {
			found = append(found, e)
		}
	}
	return found
}

// recordedHost is a recorded server whose hardware is trusted.
const recordedHost = "../testdata/hosts/dell-r750-h100"

// machine is a machine that runs bcd: a recorded server's hardware, and a configuration and state of its own.
type machine struct {
	t       *testing.T
	plane   *plane
	program string
	env     []string
	dir     string
}

// newMachine configures a machine with the files that the control plane's start wrote for it, and more lines.
func newMachine(t *testing.T, p *plane, program, more string) *machine {
	t.Helper()
	m := &machine{t: t, plane: p, program: program, env: environment(), dir: shortDir(t)}
	host := filepath.Join(m.dir, "host")
	if err := os.CopyFS(host, os.DirFS(recordedHost)); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(m.dir))
	m.write("host/sys/class/dmi/id/product_uuid", fmt.Sprintf("%x-%x-%x-%x-%x\n", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
	m.write("host/sys/class/dmi/id/product_serial", fmt.Sprintf("%X\n", sum[16:22]))
	config := p.read("bcd/config.toml")
	head, _, found := strings.Cut(config, "data_dir = ")
	if !found {
		t.Fatalf("no data_dir in the configuration:\n%s", config)
	}
	m.write("config.toml", head+fmt.Sprintf("data_dir = %q\nhost_root = %q\n", m.data(), host)+
		fmt.Sprintf("[status]\nsocket = %q\n", filepath.Join(m.dir, "status.sock"))+more)
	m.write("join-encryption.jwk", p.read("bcd/join-encryption.jwk"))
	return m
}

func (p *plane) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func (m *machine) write(name, content string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, name), []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) data() string { return filepath.Join(m.dir, "data") }

// state returns the content of a file of the machine's state.
func (m *machine) state(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.data(), name))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// run runs a command of bcd that must end with the exit status.
func (m *machine) run(exit int, args ...string) (stdout, stderr string) {
	m.t.Helper()
	return run(m.t, exit, m.env, m.program, append(args, "--config", filepath.Join(m.dir, "config.toml"))...)
}

// join joins with a token file and returns the node's id.
func (m *machine) join(tokenFile string) (node string) {
	m.t.Helper()
	out, _ := m.run(0, "join", "--token-file", tokenFile)
	node, _, found := strings.Cut(strings.TrimPrefix(out, "joined: "), " ")
	if !found || !strings.HasPrefix(node, "node_") {
		m.t.Fatalf("the join says %q", out)
	}
	return node
}

// node starts the daemon.
func (m *machine) node() *process {
	m.t.Helper()
	return start(m.t, m.env, m.program, "node", "--config", filepath.Join(m.dir, "config.toml"))
}

// status is what "bcd status" tells, as far as the tests ask.
type status struct {
	State    string `json:"state"`
	Identity struct {
		NodeID   string    `json:"node_id"`
		Key      string    `json:"key"`
		Serial   string    `json:"certificate_serial"`
		NotAfter time.Time `json:"not_after"`
	} `json:"identity"`
}

// status asks the daemon, whatever state it is in.
func (m *machine) status(exit int) status {
	m.t.Helper()
	out, _ := m.run(exit, "status", "--output", "json")
	var s status
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	return s
}

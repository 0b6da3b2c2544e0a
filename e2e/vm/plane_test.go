package vm_test

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// plane is the control plane, on the host.
type plane struct {
	t       *testing.T
	program string
	dir     string
	port    int // of the gateway
}

// gateway is the gateway's name in the guest, and gatewayPort its port there.
const (
	gateway     = "gateway.example.com"
	gatewayPort = 8443
)

// startPlane starts a control plane for machines with a TPM alone. The pool of its site takes the TPMs of the makers.
func startPlane(t *testing.T, dir string, makers []byte, life time.Duration) *plane {
	t.Helper()
	p := &plane{t: t, program: build(t, dir, "./cmd/better-compute"), dir: filepath.Join(dir, "cp")}
	p.run("pki", "init", "--trust-domain", "compute.example.com", "--dir", p.dir)
	config := `[api]
listen = "` + freeAddress(t) + `"
[gateway]
listen = "127.0.0.1:0"
url = "https://` + gateway + ":" + strconv.Itoa(gatewayPort) + `"
[join]
cert_ttl_seconds = ` + strconv.Itoa(int(life.Seconds())) + "\n[attestors.tpm]\n"
	p.write("server.toml", []byte(config))
	stop := p.serve() // the first start makes the site and the pool, which have to be named
	site := onlyID(t, "site", p.run("sites", "list", "--output", "json"))
	pool := onlyID(t, "pool", p.run("pools", "list", "--output", "json"))
	stop()
	p.write("makers.pem", makers)
	completed, err := os.ReadFile(filepath.Join(p.dir, "server.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(completed, []byte("[attestors.tpm]\n")) {
		t.Fatalf("the first start wrote\n%s", completed)
	}
	p.write("server.toml", []byte(strings.Replace(string(completed), "[attestors.tpm]\n",
		"[attestors.tpm]\nek_roots = [\"makers.pem\"]\npools = { "+site+" = \""+pool+"\" }\n", 1)))
	t.Cleanup(p.serve())
	return p
}

// freeAddress is an address of loopback that nobody listens on: the operator's context names it, so it must stay.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // nothing was accepted
	return l.Addr().String()
}

// onlyID is the id in a list of one thing.
func onlyID(t *testing.T, kind, list string) string {
	t.Helper()
	found := regexp.MustCompile(`"id": ?"(`+kind+`_[^"]+)"`).FindAllStringSubmatch(list, -1)
	if len(found) != 1 {
		t.Fatalf("%d of one %s: %s", len(found), kind, list)
	}
	return found[0][1]
}

// serve starts the server and returns what ends it.
func (p *plane) serve() (stop func()) {
	p.t.Helper()
	cmd := exec.Command(p.program, "serve", "--dir", p.dir)
	cmd.Env = p.env()
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		p.t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the server has it too
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	stop = func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			p.t.Errorf("serve: %v\n%s", err, p.read("log"))
		}
	}
	listens := regexp.MustCompile(`\(listens on 127\.0\.0\.1:([0-9]+)\)[^$]*\nready\n`)
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if found := listens.FindStringSubmatch(p.read("log")); found != nil {
			p.port, _ = strconv.Atoi(found[1]) // digits
			return stop
		}
		if time.Now().After(end) {
			stop()
			p.t.Fatalf("serve is not ready:\n%s", p.read("log"))
		}
	}
}

func (p *plane) env() []string {
	return append(os.Environ(), "BETTER_COMPUTE_SECRET=correct horse battery staple", "BETTER_COMPUTE_CONTEXT="+filepath.Join(p.dir, "admin.toml"))
}

// run runs a command of the operator's.
func (p *plane) run(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(p.t.Context(), p.program, args...)
	cmd.Env = p.env()
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		p.t.Fatalf("%q: %v\n%s%s", args, err, out.String(), said.String())
	}
	return out.String()
}

func (p *plane) read(name string) string {
	p.t.Helper()
	b, err := os.ReadFile(filepath.Join(p.dir, name))
	if err != nil {
		p.t.Fatal(err)
	}
	return string(b)
}

func (p *plane) write(name string, content []byte) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), content, 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// events returns the data of the events of a type, oldest first.
func (p *plane) events(kind string) (found []map[string]any) {
	p.t.Helper()
	for line := range strings.Lines(p.run("events", "list", "--output", "json")) {
		var e struct {
			Type string         `json:"type"`
			Data map[string]any `json:"data"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			p.t.Fatalf("%v: %s", err, line)
		}
		if e.Type == kind {
			found = append(found, e.Data)
		}
	}
	return found
}

// node is what the control plane shows of a node.
func (p *plane) node(id string) map[string]string {
	p.t.Helper()
	shown := map[string]string{}
	row := regexp.MustCompile(`^(.*\S)  +(\S.*)$`)
	for line := range strings.Lines(p.run("nodes", "get", id)) {
		if f := row.FindStringSubmatch(strings.TrimSpace(line)); f != nil {
			shown[f[1]] = f[2]
		}
	}
	return shown
}

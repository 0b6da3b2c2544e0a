package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reclaim makes a token that lets a known machine join again, in a file.
func (p *plane) reclaim(name string) (path string) {
	p.t.Helper()
	path = filepath.Join(p.dir, name)
	p.run("join-tokens", "create", "--ttl", "10m", "--allow-reclaim", "--out", path)
	return path
}

// needRoot skips a test of what is for root.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a reset is for root")
	}
}

// generation waits until the machine's daemon is connected in an identity generation.
func (m *machine) generation(n int) {
	m.t.Helper()
	want := fmt.Sprintf(", generation %d\n", n)
	said := ""
	eventually(m.t, func() bool {
		cmd := exec.CommandContext(m.t.Context(), m.program, "status", "--config", filepath.Join(m.dir, "config.toml"))
		cmd.Env = m.env
		out, err := cmd.CombinedOutput()
		said = string(out)
		return err == nil && strings.Contains(said, want)
	}, func() string { return "not connected" + want + said })
}

// The guide's command beside a daemon that runs: the same process goes on as the new identity. One that is refused leaves the
// files and the session as they were.
// Req: RS-003 RS-005 RS-008
func TestResetBesideTheDaemon(t *testing.T) {
	t.Parallel()
	needRoot(t)
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	node := m.join(p.token("token"))
	daemon := m.node()
	daemon.waitFor(`msg="open session"`, 1)
	identity, key := m.state("identity.json"), m.state("node.key")

	_, stderr := m.run(77, "join", "--reset", "--yes", "--token-file", p.token("wrong"))
	if !strings.Contains(stderr, "\nhint: nothing was moved; ") || m.state("identity.json") != identity || m.state("node.key") != key {
		t.Errorf("refused: %s", stderr)
	}
	m.generation(1)

	token, err := os.Open(p.reclaim("reset"))
	if err != nil {
		t.Fatal(err)
	}
	defer token.Close()
	cmd := exec.CommandContext(t.Context(), m.program, "join", "--config", filepath.Join(m.dir, "config.toml"), "--reset", "--yes")
	cmd.Env, cmd.Stdin = m.env, token
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "joined: "+node+" ") {
		t.Fatalf("%v: %s", err, out)
	}
	m.generation(2)
	if got := m.moved("identity.json"); got != identity {
		t.Error("the old identity is not what it was")
	}
	if got := m.moved("node.key"); got != key {
		t.Error("the old key is not what it was")
	}
	daemon.stop()
}

// moved is the content of the only file that a reset moved from a name.
func (m *machine) moved(name string) string {
	m.t.Helper()
	found, err := filepath.Glob(filepath.Join(m.data(), name+".reset-*"))
	if err != nil || len(found) != 1 {
		m.t.Fatalf("%q, %v", found, err)
	}
	return m.state(filepath.Base(found[0]))
}

// A reset that is killed at any moment leaves a machine that the same command, with the same token, brings back; the daemon
// beside it lives on.
func TestResetIsKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	needRoot(t)
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	node := m.join(p.token("token"))
	daemon := m.node()
	daemon.waitFor(`msg="open session"`, 1)
	identity := m.state("identity.json")
	token := p.reclaim("reset")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 10 {
		reset := start(t, m.env, m.program, "join", "--config", filepath.Join(m.dir, "config.toml"), "--reset", "--yes", "--token-file", token)
		time.Sleep(time.Duration(r.Int64N(int64(150 * time.Millisecond))))
		reset.kill()
	}
	if moved, err := filepath.Glob(filepath.Join(m.data(), "identity.json.reset-*")); err != nil || len(moved) == 0 {
		if out, _ := m.run(0, "join", "--reset", "--yes", "--token-file", token); !strings.HasPrefix(out, "joined: "+node+" ") {
			t.Errorf("the last reset says %q, %v", out, err)
		}
	}
	m.generation(2)
	if got := m.moved("identity.json"); got != identity {
		t.Error("the old identity is not what it was")
	}
	select {
	case <-daemon.ended:
		t.Errorf("the daemon ended:\n%s", daemon)
	default:
	}
	daemon.stop()
}

// allow adds a section to the server's settings and starts it again.
func (p *plane) allow(section string) {
	p.t.Helper()
	path := filepath.Join(p.dir, "server.toml")
	if err := os.WriteFile(path, []byte(p.read("server.toml")+"\n"+section+"\n"), 0o600); err != nil {
		p.t.Fatal(err)
	}
	p.serveAgain()
}

// serveAgain stops the server and starts it again, perhaps on other ports.
func (p *plane) serveAgain() {
	p.t.Helper()
	p.server.stop()
	p.server = start(p.t, p.env, p.program, "serve", "--dir", p.dir)
	p.server.waitFor("\nready\n", 1)
}

// moveTo tells the machine where the gateway is now.
func (m *machine) moveTo(p *plane) {
	m.t.Helper()
	line := func(config string) string {
		for l := range strings.Lines(config) {
			if strings.HasPrefix(l, "gateway_url") {
				return l
			}
		}
		m.t.Fatalf("no gateway_url in\n%s", config)
		return ""
	}
	b, err := os.ReadFile(filepath.Join(m.dir, "config.toml"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.write("config.toml", strings.Replace(string(b), line(string(b)), line(p.read("bcd/config.toml")), 1))
}

// A machine that was off while its certificate expired comes back by itself for seven days, and then says which command it
// takes.
// Req: AT-004
func TestExpiredCertificate(t *testing.T) {
	t.Parallel()
	for away, back := range map[string]bool{"25h": true, "190h": true, "193h": false} { // the certificate lasts 24 hours
		t.Run(away, func(t *testing.T) {
			t.Parallel()
			offset := filepath.Join(shortDir(t), "offset")
			clock := &machine{t: t, dir: filepath.Dir(offset)}
			clock.write("offset", "0s")
			env := environment("BC_CLOCK_OFFSET=" + offset)
			p := startPlane(t, build(t, "./cmd/better-compute", "testclock"), env)
			p.allow("[attestors.x509pop]")
			m := newMachine(t, p, build(t, "./cmd/bcd", "testclock"), keyInFile)
			m.env = env
			node := m.join(p.token("token"))
			clock.write("offset", away)
			p.serveAgain()
			m.moveTo(p)
			daemon := m.node()
			if !back {
				daemon.waitFor(`msg="park node"`, 1)
				if said := daemon.String(); !strings.Contains(said, "bcd join --reset --yes") {
					t.Errorf("it does not say what to do:\n%s", said)
				}
				return
			}
			daemon.waitFor(`msg="join again with expired certificate"`, 1)
			m.generation(1)
			if got := m.status(0).Identity.NodeID; got != node {
				t.Errorf("it came back as %s", got)
			}
			daemon.stop()
		})
	}
}

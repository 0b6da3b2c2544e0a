package e2e_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A site agent as an operator runs it: a site token, a join, a session, vouches across renewals, and the end of its identity.
// Req: AT-010
func TestSiteAgent(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment(), "--cert-ttl", "8s")
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	token := filepath.Join(p.dir, "site-token")
	p.run("site-tokens", "create", "--ttl", "10m", "--out", token)

	daemon := start(t, m.env, m.program, "site", "--config", filepath.Join(m.dir, "config.toml"), "--token-file", token)
	daemon.waitFor(`msg="open session"`, 1)
	if _, err := os.Stat(token); !os.IsNotExist(err) {
		t.Error("the token's file is there after the join")
	}
	first := m.status(0)
	if role := m.role(); role != "site" {
		t.Errorf("role %q", role)
	}
	if shown := p.run("nodes", "get", first.Identity.NodeID); !regexp.MustCompile(`(?m)^role +site$`).MatchString(shown) {
		t.Errorf("the control plane shows it as\n%s", shown)
	}
	vouch := func(exit int, epoch string) (stderr string) {
		_, stderr = m.run(exit, "site", "vouch", "--boot-mac", "b4:96:91:a7:00:01", "--boot-lease-epoch", epoch)
		return stderr
	}
	vouch(0, "1")
	daemon.waitFor("msg=renewed", 2)
	daemon.waitFor(`msg="open session"`, 3)
	vouch(0, "2") // with the renewed key
	if said := vouch(77, "1"); !strings.Contains(said, "refuses the vouch") {
		t.Errorf("an older boot: %s", said)
	}
	if got := p.events("security.vouch.refused"); len(got) != 1 || got[0].Data["reason"] != "older-epoch" || got[0].Data["nodeId"] != first.Identity.NodeID {
		t.Errorf("events %v", got)
	}
	if said := daemon.String(); strings.Contains(said, "lose session") || strings.Contains(said, "level=ERROR") {
		t.Errorf("it lost a session:\n%s", said)
	}

	// What is told while the control plane is away is kept.
	p.server.stop()
	deadline := time.Now().Add(patience)
	for !strings.Contains(daemon.String(), "lose session") {
		if time.Now().After(deadline) {
			t.Fatal("the agent does not notice")
		}
		time.Sleep(20 * time.Millisecond)
	}
	if said := vouch(75, "3"); !strings.Contains(said, "keeps the vouch") {
		t.Errorf("without a session: %s", said)
	}

	// Its identity is not for a node's daemon.
	daemon.signal(syscall.SIGTERM)
	<-daemon.ended
	if _, said := m.run(78, "node"); !strings.Contains(said, `hint: run "bcd site"`) {
		t.Errorf("bcd node: %s", said)
	}
}

// role is the role that "bcd status" shows.
func (m *machine) role() string {
	m.t.Helper()
	out, _ := m.run(0, "status", "--output", "json")
	var s struct {
		Identity struct {
			Role string `json:"role"`
		} `json:"identity"`
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		m.t.Fatal(err)
	}
	return s.Identity.Role
}

// Revoking a site agent ends its session at once, and what it vouches for then is not recorded.
func TestRevokedSiteAgent(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	token := filepath.Join(p.dir, "site-token")
	p.run("site-tokens", "create", "--ttl", "10m", "--out", token)
	m.run(0, "join", "--role", "site", "--token-file", token)
	daemon := start(t, m.env, m.program, "site", "--config", filepath.Join(m.dir, "config.toml"))
	daemon.waitFor(`msg="open session"`, 1)
	p.run("nodes", "revoke-identity", m.status(0).Identity.NodeID, "--yes")
	daemon.waitFor(`msg="lose session"`, 1)
	if _, said := m.run(75, "site", "vouch", "--boot-mac", "b4:96:91:a7:00:01", "--boot-lease-epoch", "1"); !strings.Contains(said, "certificate-revoked") {
		t.Errorf("a revoked agent's vouch: %s", said)
	}
}

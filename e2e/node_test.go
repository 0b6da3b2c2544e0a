package e2e_test

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// keyInFile makes keys in files, also on a machine that has a TPM.
const keyInFile = "[tpm]\nmode = \"off\"\n"

// The two halves as an operator runs them: a join, a session, two renewals, and an end in order.
// Req: DV-002 JF-001 JF-002 JF-003 JF-005 JF-010 JF-079
func TestJoinConnectAndRenew(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment(), "--cert-ttl", "8s")
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	node := m.join(p.token("token"))
	if list := p.run("nodes", "list"); !strings.Contains(list, node) {
		t.Errorf("the control plane does not list it:\n%s", list)
	}
	if got := m.status(1).Identity; got.NodeID != node || got.Key != "file" {
		t.Errorf("identity on the disk: %+v", got)
	}
	for name, mode := range map[string]os.FileMode{"": 0o700, "node.key": 0o600, "identity.json": 0o600} {
		if info, err := os.Stat(filepath.Join(m.data(), name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}

	daemon := m.node()
	daemon.waitFor(`msg="open session"`, 1)
	daemon.signal(syscall.SIGHUP) // a closed terminal is no reason to leave
	first := m.status(0)
	if ports := listeningPorts(t, daemon.cmd.Process.Pid); len(ports) != 0 {
		t.Errorf("the daemon listens on TCP: %q", ports)
	}
	daemon.waitFor("msg=renewed", 2)
	daemon.waitFor(`msg="open session"`, 3)
	last := m.status(0)
	if first.Identity.NodeID != node || last.Identity.NodeID != node || first.Identity.Serial == last.Identity.Serial || last.State != "connected" {
		t.Errorf("first %+v, last %+v", first, last)
	}
	if said := daemon.String(); strings.Contains(said, "lose session") || strings.Contains(said, "level=WARN") {
		t.Errorf("it lost a session:\n%s", said)
	}
	begun := time.Now()
	daemon.stop()
	if took := time.Since(begun); took > 3*time.Second {
		t.Errorf("it took %s to stop", took)
	}
	p.server.stop()
}

// listeningPorts returns the TCP sockets of the process that listen, as the kernel's tables have them.
func listeningPorts(t *testing.T, pid int) (found []string) {
	t.Helper()
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	fds, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]bool{}
	for _, fd := range fds {
		target, err := os.Readlink(filepath.Join(proc, "fd", fd.Name()))
		if inode, found := strings.CutPrefix(target, "socket:["); err == nil && found {
			own[strings.TrimSuffix(inode, "]")] = true
		}
	}
	if len(own) == 0 {
		t.Fatal("the process has no socket at all")
	}
	for _, table := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(filepath.Join(proc, "net", table))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			const listen = "0A"
			if len(f) > 9 && f[3] == listen && own[f[9]] {
				found = append(found, table+" "+f[1])
			}
		}
	}
	return found
}

// A daemon that is killed at any moment, renewals included, comes back as the same node.
// Req: RN-044
func TestKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment(), "--cert-ttl", "10s")
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	node := m.join(p.token("token"))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	serials := map[string]bool{}
	for kills := 0; kills < 8 || len(serials) < 2; kills++ { // until it has renewed, too
		daemon := m.node()
		daemon.waitFor(`msg="open session"`, 1)
		serials[m.status(0).Identity.Serial] = true
		time.Sleep(time.Duration(r.Int64N(int64(time.Second))))
		daemon.kill()
	}
	daemon := m.node()
	daemon.waitFor(`msg="open session"`, 1)
	if got := m.status(0).Identity.NodeID; got != node {
		t.Errorf("it came back as %s, joined as %s", got, node)
	}
	if got := p.events("node.joined"); len(got) != 1 {
		t.Errorf("%d nodes joined", len(got))
	}
	daemon.stop()
}

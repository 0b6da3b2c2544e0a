package e2e_test

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// nodeUser is a user that every machine has, and that may do nothing.
const nodeUser = "nobody"

// separated is a machine whose node runs as another user than root, beside a helper that holds its TPM.
type separated struct {
	*machine
	tpm      *softwareTPM
	uid, gid int
	helper   *process
}

func newSeparated(t *testing.T, p *plane) *separated {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be root and another user")
	}
	u, err := user.Lookup(nodeUser)
	if err != nil {
		t.Skipf("the machine has no user %q: %v", nodeUser, err)
	}
	s := &separated{tpm: newSoftwareTPM(t)}
	if s.uid, err = strconv.Atoi(u.Uid); err != nil {
		t.Fatal(err)
	}
	if s.gid, err = strconv.Atoi(u.Gid); err != nil {
		t.Fatal(err)
	}
	// The device is root's alone. The rest of the machine is everybody's to pass through.
	if err := os.Chmod(s.tpm.socket(), 0o600); err != nil {
		t.Fatal(err)
	}
	program := build(t, "./cmd/bcd")
	s.machine = newMachine(t, p, program, "")
	for _, dir := range []string{programs, filepath.Dir(program), s.dir} {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the node's user runs the program
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile(filepath.Join(s.dir, "config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(config), "[status]")
	s.write("config.toml", head+fmt.Sprintf("[status]\nsocket = %q\n[tpm]\nmode = \"required\"\ndevice = %q\n[helper]\nuser = %q\nsocket = %q\n",
		filepath.Join(s.dir, "run", "status.sock"), "unix:"+s.tpm.socket(), nodeUser, s.socket()))
	return s
}

func (s *separated) socket() string { return filepath.Join(s.dir, "run", "helper.sock") }

// startHelper starts the helper as root.
func (s *separated) startHelper() {
	s.t.Helper()
	s.helper = start(s.t, s.env, s.program, "helper", "--config", filepath.Join(s.dir, "config.toml"))
	s.helper.waitFor(`msg="serve node"`, 1)
}

// as returns a command of bcd that runs as another user, with the configuration as systemd's LoadCredential= gives it.
func (s *separated) as(uid, gid int, args ...string) *exec.Cmd {
	s.t.Helper()
	credentials, err := os.MkdirTemp(s.dir, "credentials")
	if err != nil {
		s.t.Fatal(err)
	}
	config, err := os.ReadFile(filepath.Join(s.dir, "config.toml"))
	if err != nil {
		s.t.Fatal(err)
	}
	copied := filepath.Join(credentials, "config.toml")
	if err := os.WriteFile(copied, config, 0o400); err != nil {
		s.t.Fatal(err)
	}
	for _, path := range []string{copied, credentials} {
		if err := os.Chown(path, uid, gid); err != nil {
			s.t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(s.t.Context(), s.program, args...)
	cmd.Env = append(s.env[:len(s.env):len(s.env)], "CREDENTIALS_DIRECTORY="+credentials)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}} //nolint:gosec // ids of a user
	return cmd
}

// startNode starts the daemon as the node's user.
func (s *separated) startNode() *process {
	s.t.Helper()
	return startCommand(s.t, s.as(s.uid, s.gid, "node"))
}

// mustOwn checks that everything in the data directory, and it, is the node's user's and nobody else's to read.
func (s *separated) mustOwn(names ...string) {
	s.t.Helper()
	for _, name := range append(names, "") {
		info, err := os.Stat(filepath.Join(s.data(), name))
		if err != nil {
			s.t.Error(err)
			continue
		}
		owner := info.Sys().(*syscall.Stat_t)
		if int(owner.Uid) != s.uid || int(owner.Gid) != s.gid || info.Mode().Perm()&0o077 != 0 {
			s.t.Errorf("%q belongs to %d:%d with mode %v", name, owner.Uid, owner.Gid, info.Mode())
		}
	}
}

// mustBePowerless checks that a process is the node's user's, has no capability, and holds nothing of the TPM.
func (s *separated) mustBePowerless(p *process) {
	s.t.Helper()
	proc := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	status, err := os.ReadFile(proc + "status")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, want := range []string{fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", s.uid), "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n"} {
		if !strings.Contains(string(status), want) {
			s.t.Errorf("the node's process has no %q:\n%s", want, status)
		}
	}
	fds, err := os.ReadDir(proc + "fd")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, fd := range fds {
		if to, err := os.Readlink(proc + "fd/" + fd.Name()); err == nil && strings.Contains(to, "tpm") {
			s.t.Errorf("the node's process has %s open", to)
		}
	}
}

// A node under [helper] joins as root, and then lives as a user who has neither privileges nor the TPM: it connects, renews with
// the word of the TPM's attestation key, survives restarts of either side, and says exactly what is wrong while the helper is
// down.
// Req: HL-001 HL-002 HL-003 TP-002 TP-009 RS-011 RS-012
func TestPrivilegeSeparation(t *testing.T) {
	t.Parallel()
	p := startPlaneWith(t, build(t, "./cmd/better-compute"), environment(), "[join]\ncert_ttl_seconds = 15\n[attestors.tpm]\n")
	s := newSeparated(t, p)
	identity, _ := s.run(0, "tpm", "identify", "--output", "json")
	s.write("tpm.json", identity)
	p.run("ek-allow", "add", filepath.Join(s.dir, "tpm.json"))

	// Root joins, with the TPM itself, and hands over.
	out, _ := s.run(0, "join", "--attestor", "tpm")
	node, _, found := strings.Cut(strings.TrimPrefix(out, "joined: "), " ")
	if !found {
		t.Fatalf("the join says %q", out)
	}
	s.mustOwn("identity.json", "node.key", "lock")
	s.mustBeRecord(s.state("node.key"))
	if names := s.chain()[0].URIs; len(names) != 2 || !strings.HasPrefix(names[1].String(), "urn:bc:tpm-ak:") {
		t.Fatalf("the certificate names %v", names)
	}

	// Nobody but the node's user may be the node, and nobody but root the helper.
	_, stderr := s.run(78, "node")
	if !strings.Contains(stderr, `[helper] names the user "nobody"`) || !strings.Contains(stderr, "hint: start it as that user: User=nobody") {
		t.Errorf("the node as root says %s", stderr)
	}
	for args, want := range map[string]int{"helper": 77, "tpm identify": 77, "join --reset --yes --attestor tpm": 77} {
		cmd := s.as(s.uid, s.gid, strings.Fields(args)...)
		said, _ := cmd.CombinedOutput() // its status is looked at
		if got := cmd.ProcessState.ExitCode(); got != want {
			t.Errorf("bcd %s as the node's user: exit status %d, want %d\n%s", args, got, want, said)
		}
	}
	stranger := s.as(s.uid-1, s.gid, "node")
	if said, _ := stranger.CombinedOutput(); stranger.ProcessState.ExitCode() != 78 {
		t.Errorf("the node as another user: exit status %d\n%s", stranger.ProcessState.ExitCode(), said)
	}

	// Without a helper the node waits for one. The folder of the sockets is the helper's to make.
	s.startHelper()
	s.helper.stop()
	daemon := s.startNode()
	daemon.waitFor("cannot reach the helper", 1)
	s.startHelper()
	daemon.waitFor(`msg="open session"`, 1)
	s.mustBePowerless(daemon)
	daemon.waitFor("msg=renewed", 1)
	s.mustOwn("identity.json", "node.key", "lock")
	s.mustBeRecord(s.state("node.key"))
	if status := s.status(0); status.Identity.NodeID != node || status.Identity.Key != "tpm" {
		t.Errorf("the status is %+v", status)
	}

	// A helper that is down makes the renewal fail loudly; once it runs, the next try renews.
	s.helper.kill()
	const loud = `msg="renewal failed: the TPM is unavailable or names another AK"`
	daemon.waitFor(loud, 1)
	if !strings.Contains(daemon.String(), `hint="start it: systemctl start bcd-helper"`) {
		t.Errorf("the node says:\n%s", daemon)
	}
	renewed := strings.Count(daemon.String(), "msg=renewed")
	s.startHelper()
	daemon.waitFor("msg=renewed", renewed+1)

	// The node starts again, and renews on.
	daemon.stop()
	daemon = s.startNode()
	daemon.waitFor(`msg="open session"`, 1)

	// Root resets the identity while the node runs; the node goes on with the new one.
	if out, _ := s.run(0, "join", "--reset", "--yes", "--attestor", "tpm"); !strings.Contains(out, "joined: "+node) {
		t.Errorf("the reset says %q", out)
	}
	s.mustOwn("identity.json", "node.key", "lock")
	daemon.waitFor(`msg="open session"`, 2)
	daemon.waitFor("msg=renewed", 1)
	s.mustOwn("identity.json", "node.key")
	daemon.stop()
	s.helper.stop()
}

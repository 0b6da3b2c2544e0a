package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// demo is the demo, ready to run from the repository's root, and the folder that it works in.
func demo(t *testing.T, bin string, args ...string) (cmd *exec.Cmd, temp string) {
	t.Helper()
	temp = shortDir(t)
	cmd = exec.Command(build(t, "./e2e/demo"), append([]string{"-bin", bin, "-cert-ttl", "8s"}, args...)...)
	cmd.Dir = ".."
	cmd.Env = environment("TMPDIR=" + temp)
	return cmd, temp
}

// demoBin is a folder with both programs, as make build leaves it.
func demoBin(t *testing.T) string {
	t.Helper()
	bin := shortDir(t)
	for _, pkg := range []string{"./cmd/bcd", "./cmd/better-compute"} {
		if err := os.Link(build(t, pkg), filepath.Join(bin, filepath.Base(pkg))); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// leavesNothing checks that no file and no process of the demo is left.
func leavesNothing(t *testing.T, temp, out string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(temp, "*")); err != nil || len(left) > 0 {
		t.Errorf("it left %q, %v\n%s", left, err, out)
	}
	processes, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range processes {
		if cwd, err := os.Readlink(p); err == nil && strings.HasPrefix(cwd, temp) {
			t.Errorf("a process is left: %s in %s\n%s", p, cwd, out)
		}
	}
}

func TestDemo(t *testing.T) {
	t.Parallel()
	cmd, temp := demo(t, demoBin(t))
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := strings.Count(out, " renewed       certificate "); got != 2 {
		t.Errorf("%d lines with renewed, want 2", got)
	}
	for _, want := range []string{"joined: node_", "already joined: node_", "Join refused (ACCESS_DENIED)", "join-token:exhausted", "What you saw", "connected since "} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not show %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "\x1b") {
		t.Error("it paints where nobody sees it")
	}
	leavesNothing(t, temp, out)
}

// The demo without a token: the machine is let in by its TPM.
// Req: AT-001
func TestDemoByTPM(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("swtpm"); err != nil {
		tpmkeytest.Unavailable(t, "swtpm is not installed (apt-get install swtpm): %v", err)
	}
	cmd, temp := demo(t, demoBin(t), "-attestor", "tpm")
	b, err := cmd.CombinedOutput()
	out := string(b)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"(key: tpm)", "ek-allow add identity.json", "Join refused (ACCESS_DENIED)", "reason=tpm:ek", "token        none"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not show %q:\n%s", want, out)
		}
	}
	if got := strings.Count(out, " renewed       certificate "); got != 2 || strings.Contains(out, "bcjt_") || strings.Contains(out, "join-tokens") {
		t.Errorf("%d renewals, or a token:\n%s", got, out)
	}
	leavesNothing(t, temp, out)
}

// A demo that is interrupted, wherever it is, takes everything with it.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	bin := demoBin(t)
	for _, at := range []string{"pki init", "up in ", "bcd node ", " renewed "} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			cmd, temp := demo(t, bin)
			p := startCommand(t, cmd)
			p.waitFor(at, 1)
			p.signal(syscall.SIGINT)
			<-p.ended
			if code := p.cmd.ProcessState.ExitCode(); code != 130 {
				t.Errorf("exit status %d\n%s", code, p)
			}
			leavesNothing(t, temp, p.String())
		})
	}
}

// A step that fails ends the demo with what failed, and with nothing left behind.
func TestDemoFails(t *testing.T) {
	t.Parallel()
	bin := shortDir(t)
	if err := os.Link(build(t, "./cmd/better-compute"), filepath.Join(bin, "better-compute")); err != nil {
		t.Fatal(err)
	}
	cmd, temp := demo(t, bin)
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "bcd is not there: run make build first") {
		t.Errorf("without bcd: %v\n%s", err, out)
	}
	leavesNothing(t, temp, string(out))
	// A bcd that joins nowhere.
	script := "#!/bin/sh\n[ \"$1\" = join ] && { echo 'bcd: no way' >&2; exit 1; }\nexec " + build(t, "./cmd/bcd") + " \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "bcd"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd, temp = demo(t, bin)
	b, err := cmd.CombinedOutput()
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("a failing join: %v", err)
	}
	for _, want := range []string{"The demo failed: exit status 1, want 0", "$ bcd join --config node.toml", "bcd: no way"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("it does not say %q:\n%s", want, b)
		}
	}
	leavesNothing(t, temp, string(b))
}

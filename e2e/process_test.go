package e2e_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for a program.
const patience = 20 * time.Second

// environment is the test's own without what would change the programs, and with more.
func environment(more ...string) (env []string) {
	for _, v := range os.Environ() {
		name, _, _ := strings.Cut(v, "=")
		switch name {
		case "BETTER_COMPUTE_SECRET", "BETTER_COMPUTE_CONTEXT", "BCD_FAKEHW", "BC_CLOCK_OFFSET", "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "HTTPS_PROXY", "https_proxy":
			continue
		}
		env = append(env, v)
	}
	return append(env, more...)
}

// run runs a program that must end with the exit status, and returns what it printed.
func run(t *testing.T, exit int, env []string, program string, args ...string) (stdout, stderr string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = env
	var out, err bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &err
	if e := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(e)
	}
	if got := cmd.ProcessState.ExitCode(); got != exit {
		t.Fatalf("%s %q: exit status %d, want %d\n%s%s", program, args, got, exit, out.String(), err.String())
	}
	return out.String(), err.String()
}

// process is a program that runs beside the test.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
}

// start starts a program, which ends with the test.
func start(t *testing.T, env []string, program string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = env
	return startCommand(t, cmd)
}

// startCommand starts a command, which ends with the test.
func startCommand(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, ended: make(chan struct{})}
	p.cmd.Stdout = p
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.ended)
	}()
	t.Cleanup(p.kill)
	return p
}

// Write takes what the program says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.Write(b)
}

func (p *process) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// waitFor waits until the program has said a text a number of times.
func (p *process) waitFor(text string, times int) {
	p.t.Helper()
	eventually(p.t, func() bool { return strings.Count(p.String(), text) >= times }, func() string {
		return "it has not said " + text + ":\n" + p.String()
	})
}

// stop ends the program by SIGTERM and expects exit status 0.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("it still runs after SIGTERM:\n%s", p)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		p.t.Fatalf("exit status %d after SIGTERM:\n%s", code, p)
	}
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%v:\n%s", err, p)
	}
}

// kill ends the program by SIGKILL.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

// eventually waits until a condition holds.
func eventually(t *testing.T, holds func() bool, what func() string) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s: %s", patience, what())
		}
	}
}

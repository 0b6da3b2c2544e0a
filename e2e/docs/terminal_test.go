package docs_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience bounds each wait. A command takes seconds even on a machine that is busy with other tests.
const patience = 2 * time.Minute

// terminal is a shell that commands are typed into.
type terminal struct {
	t      *testing.T
	cmd    *exec.Cmd
	in     io.WriteCloser
	status chan string // a line for each command: its exit status, or the process id of one in the foreground
	dir    string      // for what commands print
	count  int

	foreground string // the log of the command that stays in the foreground, "" without one
	pid        string
}

// openTerminal starts a shell in folder, with an environment that knows nothing of the test's.
func openTerminal(t *testing.T, folder string) *terminal {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Fatalf("the commands of the documentation need bash: %v", err)
	}
	term := &terminal{t: t, dir: t.TempDir(), status: make(chan string)}
	term.cmd = exec.Command(bash, "--noprofile", "--norc")
	term.cmd.Dir = folder
	term.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder, "LC_ALL=C.UTF-8"}
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if term.in, err = term.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := os.Create(filepath.Join(term.dir, "shell"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	term.cmd.Stdout, term.cmd.Stderr = out, out
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	term.cmd.ExtraFiles = []*os.File{w} // descriptor 3 of the shell
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	go func() {
		defer close(term.status)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			term.status <- lines.Text()
		}
	}()
	t.Cleanup(func() {
		_ = term.in.Close()
		_ = syscall.Kill(-term.cmd.Process.Pid, syscall.SIGKILL)
		_ = term.cmd.Wait()
		for range term.status {
		}
		_ = r.Close()
	})
	return term
}

// answer waits for the line that the shell reports with.
func (s *terminal) answer(what string) string {
	s.t.Helper()
	select {
	case line, open := <-s.status:
		if !open {
			b, _ := os.ReadFile(filepath.Join(s.dir, "shell"))
			s.t.Fatalf("the shell ended at %q: %s", what, b)
		}
		return line
	case <-time.After(patience):
		s.t.Fatalf("%q did not end within %s", what, patience)
	}
	return ""
}

// run types a command and returns what it printed, on either stream, and its exit status.
func (s *terminal) run(text string) (output string, status int) {
	s.t.Helper()
	if s.foreground != "" {
		s.t.Fatalf("%q is typed into a terminal whose foreground is taken", text)
	}
	s.count++
	log := filepath.Join(s.dir, strconv.Itoa(s.count))
	fmt.Fprintf(s.in, "{ %s\n} </dev/null >'%s' 2>&1 3>&-\necho $? >&3\n", text, log)
	status, err := strconv.Atoi(s.answer(text))
	if err != nil {
		s.t.Fatal(err)
	}
	return s.read(log), status
}

func (s *terminal) read(log string) string {
	s.t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(b)
}

// start types a command that stays in the foreground and waits until it is ready.
func (s *terminal) start(text string, ready func(log string) bool) {
	s.t.Helper()
	s.count++
	s.foreground = filepath.Join(s.dir, strconv.Itoa(s.count))
	fmt.Fprintf(s.in, "%s </dev/null >'%s' 2>&1 3>&- &\necho $! >&3\n", text, s.foreground)
	s.pid = s.answer(text)
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	for poll := time.NewTicker(10 * time.Millisecond); ; {
		if b, err := os.ReadFile(s.foreground); err == nil && ready(string(b)) {
			poll.Stop()
			return
		}
		if pid, err := strconv.Atoi(s.pid); err != nil || syscall.Kill(pid, 0) != nil {
			s.t.Fatalf("%q ended before it was ready: %s", text, s.read(s.foreground))
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%q was not ready within %s: %s", text, patience, s.read(s.foreground))
		case <-poll.C:
		}
	}
}

// interrupt ends what is in the foreground and checks that it took that for an order. A shell without a person starts
// such commands with SIGINT ignored, so the signal is the service manager's.
func (s *terminal) interrupt() {
	s.t.Helper()
	if s.foreground == "" {
		s.t.Fatal("nothing is in the foreground of the terminal")
	}
	log := s.foreground
	s.foreground = ""
	if _, status := s.run("kill " + s.pid + " && wait " + s.pid); status != 0 {
		s.t.Errorf("a command that was told to stop ended with status %d: %s", status, strings.TrimSpace(s.read(log)))
	}
}

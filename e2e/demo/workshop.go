package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// workshop is a temporary folder, the programs, and the processes that run in it.
type workshop struct {
	*screen
	dir      string // the working directory of every command
	programs string // absolute
	repo     string // absolute
	env      []string
	running  []*process
}

// longestDir is the longest name of the folder: the path of a Unix socket in it has at most 107 bytes.
const longestDir = 60

func newWorkshop(s *screen, programs string) (*workshop, error) {
	programs, err := filepath.Abs(programs)
	if err != nil {
		return nil, err
	}
	for _, name := range []string{"bcd", "better-compute"} {
		if _, err := exec.LookPath(filepath.Join(programs, name)); err != nil {
			return nil, fmt.Errorf("%s is not there: run make build first: %w", name, err)
		}
	}
	repo, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	parent := ""
	if len(os.TempDir()) > longestDir-len("/bcd-demo-0123456789") {
		parent = "/tmp"
	}
	dir, err := os.MkdirTemp(parent, "bcd-demo-")
	if err != nil {
		return nil, err
	}
	w := &workshop{screen: s, dir: dir, programs: programs, repo: repo}
	// The demo's own settings only: a context or a secret of the person who runs it has no business here.
	w.env = append(without(os.Environ(), "BETTER_COMPUTE_", "BCD_", "CREDENTIALS_DIRECTORY=", "NOTIFY_SOCKET="),
		"BETTER_COMPUTE_SECRET="+rand.Text(), "BETTER_COMPUTE_CONTEXT="+filepath.Join(dir, "cp/admin.toml"))
	return w, nil
}

// without returns the variables that start with none of the prefixes.
func without(env []string, prefixes ...string) (kept []string) {
next:
	for _, v := range env {
		for _, p := range prefixes {
			if strings.HasPrefix(v, p) {
				continue next
			}
		}
		kept = append(kept, v)
	}
	return kept
}

// close ends what runs, the last started first, and removes the folder.
func (w *workshop) close() error {
	for i := len(w.running) - 1; i >= 0; i-- {
		w.running[i].kill()
	}
	return os.RemoveAll(w.dir)
}

func (w *workshop) path(name string) string { return filepath.Join(w.dir, name) }

// write makes a file in the folder.
func (w *workshop) write(name, content string) error {
	return os.WriteFile(w.path(name), []byte(content), 0o600)
}

// commandError is a command that did not do what it should have done.
type commandError struct {
	command, output string
	err             error
}

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

// command is one run of a program.
type command struct {
	name string
	args []string
}

func (c command) String() string {
	words := []string{c.name}
	for _, a := range c.args {
		if strings.ContainsAny(a, " *$\"") {
			a = "'" + a + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

func (w *workshop) exec(ctx context.Context, c command) *exec.Cmd {
	path := filepath.Join(w.programs, c.name)
	if _, err := os.Stat(path); err != nil {
		path = c.name // a program of the system
	}
	cmd := exec.CommandContext(ctx, path, c.args...)
	cmd.Dir, cmd.Env = w.dir, w.env
	// A group of its own: an interrupt at the terminal reaches the demo alone, which ends the rest in order. Should the
	// demo be killed, the kernel ends them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// result is what a command that ended printed.
type result struct {
	command        command
	stdout, stderr string
	took           time.Duration
}

// fail returns an error that shows the command and its output.
func (r result) fail(format string, args ...any) error {
	return &commandError{command: r.command.String(), output: r.stdout + r.stderr, err: fmt.Errorf(format, args...)}
}

// run shows and runs a command that must end with the given exit status.
func (w *workshop) run(ctx context.Context, exit int, name string, args ...string) (result, error) {
	w.command(command{name, args}.String())
	return w.ask(ctx, exit, name, args...)
}

// ask runs a command without showing it.
func (w *workshop) ask(ctx context.Context, exit int, name string, args ...string) (result, error) {
	r := result{command: command{name, args}}
	cmd := w.exec(ctx, r.command)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	begun := time.Now()
	err := cmd.Run()
	r.took, r.stdout, r.stderr = time.Since(begun), stdout.String(), stderr.String()
	var ended *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return r, context.Cause(ctx)
	case err != nil && !errors.As(err, &ended):
		return r, r.fail("%s does not run: %w", name, err)
	case cmd.ProcessState.ExitCode() != exit:
		return r, r.fail("exit status %d, want %d", cmd.ProcessState.ExitCode(), exit)
	}
	return r, nil
}

// askJSON runs a command without showing it and decodes what it prints.
func (w *workshop) askJSON(ctx context.Context, to any, name string, args ...string) error {
	r, err := w.ask(ctx, 0, name, args...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(r.stdout), to); err != nil {
		return r.fail("not JSON: %w", err)
	}
	return nil
}

// process is a program that runs beside the demo.
type process struct {
	command command
	cmd     *exec.Cmd
	lines   chan string // of its output, as they come; closed at its end
	ended   chan struct{}

	mu   sync.Mutex
	said bytes.Buffer
}

// start shows and starts a program. Its standard output and error become lines.
func (w *workshop) start(name string, args ...string) (*process, error) {
	p := &process{command: command{name, args}, lines: make(chan string, 1000), ended: make(chan struct{})}
	w.command(p.command.String() + " &")
	p.cmd = w.exec(context.Background(), p.command)
	p.cmd.Stdout = (*lineWriter)(p)
	p.cmd.Stderr = p.cmd.Stdout
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s does not start: %w", name, err)
	}
	w.running = append(w.running, p)
	go func() {
		_ = p.cmd.Wait() // how it ended is in its state
		close(p.lines)
		close(p.ended)
	}()
	return p, nil
}

// lineWriter is a process's output.
type lineWriter process

func (l *lineWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	rest := l.said.Len() - (bytes.LastIndexByte(l.said.Bytes(), '\n') + 1) // bytes of an unfinished line
	l.said.Write(b)
	text := l.said.Bytes()[l.said.Len()-len(b)-rest:]
	for {
		line, after, found := bytes.Cut(text, []byte("\n"))
		if !found {
			return len(b), nil
		}
		select {
		case l.lines <- string(line):
		default: // nobody reads; it is all in said
		}
		text = after
	}
}

// next returns the process's next line.
func (p *process) next(ctx context.Context) (string, error) {
	select {
	case <-ctx.Done():
		return "", p.fail("it says nothing more: %w", context.Cause(ctx))
	case line, more := <-p.lines:
		if !more {
			return "", p.fail("it ended: %s", p.cmd.ProcessState)
		}
		return line, nil
	}
}

func (p *process) fail(format string, args ...any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &commandError{command: p.command.String(), output: p.said.String(), err: fmt.Errorf(format, args...)}
}

// stopWithin is how long a program may take to end when it is asked to.
const stopWithin = 15 * time.Second

// stop asks the process to end and expects that it does so with exit status 0.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return p.fail("cannot stop it: %w", err)
	}
	select {
	case <-p.ended:
	case <-time.After(stopWithin):
		return p.fail("it still runs %s after SIGTERM", stopWithin)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 {
		return p.fail("it ended with exit status %d after SIGTERM", code)
	}
	return nil
}

// kill ends the process and what it started.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // no such group: it ended before
	<-p.ended
}

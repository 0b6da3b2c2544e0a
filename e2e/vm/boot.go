package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Running is a server that has booted.
type Running struct {
	server  Server
	dir     string // of the sockets and the console
	qemu    *process
	swtpm   *process // nil without a TPM
	control net.Conn
	answers *bufio.Reader
	scripts int
}

// Boot turns a server on and returns once systemd has started all there is, or with what the console said last. The context
// bounds the boot alone. End what it returns with [Running.Off] or [Running.Kill].
func (s Server) Boot(ctx context.Context) (_ *Running, err error) {
	if err := s.installDisk(ctx); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "vm-") // short: a socket's path has at most 107 bytes
	if err != nil {
		return nil, err
	}
	r := &Running{server: s, dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("cannot boot: %w\n%s", err, r.Console()), r.Kill())
		}
	}()
	if s.TPM != "" {
		if r.swtpm, err = begin("swtpm", "socket", "--tpm2", "--terminate", "--tpmstate", "dir="+s.TPM, "--ctrl", "type=unixio,path="+filepath.Join(dir, tpmSocket)); err != nil {
			return nil, err
		}
		if err := r.swtpm.listens(ctx, filepath.Join(dir, tpmSocket)); err != nil {
			return nil, err
		}
	}
	args, err := s.arguments(dir)
	if err != nil {
		return nil, err
	}
	if r.qemu, err = begin("qemu-system-x86_64", args...); err != nil {
		return nil, err
	}
	if err := r.qemu.listens(ctx, filepath.Join(dir, controlSocket)); err != nil {
		return nil, err
	}
	if r.control, err = (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(dir, controlSocket)); err != nil {
		return nil, err
	}
	r.answers = bufio.NewReader(r.control)
	return r, r.expect(ctx, "ready")
}

// expect reads the guest's next line, which must be this one.
func (r *Running) expect(ctx context.Context, want string) error {
	line, err := r.answer(ctx)
	if err == nil && line != want {
		err = fmt.Errorf("the guest says %q, not %q", line, want)
	}
	return err
}

// answer reads a line of the guest's agent.
func (r *Running) answer(ctx context.Context) (string, error) {
	stop := context.AfterFunc(ctx, func() { _ = r.control.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := r.answers.ReadString('\n')
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("the guest does not answer: %w", ctx.Err())
	case errors.Is(err, io.EOF):
		r.qemu.kill() // it has closed the port: it ends
		return "", fmt.Errorf("the guest ended: %s", r.qemu.said.String())
	}
	return strings.TrimSpace(line), err
}

// Result is what a script said and how it ended.
type Result struct {
	Stdout, Stderr string
	Status         int
}

// Run runs a script of /bin/sh as root in the guest. A script that the context ends leaves the guest of no more use.
func (r *Running) Run(ctx context.Context, script string) (res Result, err error) {
	r.scripts++
	name := "script" + strconv.Itoa(r.scripts)
	path := filepath.Join(r.server.Share, name)
	if err := os.WriteFile(path, []byte(script+"\n"), 0o600); err != nil {
		return res, err
	}
	if _, err := fmt.Fprintln(r.control, name); err != nil {
		return res, fmt.Errorf("cannot ask the guest: %w", err)
	}
	line, err := r.answer(ctx)
	if err != nil {
		return res, err
	}
	if res.Status, err = strconv.Atoi(strings.TrimPrefix(line, name+" ")); err != nil {
		return res, fmt.Errorf("the guest answers %q to %s", line, name)
	}
	out, errOut := os.ReadFile(path + ".out")
	said, errErr := os.ReadFile(path + ".err")
	res.Stdout, res.Stderr = string(out), string(said)
	return res, errors.Join(errOut, errErr)
}

// Off shuts the guest down in order and turns the server off.
func (r *Running) Off(ctx context.Context) error {
	if _, err := r.Run(ctx, "systemctl poweroff --no-block"); err != nil {
		return err
	}
	select {
	case <-r.qemu.ended:
		return r.Kill()
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("the guest does not shut down: %w\n%s", ctx.Err(), r.Console()), r.Kill())
	}
}

// Kill takes the power away. It may be called twice.
func (r *Running) Kill() error {
	if r.control != nil {
		_ = r.control.Close() // its end is QEMU's
	}
	for _, p := range []*process{r.qemu, r.swtpm} {
		if p != nil {
			p.kill()
		}
	}
	return os.RemoveAll(r.dir)
}

// Console returns what the guest's console said last.
func (r *Running) Console() string {
	const most = 4 << 10
	b, err := os.ReadFile(filepath.Join(r.dir, consoleFile))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-most):])
}

// process is a program of the host.
type process struct {
	cmd   *exec.Cmd
	said  bytes.Buffer // to be read once it ended
	ended chan struct{}
}

func begin(name string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(name, args...), ended: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that panics leaves no machine behind
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in what it said
		close(p.ended)
	}()
	return p, nil
}

// listens waits until a program has made its socket.
func (p *process) listens(ctx context.Context, socket string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(socket); err == nil {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.cmd.Path), p.said.String())
		case <-ctx.Done():
			return fmt.Errorf("%s does not listen: %w", filepath.Base(p.cmd.Path), ctx.Err())
		case <-tick.C:
		}
	}
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

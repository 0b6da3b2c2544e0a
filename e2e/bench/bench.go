package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// scratch is where the bench keeps its folder: on the disk that the programs are built on.
const scratch = ".build"

// bench is what the measurements share: the programs and a running control plane, in a folder of its own.
type bench struct {
	out      io.Writer
	programs string        // folder of the programs
	window   time.Duration // how long idle daemons are watched
	dir      string        // the bench's folder
	sockets  string        // folder of sockets, whose paths must be short
	server   *controlPlane
}

func newBench(ctx context.Context, programs string, window time.Duration) (_ *bench, err error) {
	b := &bench{out: os.Stdout, window: window}
	if b.programs, err = filepath.Abs(programs); err != nil {
		return nil, err
	}
	for _, name := range []string{"bcd", "bcd-static", "better-compute"} {
		if _, err := os.Stat(b.program(name)); err != nil {
			return nil, fmt.Errorf("run make build first: %w", err)
		}
	}
	if err := os.MkdirAll(scratch, 0o755); err != nil { //nolint:gosec // holds nothing secret by itself
		return nil, err
	}
	if b.dir, err = os.MkdirTemp(scratch, "bench-"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.dir, err = filepath.Abs(b.dir); err != nil {
		return nil, err
	}
	if b.sockets, err = os.MkdirTemp("", "bench-"); err != nil {
		return nil, err
	}
	b.server, err = startControlPlane(ctx, b, "cp")
	return b, err
}

func (b *bench) close() error {
	var err error
	if b.server != nil {
		err = stop(b.server.process)
	}
	if b.sockets != "" {
		err = errors.Join(err, os.RemoveAll(b.sockets))
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (b *bench) program(name string) string { return filepath.Join(b.programs, name) }

// command makes a command of one of the programs, which is told to stop when ctx ends.
func (b *bench) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, b.program(name), args...)
	c.Dir = b.dir
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 20 * time.Second
	return c
}

// stop tells a program to stop, and waits until it did.
func stop(c *exec.Cmd) error {
	if c.Process == nil {
		return nil
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	kill := time.AfterFunc(20*time.Second, func() { _ = c.Process.Kill() })
	defer kill.Stop()
	// Where ctx ended, the process was told to stop by that, and Wait reports ctx's error even when it stopped well.
	if err := c.Wait(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("cannot stop %s: %w", strings.Join(c.Args[:2], " "), err)
	}
	return nil
}

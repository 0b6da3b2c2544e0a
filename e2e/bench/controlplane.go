package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/better-compute/bcd/e2e/fleet"
)

// readyWithin bounds the control plane's start.
const readyWithin = time.Minute

// controlPlane is a running better-compute serve.
type controlPlane struct {
	*fleet.Plane
	process *exec.Cmd
}

// startControlPlane starts a control plane in a folder of the bench. It is returned with an error too, where it was started.
func startControlPlane(ctx context.Context, b *bench, dir string) (*controlPlane, error) {
	p := b.command(ctx, "better-compute", "serve", "--dir", dir, "--trust-domain", "bench.example",
		"--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0", "--log-level", "error")
	p.Env = append(os.Environ(), "BETTER_COMPUTE_SECRET="+rand.Text())
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.Start(); err != nil {
		return nil, err
	}
	c := &controlPlane{process: p}
	ready := make(chan bool, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() && lines.Text() != "ready" { //nolint:revive // reads on until then
		}
		ready <- lines.Text() == "ready"
	}()
	select {
	case ok := <-ready:
		if !ok {
			return c, errors.New("the control plane ended before it was ready")
		}
	case <-time.After(readyWithin):
		return c, fmt.Errorf("the control plane was not ready within %s", readyWithin)
	case <-ctx.Done():
		return c, context.Cause(ctx)
	}
	c.Plane, err = fleet.Connect(ctx, filepath.Join(b.dir, dir))
	return c, err
}

package hwclaims

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// nvmlAnswer is what the child prints: one JSON object.
type nvmlAnswer struct {
	GPUs  []nvmlGPU `json:"gpus"`
	Notes []string  `json:"notes,omitempty"`
	// Error is why NVML gave nothing.
	Error string `json:"error,omitempty"`
}

type nvmlGPU struct {
	UUID string `json:"uuid"`
	VGPU bool   `json:"vgpu,omitempty"`
}

func (a nvmlAnswer) gpus() []gpu {
	var gpus []gpu
	for _, g := range a.GPUs {
		gpus = append(gpus, gpu{uuid: g.UUID, vgpu: g.VGPU})
	}
	return gpus
}

const (
	defaultNVMLTimeout = 10 * time.Second
	maxNVMLAnswer      = 1 << 20
)

// NVMLChild is the body of the child process that asks NVML: it loads libnvidia-ml.so.1, writes what the library says to
// w as JSON, and returns only what it could not write. A program that lends itself as the child calls it first thing.
func NVMLChild(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(queryNVML()); err != nil {
		return fmt.Errorf("cannot write the GPUs: %w", err)
	}
	return nil
}

// askNVML runs the child and returns its answer. A wedged driver leaves the child asleep where no signal reaches it:
// then the child is killed and left behind, with the goroutine that waits for it, and ends when the driver lets it.
func askNVML(ctx context.Context, command []string, timeout time.Duration) (nvmlAnswer, error) {
	if timeout <= 0 {
		timeout = defaultNVMLTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	child := exec.Command(command[0], command[1:]...) //nolint:gosec,noctx // the caller's own program; the deadline is below
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	stdout, err := child.StdoutPipe()
	if err != nil {
		return nvmlAnswer{}, fmt.Errorf("cannot start the child: %w", err)
	}
	type result struct {
		answer nvmlAnswer
		err    error
	}
	started := make(chan error, 1)
	done := make(chan result, 1) // room, so that the goroutine ends even when nobody waits any more
	go func() {
		runtime.LockOSThread() // Pdeathsig means the thread that starts the child
		defer runtime.UnlockOSThread()
		err := child.Start()
		started <- err
		if err != nil {
			return
		}
		answer, readErr := readNVMLAnswer(stdout)
		_ = stdout.Close() // a child that writes on past the limit ends
		if waitErr := child.Wait(); waitErr != nil && readErr != nil {
			readErr = fmt.Errorf("the child failed: %w", waitErr)
		}
		done <- result{answer, readErr}
	}()
	if err := <-started; err != nil {
		return nvmlAnswer{}, fmt.Errorf("cannot start the child: %w", err)
	}
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
		// Started as the leader of its own group; it is not reaped yet, so the number is still its own.
		_ = syscall.Kill(-child.Process.Pid, syscall.SIGKILL)
		return nvmlAnswer{}, fmt.Errorf("no answer within %s", timeout)
	}
}

func readNVMLAnswer(r io.Reader) (nvmlAnswer, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxNVMLAnswer))
	if err != nil {
		return nvmlAnswer{}, fmt.Errorf("cannot read the child's answer: %w", err)
	}
	var a nvmlAnswer
	if err := json.Unmarshal(b, &a); err != nil {
		return nvmlAnswer{}, fmt.Errorf("cannot parse the child's answer: %w", err)
	}
	if a.Error != "" {
		return nvmlAnswer{}, errors.New(a.Error)
	}
	return a, nil
}

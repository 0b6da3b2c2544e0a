package tpmkeytest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest/internal/wire"
)

// Simulator starts the TPM reference implementation: a TPM that was just made and started. Its program is built from C
// the first time, which takes some seconds, a C compiler and OpenSSL's headers.
func Simulator(t testing.TB) *TPM {
	t.Helper()
	program, err := buildSimulator()
	if err != nil {
		Unavailable(t, "the TPM simulator cannot be built (apt-get install gcc libssl-dev): %v", err)
	}
	dir := shortDir(t)
	return newTPM(t, dir, &simulator{process: process{socket: filepath.Join(dir, "simulator")}, program: program})
}

type simulator struct {
	process
	program string
	stdin   *os.File // held open for its life
}

func (s *simulator) start() (string, error) {
	cmd := exec.Command(s.program, s.socket)
	read, write, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer read.Close()
	cmd.Stdin, s.stdin = read, write
	return s.socket, s.run(cmd)
}

func (s *simulator) powerCycle(r *relay) (bool, error) {
	_, err := r.exchange(wire.Result(wire.PowerCycle))
	return false, err
}

func (s *simulator) stop() {
	s.process.stop()
	if s.stdin != nil {
		_ = s.stdin.Close()
	}
}

// buildSimulator builds the simulator's program once in a test process. The file has no name when it returns, so that
// nothing is left of it however the process ends.
var buildSimulator = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "tpm")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "simulator")
	var said bytes.Buffer
	build := exec.Command("go", "build", "-tags", "tpmsimulator", "-o", path,
		"github.com/better-compute/bcd/tpmkey/tpmkeytest/simulator")
	build.Stderr = &said
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, bytes.TrimSpace(said.Bytes()))
	}
	// Not an os.File, which would be closed when nothing refers to it any more.
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
})

package tpmkeytest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// Swtpm starts the swtpm program with an empty state: a TPM that was just made and started.
func Swtpm(t testing.TB) *TPM {
	t.Helper()
	program, err := findSwtpm()
	if err != nil {
		Unavailable(t, "swtpm is not installed (apt-get install swtpm): %v", err)
	}
	return startSwtpm(t, program, shortDir(t))
}

func startSwtpm(t testing.TB, program, dir string) *TPM {
	t.Helper()
	return newTPM(t, dir, &swtpm{process: process{socket: filepath.Join(dir, "swtpm")}, program: program, dir: dir})
}

func findSwtpm() (string, error) { return exec.LookPath("swtpm") }

type swtpm struct {
	process
	program string
	dir     string
}

func (s *swtpm) start() (string, error) {
	// --terminate ends it with its one client, the relay, so that a killed test leaves no process behind.
	return s.socket, s.run(exec.Command(s.program, "socket", "--tpm2", "--tpmstate", "dir="+s.dir,
		"--server", "type=unixio,path="+s.socket, "--flags", "not-need-init,startup-clear", "--terminate"))
}

func (s *swtpm) powerCycle(r *relay) (bool, error) {
	if _, err := (tpm2.Shutdown{ShutdownType: tpm2.TPMSUClear}).Execute(direct{r}); err != nil {
		return false, err
	}
	s.stop()
	return true, os.Remove(s.socket)
}

// process is a TPM program that listens on a socket.
type process struct {
	socket string
	cmd    *exec.Cmd
	ended  chan struct{}
	said   bytes.Buffer // its standard error; read after it ended
}

// startLimit bounds how long a program may take to listen.
const startLimit = 20 * time.Second

// run starts the program and waits until it listens.
func (p *process) run(cmd *exec.Cmd) error {
	p.said.Reset()
	cmd.Stderr = &p.said
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd, p.ended = cmd, make(chan struct{})
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // an end before stop shows as the end of the connection
	}()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	for {
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended: %s", filepath.Base(p.socket), bytes.TrimSpace(p.said.Bytes()))
		case <-limit.C:
			p.stop()
			return fmt.Errorf("%s does not listen: %s", filepath.Base(p.socket), bytes.TrimSpace(p.said.Bytes()))
		case <-poll.C:
			if _, err := os.Stat(p.socket); err == nil {
				return nil
			} else if !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
}

func (p *process) stop() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.ended
}

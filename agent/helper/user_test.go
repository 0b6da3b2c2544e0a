package helper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent/helper"
)

// The tests of who may connect run this program again as another user. What it does there is the variable's value.
const actVariable = "BCD_TEST_HELPER_ACT"

func TestMain(m *testing.M) {
	act, socket, found := strings.Cut(os.Getenv(actVariable), " ")
	if !found {
		status := m.Run()
		if program, err := copied(); err == nil {
			_ = os.RemoveAll(filepath.Dir(program))
		}
		os.Exit(status)
	}
	if err := acts[act](socket); err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("done")
}

var acts = map[string]func(socket string) error{
	// ask makes a call as a node does.
	"ask": func(socket string) error {
		_, err := helper.NewClient(socket).Config(context.Background())
		return err
	},
	// listen is another user's program in the helper's place.
	"listen": func(socket string) error {
		l, err := net.Listen("unix", socket) //nolint:noctx // it lives until it is killed
		if err != nil {
			return err
		}
		if err := os.Chmod(socket, 0o666); err != nil { //nolint:gosec // so that the client's own check is what refuses
			return err
		}
		fmt.Println("listening")
		for {
			conn, err := l.Accept()
			if err != nil {
				return err
			}
			if n, _ := io.Copy(io.Discard, conn); n > 0 {
				fmt.Println("it was told", n)
			}
		}
	},
}

// copied is this program where every user can run it: the folder that it is in is its owner's alone.
var copied = sync.OnceValues(func() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	content, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "helper")
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "test")
	return program, errors.Join(os.Chmod(dir, 0o755), os.WriteFile(program, content, 0o755)) //nolint:gosec // as said
})

// as returns a command that does an act as another user.
func as(t *testing.T, uid uint32, act, socket string) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two other users")
	}
	program, err := copied()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), actVariable+"="+act+" "+socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// The node's user and root may connect. For others the socket is closed by its mode, and where somebody opened it, by the
// kernel's word on who connects.
// Req: HL-002
func TestWhoMayConnect(t *testing.T) {
	w := newWorld(t, nil)
	say := func(uid uint32) string {
		out, _ := as(t, uid, "ask", w.socket()).CombinedOutput() // an error shows in what it says
		return string(out)
	}
	info, err := os.Stat(w.socket())
	if err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
	if said := say(nodeUID); said != "done\n" {
		t.Errorf("the node's user: %s", said)
	}
	if said := say(0); said != "done\n" {
		t.Errorf("root: %s", said)
	}
	if said := say(nodeUID + 1); !strings.Contains(said, "permission denied") {
		t.Errorf("another user: %s", said)
	}
	if err := os.Chmod(w.socket(), 0o666); err != nil { //nolint:gosec // a mistake that somebody makes
		t.Fatal(err)
	}
	for range 3 {
		if said := say(nodeUID + 1); !strings.HasPrefix(said, "error: cannot ask the helper") {
			t.Errorf("another user, socket open: %s", said)
		}
	}
	if n := strings.Count(w.log.String(), fmt.Sprintf(`msg="turn away from helper" uid=%d`, nodeUID+1)); n != 1 {
		t.Errorf("the stranger is logged %d times:\n%s", n, w.log)
	}
	if said := say(nodeUID); said != "done\n" {
		t.Errorf("the node's user, afterwards: %s", said)
	}
}

// A program of another user that took the helper's place is told nothing.
func TestImpostor(t *testing.T) {
	dir, err := os.MkdirTemp("", "helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // somebody else is to listen in it
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sock")
	cmd := as(t, nodeUID+1, "listen", socket)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := bufio.NewReader(out)
	if line, err := said.ReadString('\n'); err != nil || line != "listening\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := helper.NewClient(socket).Config(t.Context()); err == nil || !strings.Contains(err.Error(), "neither root's nor this user's") {
		t.Errorf("error %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(said); err != nil || len(rest) > 0 {
		t.Errorf("the impostor heard something: %s, %v", rest, err)
	}
	_ = cmd.Wait() // it was killed
}

// deadline bounds what a test waits for.
func deadline(t *testing.T, what string, within time.Duration, f func() error) {
	t.Helper()
	ended := make(chan error, 1)
	begun := time.Now()
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		t.Logf("%s: %v", what, time.Since(begun))
	case <-time.After(within):
		t.Fatalf("%s: not within %v", what, within)
	}
}

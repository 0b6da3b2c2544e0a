package terminal_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/terminal"
)

func TestIs(t *testing.T) {
	pty, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer pty.Close()
	raw, err := pty.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	if e := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); e != nil || err != nil {
		t.Skipf("no terminals here: %v, %v", e, err)
	}
	tty, err := os.OpenFile(filepath.Join("/dev/pts", strconv.Itoa(number)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminals here: %v", err)
	}
	defer tty.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for name, f := range map[string]*os.File{"a file": file, "a pipe": r, "the null device": null, "a closed file": closed} {
		if terminal.Is(f) {
			t.Errorf("%s is a terminal", name)
		}
	}
	if !terminal.Is(tty) {
		t.Error("a terminal is none")
	}
	for _, f := range []*os.File{file, r, w, null} {
		f.Close()
	}
}

package smallfile_test

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/better-compute/bcd/internal/smallfile"
)

func write(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	path := write(t, "four", 0o640)
	f, err := smallfile.Read(path, 4)
	if err != nil {
		t.Fatal(err)
	}
	if string(f.Content) != "four" || f.Perm != 0o640 || f.UID != os.Geteuid() || !f.OwnedBy(os.Geteuid()) || !f.Is(path) {
		t.Errorf("%+v", f)
	}
	if f.UID != 0 && f.OwnedBy(f.UID+1) {
		t.Error("owned by another user")
	}
	if _, err := smallfile.Read(path, 3); !errors.Is(err, smallfile.ErrTooLarge) {
		t.Errorf("one byte too many: %v", err)
	}
	if f, err := smallfile.Read(write(t, "", 0o600), 3); err != nil || len(f.Content) != 0 {
		t.Errorf("empty: %v", err)
	}
}

func TestOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	fifo, sock, link := filepath.Join(dir, "fifo"), filepath.Join(dir, "s"), filepath.Join(dir, "link")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	if err := os.Symlink(write(t, "x", 0o600), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir: "a directory", fifo: "a FIFO", "/dev/zero": "a device", sock: "no such device or address",
		filepath.Join(dir, "none"): "no such file", filepath.Join(link, "below"): "not a directory",
	} {
		_, err := smallfile.Read(path, 10)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := smallfile.Read(filepath.Join(dir, "none"), 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if f, err := smallfile.Read(link, 10); err != nil || string(f.Content) != "x" || !f.Is(link) {
		t.Errorf("a link: %v", err)
	}
}

func TestIsSeesAReplacement(t *testing.T) {
	path := write(t, "x", 0o600)
	f, err := smallfile.Read(path, 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(write(t, "x", 0o600), path); err != nil {
		t.Fatal(err)
	}
	if f.Is(path) {
		t.Error("another file under the same path")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if f.Is(path) || (smallfile.File{}).Is(path) {
		t.Error("no file at all")
	}
}

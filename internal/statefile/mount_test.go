package statefile_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// mount mounts a file system of its own for the test, or skips where the machine doesn't let it.
func mount(t *testing.T, kind, options string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), kind)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", path, kind, 0, options); err != nil {
		t.Skipf("cannot mount a %s here: %v", kind, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(filepath.Join(path, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return
		}
	}
}

func TestFullDisk(t *testing.T) {
	path := mount(t, "tmpfs", "size=256k,mode=0700")
	d := open(t, path)
	if err := d.Replace("a", []byte("old")); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Reserve("b", 1<<20); !isNoSpace(err) {
		t.Errorf("reserving more than the disk has: %v", err)
	}
	r, err := d.Reserve("b", 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	fill(t, path)

	if err := d.Replace("a", bytes.Repeat([]byte("n"), 100)); !isNoSpace(err) {
		t.Errorf("replace on a full disk: %v", err)
	}
	if b, err := d.Read("a", 10); err != nil || string(b) != "old" {
		t.Errorf("the old content is %q, %v", b, err)
	}
	data := bytes.Repeat([]byte("r"), 64<<10)
	if err := r.Commit(data); err != nil {
		t.Errorf("commit of what was reserved: %v", err)
	}
	if b, err := d.Read("b", 64<<10); err != nil || !bytes.Equal(b, data) {
		t.Errorf("read back %d bytes, %v", len(b), err)
	}
	if got := len(list(t, path)); got != 3 {
		t.Errorf("%d files: a failed write left its temporary file", got)
	}
	release, err := d.Lock() // the pid does not fit, the lock does
	if err != nil {
		t.Fatalf("lock on a full disk: %v", err)
	}
	release()
}

func isNoSpace(err error) bool {
	return fault.Is(err, fault.NoSpace) && fault.CodeOf(err).Temporary() && fault.HintOf(err) != ""
}

// ramfs has no fallocate: room is taken by writing.
func TestReserveWithoutFallocate(t *testing.T) {
	path := mount(t, "ramfs", "mode=0700")
	d := open(t, path)
	r, err := d.Reserve("a", 10000)
	if err != nil {
		t.Fatal(err)
	}
	names := list(t, path)
	if len(names) != 1 {
		t.Fatalf("files %v", names)
	}
	if info, err := os.Stat(filepath.Join(path, names[0])); err != nil || info.Size() != 10000 {
		t.Errorf("the reservation has %v, %v", info, err)
	}
	if err := r.Commit([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if b, err := d.Read("a", 10); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	path := mount(t, "tmpfs", "mode=0700")
	if err := open(t, path).Replace("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	d := open(t, path)
	if b, err := d.Read("a", 10); err != nil || string(b) != "x" {
		t.Errorf("reading: %q, %v", b, err)
	}
	refusesWrites(t, d)
}

func TestReadOnlyDirectory(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root writes in a read-only directory; TestReadOnlyFileSystem covers root")
	}
	path := private(t)
	d := open(t, path)
	if err := d.Replace("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
	refusesWrites(t, d)
}

func refusesWrites(t *testing.T, d *statefile.Dir) {
	t.Helper()
	_, reserve := d.Reserve("a", 10)
	_, lock := d.Lock()
	for what, err := range map[string]error{
		"replace": d.Replace("a", nil), "rename": d.Rename("a", "b"), "remove": d.Remove("a"), "reserve": reserve, "lock": lock,
	} {
		if !fault.Is(err, fault.Unwritable) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if b, err := d.Read("a", 10); err != nil || string(b) != "x" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

package identity_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// mountSmall mounts a file system of a few MiB for the test, or skips where the machine doesn't let it.
func mountSmall(t *testing.T) string {
	t.Helper()
	path := stateDir(t)
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", path, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return path
}

// fillDisk leaves no room, until the function that it returns is called.
func fillDisk(t *testing.T, path string) (free func()) {
	t.Helper()
	name := filepath.Join(path, "filler")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return func() {
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

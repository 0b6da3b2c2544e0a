package statefile

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Volatile names the kind of file system that the directory is on where that kind is usually lost with a reboot or with
// the container ("tmpfs", "ramfs", "overlay"), else "". The error is [io/fs.ErrNotExist] while the directory does not exist.
func (d *Dir) Volatile() (string, error) {
	dir, err := d.open()
	if err != nil {
		return "", err
	}
	var st unix.Statfs_t
	if err := retry(func() error { return unix.Fstatfs(int(dir.Fd()), &st) }); err != nil {
		return "", fmt.Errorf("cannot ask for the file system of %q: %w", d.path, err)
	}
	switch int64(st.Type) { //nolint:unconvert // the field's type differs between architectures
	case unix.TMPFS_MAGIC:
		return "tmpfs", nil
	case unix.RAMFS_MAGIC:
		return "ramfs", nil
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlay", nil
	default:
		return "", nil
	}
}

package statefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// Replace gives a file new content, mode 0600. When it returns nil the content survives a power cut; when it returns an
// error, the old content is still there, unless it was the last sync that failed.
func (d *Dir) Replace(name string, data []byte) error {
	t, err := d.create(name)
	if err != nil {
		return err
	}
	if err := t.fill(data); err != nil {
		t.discard()
		return err
	}
	return t.rename()
}

// Rename gives a file another name, over one that may exist, and syncs the directory.
func (d *Dir) Rename(from, to string) error {
	for _, name := range []string{from, to} {
		if err := checkName(name); err != nil {
			return err
		}
	}
	dir, err := d.open()
	if err != nil {
		return err
	}
	if err := unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to); err != nil {
		return d.fail(err, "cannot rename %q to %q", filepath.Join(d.path, from), to)
	}
	d.step("rename", to)
	return d.sync(dir, to)
}

// MoveAside gives whatever has the name from, a state file or not, the name to, and syncs the directory. Nothing that has
// that name already is replaced: that is an error. moved is false where there is nothing to move, as after a move before.
func (d *Dir) MoveAside(from, to string) (moved bool, err error) {
	for _, name := range []string{from, to} {
		if err := checkName(name); err != nil {
			return false, err
		}
	}
	dir, err := d.open()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	fd := int(dir.Fd())
	err = unix.Renameat2(fd, from, fd, to, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // not every file system has it; the lock keeps others out
		var there bool
		if there, err = d.Exists(to); err == nil && there {
			err = unix.EEXIST
		} else if err == nil {
			err = unix.Renameat(fd, from, fd, to)
		}
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case errors.Is(err, unix.EEXIST):
		return false, fault.New(fault.AlreadyExists, hintForeign, "cannot move %q to %q: it is there already", filepath.Join(d.path, from), to)
	case err != nil:
		return false, d.fail(err, "cannot move %q to %q", filepath.Join(d.path, from), to)
	}
	d.step("rename", to)
	return true, d.sync(dir, to)
}

// Exists reports whether anything has the name, a state file or not.
func (d *Dir) Exists(name string) (bool, error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	dir, err := d.open()
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	switch err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cannot look for %q: %w", filepath.Join(d.path, name), err)
	}
	return true, nil
}

// Names returns what is in the directory, sorted, without the lock and without temporary files. A directory that does not
// exist has nothing in it.
func (d *Dir) Names() ([]string, error) {
	dir, err := d.open()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := d.list(dir)
	names = slices.DeleteFunc(names, func(name string) bool { return name == LockName || isTemp(name) })
	slices.Sort(names)
	return names, err
}

// Remove removes a file and syncs the directory. A file that does not exist is no error.
func (d *Dir) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	dir, err := d.open()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch err := unix.Unlinkat(int(dir.Fd()), name, 0); {
	case errors.Is(err, unix.ENOENT):
		return nil
	case err != nil:
		return d.fail(err, "cannot remove %q", filepath.Join(d.path, name))
	}
	d.step("remove", name)
	return d.sync(dir, name)
}

func (d *Dir) sync(dir *os.File, name string) error {
	if err := dir.Sync(); err != nil {
		return d.fail(err, "cannot sync directory %q", d.path)
	}
	d.step("sync-dir", name)
	return nil
}

// temp is a temporary file that becomes name.
type temp struct {
	d    *Dir
	dir  *os.File
	f    *os.File
	name string
	tmp  string
}

// create makes an empty temporary file, mode 0600 and with the right owner before it has content.
func (d *Dir) create(name string) (*temp, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	dir, err := d.make()
	if err != nil {
		return nil, err
	}
	t := &temp{d: d, dir: dir, name: name, tmp: "." + name + tempMark + rand.Text()}
	fd, err := unix.Openat(int(dir.Fd()), t.tmp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return nil, t.fail(err)
	}
	t.f = os.NewFile(uintptr(fd), filepath.Join(d.path, t.tmp))
	err = t.f.Chmod(fileMode) // the umask may have taken the owner's bits
	if err == nil && d.owner != nil {
		err = t.f.Chown(d.owner.uid, d.owner.gid)
	}
	if err != nil {
		t.discard()
		return nil, t.fail(err)
	}
	d.step("create", name)
	return t, nil
}

func (t *temp) fail(err error) error {
	return t.d.fail(err, "cannot write %q", filepath.Join(t.d.path, t.name))
}

// fill gives the file exactly the content data, on the disk.
func (t *temp) fill(data []byte) error {
	if _, err := t.f.WriteAt(data, 0); err != nil {
		return t.fail(err)
	}
	if err := t.f.Truncate(int64(len(data))); err != nil {
		return t.fail(err)
	}
	t.d.step("write", t.name)
	return t.sync()
}

func (t *temp) sync() error {
	if err := t.f.Sync(); err != nil {
		return t.fail(err)
	}
	t.d.step("sync", t.name)
	return nil
}

// rename puts the file in its place. The temporary file is gone afterwards, whatever happens.
func (t *temp) rename() error {
	if err := t.f.Close(); err != nil {
		t.discard()
		return t.fail(err)
	}
	fd := int(t.dir.Fd())
	if err := unix.Renameat(fd, t.tmp, fd, t.name); err != nil {
		t.discard()
		return t.fail(err)
	}
	t.d.step("rename", t.name)
	return t.d.sync(t.dir, t.name)
}

// discard removes the temporary file. It ignores errors: whoever next takes the lock removes what is left.
func (t *temp) discard() {
	_ = t.f.Close()
	_ = unix.Unlinkat(int(t.dir.Fd()), t.tmp, 0)
}

const tempMark = ".tmp-"

func isTemp(name string) bool {
	return strings.HasPrefix(name, ".") && strings.Contains(name, tempMark)
}

// sweep removes what writers that were stopped left behind. Only the lock's holder may call it.
func (d *Dir) sweep(dir *os.File) error {
	names, err := d.list(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !isTemp(name) {
			continue
		}
		if err := unix.Unlinkat(int(dir.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return d.fail(err, "cannot remove %q", filepath.Join(d.path, name))
		}
		d.step("remove", name)
	}
	return nil
}

// list returns the names in the directory.
func (d *Dir) list(dir *os.File) ([]string, error) {
	// A descriptor of its own: reading entries moves a position that every user of the other one shares.
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.fail(err, "cannot list directory %q", d.path)
	}
	again := os.NewFile(uintptr(fd), d.path)
	defer again.Close()
	names, err := again.Readdirnames(-1)
	if err != nil {
		return nil, d.fail(err, "cannot list directory %q", d.path)
	}
	return names, nil
}

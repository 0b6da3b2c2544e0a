package statefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// Give gives the named files, and then the directory, to [WithOwner]'s user where they are still root's: those that were
// written before there was such a user. Names without a file are passed over. Without WithOwner it does nothing.
func (d *Dir) Give(names ...string) error {
	if d.owner == nil {
		return nil
	}
	dir, err := d.open()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := checkName(name); err != nil {
			return err
		}
		path := filepath.Join(d.path, name)
		fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return d.fail(err, "cannot give %q to user %d", path, d.owner.uid)
		}
		f := os.NewFile(uintptr(fd), path)
		err = d.give(name, f)
		_ = f.Close() // opened for reading only
		if err != nil {
			return err
		}
	}
	if err := dir.Chown(d.owner.uid, d.owner.gid); err != nil {
		return d.fail(err, "cannot give directory %q to user %d", d.path, d.owner.uid)
	}
	return d.sync(dir, "")
}

// give gives the file that was opened by the name to the directory's owner, where there is one. The owner may have put something
// else in the file's place: another name of a file of root's must not become theirs. So one look must show that the file's
// only name is the one in this directory: after a look at the open file alone, the owner could have removed that one.
func (d *Dir) give(name string, f *os.File) error {
	if d.owner == nil {
		return nil
	}
	dir, err := d.open()
	if err != nil {
		return err
	}
	var opened, st unix.Stat_t
	err = unix.Fstat(int(f.Fd()), &opened)
	if err == nil {
		err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("cannot look at %q: %w", f.Name(), err)
	}
	switch {
	case st.Dev != opened.Dev, st.Ino != opened.Ino:
		return fault.New(fault.Failed, hintForeign, "cannot use %q: something else has the name by now", f.Name())
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fault.New(fault.Failed, hintForeign, "cannot use %q: it is not a regular file", f.Name())
	case st.Nlink != 1:
		return fault.New(fault.Failed, hintForeign, "cannot use %q: the file has another name, too", f.Name())
	case int(st.Uid) == d.owner.uid && int(st.Gid) == d.owner.gid:
		return nil
	case !d.trusts(st.Uid):
		return fault.New(fault.Failed, "find out who wrote it", "cannot use %q: it belongs to user %d", f.Name(), st.Uid)
	}
	if err := f.Chown(d.owner.uid, d.owner.gid); err != nil {
		return d.fail(err, "cannot give %q to user %d", f.Name(), d.owner.uid)
	}
	return nil
}

// Package statefile keeps small files in one private directory so that a crash, a power cut or a full disk leaves either
// the old content or the new one, never a part of it.
//
// A file is replaced by writing a temporary file in the same directory, syncing it, renaming it over the old one and
// syncing the directory. Everything goes through one open directory: its path is looked up once, never follows a
// symbolic link at its end, and is refused where another user could write in it. Files are 0600 before they have
// content.
//
// # What this package does not do
//
// It knows no format and keeps no old versions. It doesn't stop two processes from writing: callers hold [Dir.Lock]
// while they write. It promises what the file system promises; one that ignores fsync loses files in a power cut.
package statefile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	// othersWrite are the permission bits that let someone else than the owner write.
	othersWrite = 0o022
)

// Dir is a directory of state files. Its methods are safe for concurrent use, except that two writers of one name
// race (see [Dir.Lock]) and that [Dir.Close] must come last.
type Dir struct {
	path  string
	owner *owner
	step  func(op, name string)

	mu sync.Mutex
	f  *os.File // nil until the directory exists
}

type owner struct{ uid, gid int }

// Option changes how a directory is opened.
type Option func(*Dir)

// WithOwner accepts a directory that belongs to uid and gives every new file to uid and gid. It is for root, which
// writes for the user that a daemon runs as.
func WithOwner(uid, gid int) Option { return func(d *Dir) { d.owner = &owner{uid, gid} } }

// WithStep calls f after every step that changes the file system or makes a change durable. It lets a test stop the
// process at each of them. The steps are "mkdir", "create", "allocate", "write", "sync", "rename", "remove" and
// "sync-dir"; name is the file that the step is for, and "" for the directory.
func WithStep(f func(op, name string)) Option { return func(d *Dir) { d.step = f } }

// Open opens the directory at path. One that does not exist is no error: it has no files, and the first write or lock
// makes it, with mode 0700. Its parent must exist. A symbolic link, a directory that group or others can write in, and
// one that belongs neither to root nor to the effective user (nor to [WithOwner]'s) are refused with
// [fault.Unwritable]. The caller closes the Dir.
func Open(path string, opts ...Option) (*Dir, error) {
	abs, err := filepath.Abs(path) // also drops a slash at the end, which would make open follow a link
	if err != nil {
		return nil, fmt.Errorf("cannot open directory %q: %w", path, err)
	}
	d := &Dir{path: abs, step: func(string, string) {}}
	for _, o := range opts {
		o(d)
	}
	if _, err := d.open(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return d, nil
}

// Path returns the absolute path of the directory.
func (d *Dir) Path() string { return d.path }

// Close closes the directory. It may be called twice. A later call of another method opens it again.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.f == nil {
		return nil
	}
	f := d.f
	d.f = nil
	return f.Close()
}

// open returns the open directory, or an error that is [fs.ErrNotExist].
func (d *Dir) open() (*os.File, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.f != nil {
		return d.f, nil
	}
	fd, err := unix.Open(d.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return nil, fault.New(fault.Unwritable, "name the directory itself; symbolic links are not followed",
			"cannot open directory %q: it is a file or a symbolic link", d.path)
	case errors.Is(err, unix.EACCES):
		return nil, fault.New(fault.Unwritable, "run it as root, or as the directory's owner", "cannot open directory %q: %w", d.path, err)
	case err != nil:
		return nil, fmt.Errorf("cannot open directory %q: %w", d.path, err)
	}
	f := os.NewFile(uintptr(fd), d.path)
	if err := d.check(f); err != nil {
		f.Close()
		return nil, err
	}
	d.f = f
	return f, nil
}

// make opens the directory and makes it first where it is missing.
func (d *Dir) make() (*os.File, error) {
	f, err := d.open()
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := unix.Mkdir(d.path, dirMode); err != nil && !errors.Is(err, unix.EEXIST) {
		if errors.Is(err, unix.ENOENT) {
			return nil, fault.New(fault.Unwritable, fmt.Sprintf("make %s first", filepath.Dir(d.path)), "cannot make directory %q: %w", d.path, err)
		}
		return nil, d.fail(err, "cannot make directory %q", d.path)
	}
	d.step("mkdir", "")
	if d.owner != nil {
		if err := unix.Lchown(d.path, d.owner.uid, d.owner.gid); err != nil {
			return nil, d.fail(err, "cannot give directory %q to user %d", d.path, d.owner.uid)
		}
	}
	parent, err := os.Open(filepath.Dir(d.path))
	if err != nil {
		return nil, d.fail(err, "cannot make directory %q", d.path)
	}
	defer parent.Close()
	if err := parent.Sync(); err != nil {
		return nil, d.fail(err, "cannot make directory %q", d.path)
	}
	d.step("sync-dir", "")
	return d.open()
}

// check refuses a directory in which someone else could put or replace files.
func (d *Dir) check(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("cannot open directory %q: %w", d.path, err)
	}
	if !d.trusts(st.Uid) {
		return fault.New(fault.Unwritable, "run it as that user, or as root give the directory to the right one with chown",
			"cannot use directory %q: it belongs to user %d", d.path, st.Uid)
	}
	if st.Mode&othersWrite != 0 {
		return fault.New(fault.Unwritable, fmt.Sprintf("chmod 0700 %s", d.path),
			"cannot use directory %q: its mode %04o lets others write in it", d.path, st.Mode&0o7777)
	}
	return nil
}

func (d *Dir) trusts(uid uint32) bool {
	return uid == 0 || int(uid) == os.Geteuid() || d.owner != nil && int(uid) == d.owner.uid
}

// Read returns the content of a file. One that is larger than limit bytes is refused, and so is anything but a regular
// file, and a file that someone else owns or can write. A file that does not exist is [fs.ErrNotExist].
func (d *Dir) Read(name string, limit int) ([]byte, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	dir, err := d.open()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(d.path, name)
	// O_NONBLOCK: a named pipe must not hang the caller before it is seen for what it is.
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EACCES) {
		return nil, fault.New(fault.Failed, "run it as root, or as the file's owner", "cannot read %q: %w", path, err)
	}
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
		return nil, fmt.Errorf("cannot read %q: it is not a regular file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("cannot read %q: it is not a regular file", path)
	case !d.trusts(st.Uid):
		return nil, fault.New(fault.Failed, "find out who wrote it", "cannot use %q: it belongs to user %d", path, st.Uid)
	case d.owner != nil && st.Nlink > 1:
		return nil, fault.New(fault.Failed, "find out who put it there, then move it away", "cannot use %q: the file has another name, too", path)
	case st.Mode&othersWrite != 0:
		return nil, fault.New(fault.Failed, fmt.Sprintf("find out who wrote it, then chmod 0600 %s", path),
			"cannot use %q: its mode %04o lets others write it", path, st.Mode&0o7777)
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read %q: %w", path, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("cannot read %q: it is larger than %d bytes", path, limit)
	}
	return data, nil
}

// checkName accepts one element of a path that is no temporary file of ours.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || isTemp(name) {
		return fmt.Errorf("%q cannot name a state file", name)
	}
	return nil
}

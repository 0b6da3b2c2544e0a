package hwclaims

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// gather reads the machine's facts from the source that o names.
func gather(ctx context.Context, o Options) (facts, error) {
	if o.Profile != "" {
		return readProfile(o.Profile)
	}
	var f facts
	if err := o.inTree(func(t tree, root string) {
		f.readFirmware(t)
		f.readHostname(t, root)
		f.readNICs(t, root)
		f.readGPUs(ctx, t, running(root), o)
	}); err != nil {
		return facts{}, err
	}
	return f, ctx.Err()
}

// gatherFirmware reads the firmware's facts alone.
func gatherFirmware(ctx context.Context, o Options) (f facts, err error) {
	if o.Profile != "" {
		f, err = readProfile(o.Profile)
		f.nics, f.gpus = nil, nil
		return f, err
	}
	if err := o.inTree(func(t tree, _ string) { f.readFirmware(t) }); err != nil {
		return facts{}, err
	}
	return f, ctx.Err()
}

// inTree has read read below the root.
func (o Options) inTree(read func(t tree, root string)) error {
	root := "/"
	if o.Root != "" {
		root = filepath.Clean(o.Root)
	}
	t := tree{fsys: os.DirFS("/")}
	if root != "/" { // a link in it must not lead out of it
		dir, err := os.OpenRoot(root)
		if err != nil {
			return fault.New(fault.Config, "name the folder where the host's root is mounted",
				"cannot open host root %q: %w", root, err)
		}
		defer func() { _ = dir.Close() }() // opened for reading only
		t.fsys = dir.FS()
	}
	read(t, root)
	return nil
}

// readHostname takes the running kernel's host name where root is its own. Another root's /proc answers with the name of
// the process that asks, so the file comes first there.
func (f *facts) readHostname(t tree, root string) {
	if root == "/" {
		if name, err := os.Hostname(); err == nil {
			f.hostname = name
			return
		}
	}
	for _, path := range []string{"etc/hostname", "proc/sys/kernel/hostname"} {
		if h := t.field(path); h.state == fieldPresent && hostname(h.bytes) != "" {
			f.hostname = h.bytes
			return
		}
	}
}

// sharesNetwork reports whether the root's machine has the network namespace that this process asks by netlink. A
// recorded machine has none: its link, if it has one, leads nowhere.
func sharesNetwork(root string) bool {
	if root == "/" {
		return true
	}
	own, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return false
	}
	other, err := os.Stat(filepath.Join(root, "proc/1/ns/net"))
	return err == nil && os.SameFile(own, other)
}

// running reports whether the root belongs to the machine that this process runs on, and is no recorded one.
func running(root string) bool {
	if root == "/" {
		return true
	}
	var st unix.Statfs_t
	return unix.Statfs(filepath.Join(root, "proc"), &st) == nil && st.Type == unix.PROC_SUPER_MAGIC
}

// tree reads files below one root and never leaves it.
type tree struct{ fsys fs.FS }

// maxFile is how much of a file is read, in bytes. The kernel's own files are smaller than a page.
const maxFile = 64 << 10

// field reads one small file. Only a file that is not there is absent.
func (t tree) field(path string) field {
	b, err := t.read(path)
	switch {
	case err == nil:
		return field{state: fieldPresent, bytes: string(b), path: "/" + path}
	case absent(err) || errors.Is(err, unix.EOPNOTSUPP):
		return field{path: "/" + path}
	default:
		return field{state: fieldUnreadable, path: "/" + path, cause: cause(err)}
	}
}

// read reads the start of a regular file. Anything else in its place, a pipe of a recorded tree say, could block for
// ever when opened.
func (t tree) read(path string) ([]byte, error) {
	info, err := fs.Stat(t.fsys, path)
	if err != nil {
		return nil, err //nolint:wrapcheck // field tells the errors apart
	}
	if info.IsDir() {
		return nil, syscall.EISDIR
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := t.fsys.Open(path)
	if err != nil {
		return nil, err //nolint:wrapcheck // as above
	}
	defer func() { _ = f.Close() }() // opened for reading only
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// absent reports an error that says that there is no such file.
func absent(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) }

// text returns a file's content without its last line feed, "" for a file that cannot be read.
func (t tree) text(path string) string {
	s, _ := cleanText(t.field(path).bytes)
	return s
}

// lstat reports whether there is a file of that name, a link included, and why nobody can tell.
func (t tree) lstat(path string) (exists bool, problem error) {
	_, err := fs.Lstat(t.fsys, path)
	if err != nil && !absent(err) {
		return false, err //nolint:wrapcheck // cause takes it apart
	}
	return err == nil, nil
}

// cause returns the innermost words of an error of the file system: the path is said elsewhere.
func cause(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

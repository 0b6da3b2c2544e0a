package statefile_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

func open(t *testing.T, path string, opts ...statefile.Option) *statefile.Dir {
	t.Helper()
	d, err := statefile.Open(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// private returns a directory that Open accepts.
func private(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

func umask(t *testing.T, mask int) {
	t.Helper()
	old := syscall.Umask(mask)
	t.Cleanup(func() { syscall.Umask(old) })
}

func list(t *testing.T, path string) []string {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

func TestTheFirstWriteMakesTheDirectory(t *testing.T) {
	umask(t, 0)
	path := filepath.Join(t.TempDir(), "state")
	d := open(t, path)

	if _, err := d.Read("a", 10); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("read: %v", err)
	}
	if err := d.Remove("a"); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("reading made the directory: %v", err)
	}
	if err := d.Replace("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := mode(t, path); got != fs.ModeDir|0o700 {
		t.Errorf("directory has mode %v", got)
	}
	if got := mode(t, filepath.Join(path, "a")); got != 0o600 {
		t.Errorf("file has mode %v", got)
	}
}

// A file that was readable to others is replaced by one that is not, whatever the umask, and one with content is never
// readable to others in between.
func TestFilesArePrivateBeforeTheyHaveContent(t *testing.T) {
	for _, mask := range []int{0, 0o777} {
		path := private(t)
		name := filepath.Join(path, "key")
		if err := os.WriteFile(name, []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, 0o644); err != nil {
			t.Fatal(err)
		}
		old := syscall.Umask(mask)
		d := open(t, path, statefile.WithStep(func(op, _ string) {
			for _, n := range list(t, path) {
				if got := mode(t, filepath.Join(path, n)); got != 0o600 && n != "key" {
					t.Errorf("umask %03o: after %s, %s has mode %v", mask, op, n, got)
				}
			}
		}))
		err := d.Replace("key", []byte("new"))
		syscall.Umask(old)
		if err != nil {
			t.Fatal(err)
		}
		if got := mode(t, name); got != 0o600 {
			t.Errorf("umask %03o: mode %v", mask, got)
		}
	}
}

func TestEveryStepInItsOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state")
	var got []string
	d := open(t, path, statefile.WithStep(func(op, name string) { got = append(got, strings.TrimSpace(op+" "+name)) }))
	step := func(what string, err error, want ...string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", what, diff)
		}
		got = nil
	}

	step("first replace", d.Replace("a", []byte("1")), "mkdir", "sync-dir", "create a", "write a", "sync a", "rename a", "sync-dir a")
	step("replace", d.Replace("a", []byte("2")), "create a", "write a", "sync a", "rename a", "sync-dir a")
	step("rename", d.Rename("a", "b"), "rename b", "sync-dir b")
	r, err := d.Reserve("c", 100)
	step("reserve", err, "create c", "allocate c")
	step("commit", r.Commit([]byte("3")), "write c", "sync c", "rename c", "sync-dir c")
	step("remove", d.Remove("b"), "remove b", "sync-dir b")
	step("remove what is not there", d.Remove("b"))

	if diff := cmp.Diff([]string{"c"}, list(t, path)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if b, err := d.Read("c", 100); err != nil || string(b) != "3" {
		t.Errorf("c has %q, %v: the reservation's size must not show", b, err)
	}
}

// At every step a reader sees the whole old content or the whole new one.
func TestReplaceIsAtomic(t *testing.T) {
	path := private(t)
	old, next := bytes.Repeat([]byte("o"), 5000), bytes.Repeat([]byte("n"), 3000)
	steps, seen := 0, map[string]bool{}
	d := open(t, path)
	if err := d.Replace("a", old); err != nil {
		t.Fatal(err)
	}
	w := open(t, path, statefile.WithStep(func(op, _ string) {
		steps++
		b, err := d.Read("a", 10000)
		if err != nil || !bytes.Equal(b, old) && !bytes.Equal(b, next) {
			t.Errorf("after %s: %d bytes, %v", op, len(b), err)
			return
		}
		seen[string(b[:1])] = true
	}))
	if err := w.Replace("a", next); err != nil {
		t.Fatal(err)
	}
	if steps < 5 || len(seen) != 2 {
		t.Errorf("%d steps, saw %v", steps, seen)
	}
}

func TestUnsafeDirectoriesAreRefused(t *testing.T) {
	dir := private(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	withMode := func(m fs.FileMode) string {
		path := private(t)
		if err := os.Chmod(path, m); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, tc := range map[string]struct{ path, want string }{
		"symbolic link":           {link, "symbolic link"},
		"symbolic link and slash": {link + "/", "symbolic link"},
		"file":                    {file, "it is a file"},
		"group may write":         {withMode(0o770), "lets others write"},
		"others may write":        {withMode(0o777 | fs.ModeSticky), "lets others write"},
	} {
		_, err := statefile.Open(tc.path)
		if fault.CodeOf(err) != fault.Unwritable || !strings.Contains(err.Error(), tc.want) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	open(t, withMode(0o755)) // others may look
	if d := open(t, filepath.Join(t.TempDir(), "a", "b")); !fault.Is(d.Replace("x", nil), fault.Unwritable) {
		t.Error("a missing parent is not said")
	}
}

func TestForeignOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	const uid, gid = 61234, 61235
	path := private(t)
	if err := os.Chown(path, uid, gid); err != nil {
		t.Fatal(err)
	}
	if _, err := statefile.Open(path); !fault.Is(err, fault.Unwritable) || !strings.Contains(err.Error(), "61234") {
		t.Errorf("a directory of another user: %v", err)
	}
	d := open(t, path, statefile.WithOwner(uid, gid))
	if err := d.Replace("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	release()
	for _, name := range []string{"a", statefile.LockName} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(path, name), &st); err != nil || st.Uid != uid || st.Gid != gid {
			t.Errorf("%s belongs to %d:%d, %v", name, st.Uid, st.Gid, err)
		}
	}

	own := open(t, private(t))
	if err := own.Replace("a", nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(own.Path(), "a"), uid, gid); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Read("a", 10); err == nil || !strings.Contains(err.Error(), "61234") {
		t.Errorf("a file of another user: %v", err)
	}

	made := open(t, filepath.Join(t.TempDir(), "made"), statefile.WithOwner(uid, gid))
	if err := made.Replace("a", nil); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(made.Path(), &st); err != nil || st.Uid != uid {
		t.Errorf("the new directory belongs to %d, %v", st.Uid, err)
	}
}

// Root gives what it wrote before there was such a user, and takes nothing for a file of the directory's that is another one's,
// too: whoever owns the directory could make root give a file of its own away, or truncate it.
func TestGivingFilesAway(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give files away")
	}
	const uid, gid = 61234, 61235
	path := private(t)
	own := open(t, path)
	for _, name := range []string{"a", "b"} {
		if err := own.Replace(name, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, path, statefile.WithOwner(uid, gid))
	if err := d.Give("a", "absent"); err != nil {
		t.Fatal(err)
	}
	owner := func(path string) int {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return int(st.Uid)
	}
	for name, want := range map[string]int{"": uid, "a": uid, "b": 0} {
		if got := owner(filepath.Join(path, name)); got != want {
			t.Errorf("%q belongs to %d, want %d", name, got, want)
		}
	}

	precious := filepath.Join(filepath.Dir(path), "precious")
	if err := os.WriteFile(precious, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"hard", statefile.LockName} {
		if err := os.Link(precious, filepath.Join(path, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(precious, filepath.Join(path, "soft")); err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]func() error{
		"give a hard link":    func() error { return d.Give("hard") },
		"give a soft link":    func() error { return d.Give("soft") },
		"read a hard link":    func() error { _, err := d.Read("hard", 10); return err },
		"lock by a hard link": func() error { _, err := d.Lock(); return err },
	} {
		if err := try(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if content, err := os.ReadFile(precious); err != nil || string(content) != "root's" || owner(precious) != 0 {
		t.Errorf("the file of root's is now %q of %d, %v", content, owner(precious), err)
	}
	if err := own.Give("b"); err != nil || owner(filepath.Join(path, "b")) != 0 {
		t.Errorf("without an owner: %v", err)
	}
}

func TestWhatReadRefuses(t *testing.T) {
	path := private(t)
	d := open(t, path)
	write := func(name, content string, m fs.FileMode) {
		if err := os.WriteFile(filepath.Join(path, name), []byte(content), m); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(path, name), m); err != nil {
			t.Fatal(err)
		}
	}
	write("fits", "12345", 0o600)
	write("large", "123456", 0o600)
	write("writable", "1", 0o602)
	if err := os.Symlink("fits", filepath.Join(path, "link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(path, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, "dir"), 0o700); err != nil {
		t.Fatal(err)
	}

	if b, err := d.Read("fits", 5); err != nil || string(b) != "12345" {
		t.Errorf("fits: %q, %v", b, err)
	}
	for name, want := range map[string]string{
		"large": "larger than 5 bytes", "writable": "lets others write", "link": "not a regular file", "pipe": "not a regular file", "dir": "not a regular file",
	} {
		if _, err := d.Read(name, 5); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if _, err := d.Read("none", 5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
}

func TestNamesAreOneElement(t *testing.T) {
	d := open(t, private(t))
	for _, name := range []string{"", ".", "..", "a/b", "/a", "../a", "a\x00", ".a.tmp-x"} {
		if _, err := d.Read(name, 1); err == nil || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("read %q: %v", name, err)
		}
		for what, err := range map[string]error{
			"replace": d.Replace(name, nil), "remove": d.Remove(name), "rename": d.Rename("a", name), "rename from": d.Rename(name, "a"),
		} {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s %q: %v", what, name, err)
			}
		}
		if _, err := d.Reserve(name, 1); err == nil {
			t.Errorf("reserve %q", name)
		}
	}
}

func TestReservations(t *testing.T) {
	path := private(t)
	d := open(t, path)
	r, err := d.Reserve("a", 10)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Commit(make([]byte, 11)); err == nil {
		t.Error("more than was reserved is accepted")
	}
	if err := r.Commit(nil); err == nil {
		t.Error("a reservation that ended is used again")
	}
	r.Discard()
	if r, err = d.Reserve("a", 10); err != nil {
		t.Fatal(err)
	}
	r.Discard()
	r.Discard()
	r = nil
	r.Discard()
	if got := list(t, path); len(got) != 0 {
		t.Errorf("left behind: %v", got)
	}
}

// The directory's user gives a file of root's another name in there, and takes the name away between root's open and its look:
// then the file has one name, which is not the directory's.
func TestAFileWhoseNameIsGoneIsNotGiven(t *testing.T) {
	path := private(t)
	precious, name := filepath.Join(filepath.Dir(path), "precious"), filepath.Join(path, "a")
	if err := os.WriteFile(precious, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := open(t, path, statefile.WithOwner(os.Geteuid()+1, os.Getegid()+1))
	for what, instead := range map[string]func() error{
		"nothing":      func() error { return nil },
		"another file": func() error { return os.WriteFile(name, nil, 0o600) },
		"a soft link":  func() error { return os.Symlink(precious, name) },
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.Link(precious, name); err != nil {
				t.Fatal(err)
			}
			f, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if err := errors.Join(os.Remove(name), instead()); err != nil {
				t.Fatal(err)
			}
			defer os.Remove(name)
			err = d.GiveOpen("a", f)
			if err == nil || errors.Is(err, os.ErrPermission) {
				t.Errorf("it was given, or would have been: %v", err)
			}
			info, err := f.Stat()
			if err != nil || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid()) {
				t.Errorf("%+v, %v", info.Sys(), err)
			}
		})
	}
}

// The state survives another name for the path: everything goes through the directory that was opened.
func TestTheDirectoryIsLookedUpOnce(t *testing.T) {
	path := private(t)
	d := open(t, path)
	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), path); err != nil {
		t.Fatal(err)
	}
	if err := d.Replace("a", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := list(t, moved); len(got) != 1 {
		t.Errorf("the write went elsewhere: %v", got)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := d.Replace("a", nil); !fault.Is(err, fault.Unwritable) {
		t.Errorf("reopened through a symbolic link: %v", err)
	}
}

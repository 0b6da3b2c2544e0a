package statefile

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// LockName is the file that [Dir.Lock] locks. It stays behind: removing it would let two processes hold two locks.
const LockName = "lock"

// Lock takes the directory's lock (flock) without waiting, and removes the temporary files that writers left which were
// stopped. A lock that another process holds is [fault.Busy]. The lock ends with release, which may be called twice, and
// with the process.
func (d *Dir) Lock() (release func(), err error) {
	dir, err := d.make()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(d.path, LockName)
	fd, err := unix.Openat(int(dir.Fd()), LockName, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, fileMode)
	if err != nil {
		return nil, d.fail(err, "cannot lock %q", path)
	}
	f := os.NewFile(uintptr(fd), path)
	var once sync.Once
	unlock := func() {
		once.Do(func() {
			_ = unix.Flock(fd, unix.LOCK_UN) // a child that is between fork and exec still has the descriptor
			_ = f.Close()
		})
	}
	defer func() {
		if release == nil {
			unlock()
		}
	}()
	if err := retry(func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Busy, `wait for it to end, or stop it ("systemctl stop bcd")`,
				"cannot lock %q: another bcd%s holds it", path, holder(f))
		}
		return nil, d.fail(err, "cannot lock %q", path)
	}
	if err := d.give(LockName, f); err != nil {
		return nil, err
	}
	sign(f)
	if err := d.sweep(dir); err != nil {
		return nil, err
	}
	return unlock, nil
}

// sign writes who holds the lock, for the message that another process prints. A full disk must not cost the lock, so
// it fails in silence.
func sign(f *os.File) {
	if f.Truncate(0) == nil {
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	}
}

func holder(f *os.File) string {
	b := make([]byte, 16)
	n, _ := f.ReadAt(b, 0)
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil || pid <= 0 {
		return ""
	}
	return " (process " + strconv.Itoa(pid) + ")"
}

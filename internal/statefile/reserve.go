package statefile

import (
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Reserved is room on the disk for a later [Dir.Replace] of one file.
type Reserved struct {
	t    *temp
	size int
}

// Reserve takes room for size bytes of a file now, so that writing it later can't meet a full disk. The caller ends it
// with [Reserved.Commit] or [Reserved.Discard].
func (d *Dir) Reserve(name string, size int) (*Reserved, error) {
	t, err := d.create(name)
	if err != nil {
		return nil, err
	}
	if err := t.allocate(size); err != nil {
		t.discard()
		return nil, err
	}
	return &Reserved{t: t, size: size}, nil
}

// allocate gives the file size bytes of real blocks. Fallocate takes them at once: there is nothing to sync, since a
// reservation need not outlive the process. Bytes that are written may get their blocks, and a full disk its error, as late
// as at the sync.
func (t *temp) allocate(size int) error {
	err := retry(func() error { return unix.Fallocate(int(t.f.Fd()), 0, 0, int64(size)) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		// Such file systems often compress: zeros would take no room.
		noise := make([]byte, size)
		if _, err := rand.Read(noise); err != nil {
			return t.fail(err)
		}
		if _, err = t.f.WriteAt(noise, 0); err == nil {
			err = t.f.Sync()
		}
	}
	if err != nil {
		return t.d.fail(err, "cannot reserve %d bytes for %q", size, t.name)
	}
	t.d.step("allocate", t.name)
	return nil
}

// Commit replaces the file as [Dir.Replace] does, within the room that was reserved. It ends the reservation.
func (r *Reserved) Commit(data []byte) error {
	t := r.t
	if t == nil {
		return errors.New("the reservation has ended")
	}
	r.t = nil
	if len(data) > r.size {
		t.discard()
		return fmt.Errorf("cannot write %q: %d bytes do not fit in the %d that were reserved", t.name, len(data), r.size)
	}
	if err := t.fill(data); err != nil {
		t.discard()
		return err
	}
	return t.rename()
}

// Discard gives the room back. It may follow a Commit, and r may be nil.
func (r *Reserved) Discard() {
	if r == nil || r.t == nil {
		return
	}
	r.t.discard()
	r.t = nil
}

// retry repeats a call that a signal interrupted.
func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

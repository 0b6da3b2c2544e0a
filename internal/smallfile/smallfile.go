// Package smallfile reads a small regular file together with what decides whether to believe it: owner and mode.
//
// All of it is asked of the opened file, never of the path, so that what was judged is what was read; a symbolic link
// is followed. Opening never waits: a FIFO is refused instead. What owner and mode must be is the caller's rule, and so
// are error codes and hints. Writing is internal/statefile.
package smallfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrTooLarge is wrapped by [Read]'s error for a file that is larger than the limit.
var ErrTooLarge = errors.New("the file is too large")

// File is a file that was read.
type File struct {
	// Content is all of the file.
	Content []byte
	// Perm is its permission bits.
	Perm fs.FileMode
	// UID is its owner.
	UID int

	info fs.FileInfo
}

// Read reads a regular file of at most limit bytes. Its errors do not repeat the path; they wrap the cause, such as
// [fs.ErrNotExist].
func Read(path string, limit int64) (File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return File{}, bare(err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return File{}, bare(err)
	}
	if !info.Mode().IsRegular() {
		return File{}, fmt.Errorf("it is %s, not a regular file", kind(info.Mode()))
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return File{}, errors.New("its owner is not known")
	}
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return File{}, bare(err)
	}
	if int64(len(content)) > limit {
		return File{}, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, limit)
	}
	return File{Content: content, Perm: info.Mode().Perm(), UID: int(stat.Uid), info: info}, nil
}

// Is reports whether path is still this file: false once another one was put in its place.
func (f File) Is(path string) bool {
	info, err := os.Stat(path)
	return err == nil && f.info != nil && os.SameFile(f.info, info)
}

// OwnedBy reports whether the owner is root or the given user: who may write the file whatever its mode.
func (f File) OwnedBy(uid int) bool { return f.UID == 0 || f.UID == uid }

// bare drops the operation and the path, which the caller names in its own words.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

func kind(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeNamedPipe:
		return "a FIFO"
	case fs.ModeSocket:
		return "a socket"
	default:
		return "a device"
	}
}

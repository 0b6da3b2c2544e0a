// Package credential takes a join token from where an operator puts it: standard input, or a file that only its owner
// can read.
//
// It is never taken from arguments or the environment, which other processes can see. A file is judged by what was
// opened, not by its path, and is deleted only when the caller says that the join succeeded: a refused join has spent
// nothing. The package checks the looks of a token and nothing else; what it is worth is the control plane's to say.
package credential

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/smallfile"
	"github.com/better-compute/bcd/internal/terminal"
)

const hintForm = `give it as it was created, "bcjt_jt_….…"`

// ErrNone is in [FromReader]'s error where nobody gave a token.
var ErrNone = errors.New("there is no join token")

// noneError is standard input without a token, and why.
type noneError string

// Error implements error.
func (e noneError) Error() string { return string(e) }

// Is reports that it is [ErrNone].
func (noneError) Is(target error) bool { return target == ErrNone }

// FromReader reads a token to the end of in, which is standard input. At most 4 KiB are read; white space and line
// breaks around the token are trimmed. A terminal is an error, so that nobody types a secret where it is seen, and so is
// an input without anything in it. Errors have the code [fault.Token].
func FromReader(in io.Reader) (bearer.Token, error) {
	const hint = "run: bcd join < token-file, or use --token-file"
	if f, ok := in.(*os.File); ok && terminal.Is(f) {
		return bearer.Token{}, fault.New(fault.Token, hint, "cannot read the join token: %w", noneError("standard input is a terminal"))
	}
	buffer := make([]byte, bearer.MaxSize+1)
	defer clear(buffer)
	n, err := io.ReadFull(in, buffer)
	switch {
	case err == nil:
		return bearer.Token{}, fault.New(fault.Token, hintForm, "cannot read the join token: standard input has more than %d bytes", bearer.MaxSize)
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return bearer.Token{}, fault.New(fault.Token, hint, "cannot read the join token: %w", err)
	}
	text := trim(buffer[:n])
	if len(text) == 0 {
		return bearer.Token{}, fault.New(fault.Token, hint, "cannot read the join token: %w", noneError("standard input is empty"))
	}
	token, err := bearer.ParseLoose(text)
	if err != nil {
		return bearer.Token{}, fault.New(fault.Token, hintForm, "cannot use the join token: %w", err)
	}
	return token, nil
}

func trim(b []byte) []byte { return bytes.Trim(b, " \t\r\n") }

// File is a token file that was read.
type File struct {
	// Token is what it holds.
	Token bearer.Token

	path string
	file smallfile.File
}

// FromFile reads the token file at path: a regular file (a symbolic link to one will do, as Kubernetes mounts them) of at
// most 4 KiB, owned by this user or root, with mode 0600 or 0400. Errors have the code [fault.Token].
func FromFile(path string) (File, error) {
	f, err := smallfile.Read(path, bearer.MaxSize)
	defer clear(f.Content)
	switch {
	case err != nil:
		return File{}, fault.New(fault.Token, "check the path of --token-file", "cannot read the token file %q: %w", path, err)
	case !f.OwnedBy(os.Geteuid()):
		return File{}, fault.New(fault.Token, "run: chown root "+path, "cannot trust the token file %q: it belongs to the user with id %d", path, f.UID)
	case f.Perm != 0o600 && f.Perm != 0o400:
		hint := "run: chmod 0600 " + path
		if f.Perm == 0o440 {
			hint = "run: chmod 0400 " + path + "; in Kubernetes set defaultMode: 0400 and no fsGroup, which widens it"
		}
		return File{}, fault.New(fault.Token, hint, "cannot trust the token file %q: its mode is %04o and must be 0600 or 0400", path, f.Perm)
	}
	text := trim(f.Content)
	if len(text) == 0 {
		return File{}, fault.New(fault.Token, hintForm, "cannot use the token file %q: it is empty", path)
	}
	token, err := bearer.ParseLoose(text)
	if err != nil {
		return File{}, fault.New(fault.Token, hintForm, "cannot use the token file %q: %w", path, err)
	}
	return File{Token: token, path: path, file: f}, nil
}

// Delete removes the file, after a join that succeeded; where path is a symbolic link, the file that holds the token and
// then the link. A file that is gone, or that another one replaced meanwhile, is left alone. An error is worth a warning
// and no more: the mount may be read-only, and the token's use is spent.
func (f File) Delete() error {
	target, err := filepath.EvalSymlinks(f.path)
	if err != nil || !f.file.Is(target) {
		return nil
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		cause := errors.Unwrap(err)
		if errors.Is(err, syscall.EROFS) {
			cause = errors.New("it is on a read-only file system")
		}
		return fmt.Errorf("cannot delete the token file %q: %w", f.path, cause)
	}
	if info, err := os.Lstat(f.path); err == nil && info.Mode().Type() == fs.ModeSymlink {
		_ = os.Remove(f.path) // it points nowhere now, and holds nothing
	}
	return nil
}

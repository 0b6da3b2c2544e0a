package statefile

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// hintForeign is for what is in the place of a state file and is none.
const hintForeign = "find out who put it there, then move it away"

// fail gives the error of a write its code: a full disk is temporary, a directory that may not be written is not.
func (d *Dir) fail(err error, format string, args ...any) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		err = p.Err // of a temporary file, whose name tells nobody anything
	}
	format, args = format+": %w", append(args, err)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.New(fault.NoSpace, fmt.Sprintf("free space and inodes (df, df -i, quota) where %s is", d.path), format, args...)
	case errors.Is(err, unix.EROFS):
		return fault.New(fault.Unwritable, fmt.Sprintf("make the file system of %s writable, or choose another directory", d.path), format, args...)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fault.New(fault.Unwritable, fmt.Sprintf("run it as root or as the owner of %s; also see lsattr and the unit's ReadWritePaths=", d.path), format, args...)
	case errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENXIO):
		return fault.New(fault.Failed, hintForeign, format, args...)
	default:
		return fmt.Errorf(format, args...)
	}
}

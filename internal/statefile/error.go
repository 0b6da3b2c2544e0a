package statefile

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

// fail gives the error of a write its code: a full disk is temporary, a directory that may not be written is not.
func (d *Dir) fail(err error, format string, args ...any) error {
	format, args = format+": %w", append(args, err)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return fault.New(fault.NoSpace, fmt.Sprintf("free space and inodes (df, df -i, quota) where %s is", d.path), format, args...)
	case errors.Is(err, unix.EROFS):
		return fault.New(fault.Unwritable, fmt.Sprintf("make the file system of %s writable, or choose another directory", d.path), format, args...)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fault.New(fault.Unwritable, fmt.Sprintf("run it as root or as the owner of %s; also see lsattr and the unit's ReadWritePaths=", d.path), format, args...)
	default:
		return fmt.Errorf(format, args...)
	}
}

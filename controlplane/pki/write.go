package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/better-compute/bcd/internal/fault"
)

// writeNew writes a file that must not be there, all of it or nothing: a link, unlike a rename, never replaces.
func writeNew(dir, name string, mode fs.FileMode, data []byte) (err error) {
	path := filepath.Join(dir, name)
	f, err := os.CreateTemp(dir, "."+name+".*")
	if err != nil {
		return fault.New(fault.Unwritable, "", "cannot write %q: %w", path, err)
	}
	defer func() {
		if e := os.Remove(f.Name()); err == nil && e != nil {
			err = fmt.Errorf("cannot remove a temporary file: %w", e)
		}
	}()
	err = errors.Join(f.Chmod(mode), write(f, data), f.Close())
	if err != nil {
		return fault.New(fault.Unwritable, "", "cannot write %q: %w", path, err)
	}
	switch err := os.Link(f.Name(), path); {
	case errors.Is(err, fs.ErrExist):
		return alreadyExists(path)
	case err != nil:
		return fault.New(fault.Unwritable, "", "cannot write %q: %w", path, err)
	}
	return syncDir(dir)
}

func write(f *os.File, data []byte) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Sync()
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("cannot sync %q: %w", dir, err)
	}
	return errors.Join(d.Sync(), d.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func alreadyExists(path string) error {
	return fault.New(fault.AlreadyExists, "choose another directory, or move the file away yourself", "%q exists and is never overwritten", path)
}

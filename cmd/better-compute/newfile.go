package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/better-compute/bcd/internal/fault"
)

// newFile is a file of mode 0600 that did not exist before and is removed again unless it is kept.
type newFile struct {
	file *os.File
	kept bool
}

// createFile makes the file. Whatever is at the path already, a dangling symbolic link included, is left as it is.
func createFile(path string) (*newFile, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.AlreadyExists, "name a new file or remove that one", "%q exists and is never written over", path)
	}
	if err != nil {
		return nil, fault.New(fault.Unwritable, "", "cannot make a new file: %w", err)
	}
	n := &newFile{file: file}
	// A umask can only have taken bits away; 0600 is what is promised.
	if err := file.Chmod(0o600); err != nil {
		n.discard()
		return nil, fmt.Errorf("cannot set the mode of %q: %w", path, err)
	}
	return n, nil
}

// keep writes the content and makes the file permanent.
func (n *newFile) keep(content string) error {
	if _, err := n.file.WriteString(content); err != nil {
		return err
	}
	if err := n.file.Sync(); err != nil {
		return err
	}
	if err := n.file.Close(); err != nil {
		return err
	}
	n.kept = true
	return nil
}

// discard removes the file unless it was kept.
func (n *newFile) discard() {
	if n.kept {
		return
	}
	_ = n.file.Close()           // it may be closed
	_ = os.Remove(n.file.Name()) // nothing secret is in it, or its disk is failing
}

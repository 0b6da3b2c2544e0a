package main

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// condition is "mounts": whether this machine lets the test mount file systems.
func condition(name string) (bool, error) {
	if name != "mounts" {
		return false, fmt.Errorf("unknown condition %q", name)
	}
	dir, err := os.MkdirTemp("", "better-compute-mounts-")
	if err != nil {
		return false, err
	}
	defer os.Remove(dir)
	if unix.Mount("none", dir, "tmpfs", 0, "") != nil {
		return false, nil
	}
	return unix.Unmount(dir, unix.MNT_DETACH) == nil, nil
}

// mount mounts a small file system in memory: mount dir. With -ro it makes it, or a single file, read-only: mount -ro path.
func mount(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[len(args)-1])
	info, err := os.Stat(path)
	ts.Check(err)
	switch {
	case args[0] == "-ro" && info.IsDir():
		ts.Check(unix.Mount("", path, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return
	case args[0] == "-ro":
		ts.Check(unix.Mount(path, path, "", unix.MS_BIND, ""))
		ts.Check(unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	default:
		ts.Check(unix.Mount("none", path, "tmpfs", 0, "size=16m,mode=0700"))
	}
	ts.Defer(func() { _ = unix.Unmount(path, unix.MNT_DETACH) }) // a script may have done it
}

// unmount ends the last mount at a path: unmount path.
func unmount(ts *testscript.TestScript, _ bool, args []string) {
	ts.Check(unix.Unmount(ts.MkAbs(args[0]), unix.MNT_DETACH))
}

// fill leaves no room in a folder's file system: fill dir.
func fill(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Create(filepath.Join(ts.MkAbs(args[0]), "filler"))
	ts.Check(err)
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			ts.Check(err)
		}
	}
}

// newer makes a server's database look as if a newer program had written it: newer dir.
func newer(ts *testscript.TestScript, _ bool, args []string) {
	db, err := sql.Open("sqlite", filepath.Join(ts.MkAbs(args[0]), "control-plane.db"))
	ts.Check(err)
	_, err = db.Exec(`INSERT INTO schema_version (version, migrated_at) VALUES (1000, 0)`)
	ts.Check(errors.Join(err, db.Close()))
}

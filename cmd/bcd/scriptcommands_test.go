package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// patience is how long a script waits for a daemon.
const patience = 20 * time.Second

var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"exits":     exits,
	"await":     await,
	"plain":     plain,
	"snapshot":  snapshot,
	"unchanged": unchanged,
	"mode":      mode,
	"edit":      edit,
	"mount":     mount,
	"fill":      fill,

	"controlplane": startControlPlane,
	"config":       writeConfig,
	"token":        makeToken,
	"reclaim":      makeReclaimToken,
	"discovery":    makeDiscoveryToken,
	"sitetoken":    makeSiteToken,
	"provisioned":  makeProvisionedToken,
	"vouched":      vouched,
	"approve":      approve,
	"tpm":          setTPM,
	"allow":        allowEK,
	"usesleft":     usesLeft,
	"joined":       joined,
	"another":      anotherHost,
	"revoke":       revoke,
	"gateway":      setGateway,
	"peer":         startPeer,
	"api":          startAPI,
	"asked":        asked,
}

// condition knows what a machine may lack: [mounts] is a machine on which the test may mount file systems, [root] one on which
// it runs as root.
func condition(name string) (bool, error) {
	switch name {
	case "mounts":
		return mounts(), nil
	case "root":
		return os.Geteuid() == 0, nil
	default:
		return false, fmt.Errorf("unknown condition %q", name)
	}
}

// mounts tries it.
func mounts() bool {
	dir, err := os.MkdirTemp("", "bcd-mounts-")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	if unix.Mount("none", dir, "tmpfs", 0, "") != nil {
		return false
	}
	return unix.Unmount(dir, unix.MNT_DETACH) == nil
}

// exits runs a command that must end with the status: exits 78 bcd …. One that fails must say so in a line that starts
// with the program's name and, where the status is not 1, give a hint, and print nothing else.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status command…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if got := statusOf(ts, args[1], args[2:]...); got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
	if want != 0 {
		explained(ts, ts.ReadFile("stderr"))
	}
}

// explained checks that standard error ends with an error and what to do about it.
func explained(ts *testscript.TestScript, stderr string) {
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	n := len(lines)
	if n < 2 || !strings.HasPrefix(lines[n-2], "bcd: ") || !strings.HasPrefix(lines[n-1], "hint: ") {
		ts.Fatalf("no error with a hint at the end of standard error:\n%s", stderr)
	}
}

func statusOf(ts *testscript.TestScript, command string, args ...string) int {
	err := ts.Exec(command, args...)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	ts.Fatalf("%v", err)
	return 0
}

// await runs a command again and again until it ends with the status: await 0 bcd status.
func await(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: await status command…")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := -1
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = statusOf(ts, args[1], args[2:]...); got == want {
			return
		}
	}
	ts.Fatalf("exit status %d, want %d", got, want)
}

// plain is exits for a process that permissions bind: where the test runs as root, without root's power to pass over them.
func plain(ts *testscript.TestScript, neg bool, args []string) {
	if os.Geteuid() == 0 {
		args = append([]string{args[0], "setpriv", "--bounding-set=-dac_override,-dac_read_search"}, args[1:]...)
	}
	exits(ts, neg, args)
}

// picture is what a folder holds, without the lock: each path with its mode, its content and when it was written.
func picture(ts *testscript.TestScript, dir string) string {
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			fmt.Fprintf(&b, "%s is not there\n", path)
			return nil
		}
		if err != nil || d.Name() == "lock" {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %s", path, info.Mode())
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %x %s", sha256.Sum256(content), info.ModTime())
		}
		fmt.Fprintln(&b)
		return nil
	})
	ts.Check(err)
	return b.String()
}

// snapshot keeps what a folder holds: snapshot dir.
func snapshot(ts *testscript.TestScript, _ bool, args []string) {
	w := worldOf(ts)
	w.dir = ts.MkAbs(args[0])
	w.picture = picture(ts, w.dir)
}

// unchanged checks that the folder of the last snapshot holds the same.
func unchanged(ts *testscript.TestScript, neg bool, _ []string) {
	w := worldOf(ts)
	if now := picture(ts, w.dir); (now == w.picture) == neg {
		ts.Fatalf("before:\n%s\nnow:\n%s", w.picture, now)
	}
}

// mode checks a file's permissions: mode 600 file.
func mode(ts *testscript.TestScript, neg bool, args []string) {
	info, err := os.Lstat(ts.MkAbs(args[1]))
	ts.Check(err)
	if got := fmt.Sprintf("%o", info.Mode().Perm()); (got == args[0]) == neg {
		ts.Fatalf("mode of %s is %s", args[1], got)
	}
}

// edit replaces a text that must be in a file: edit file old new. \n in the new one is a line break.
func edit(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	content, err := os.ReadFile(path)
	ts.Check(err)
	if !strings.Contains(string(content), args[1]) {
		ts.Fatalf("%s does not contain %q:\n%s", args[0], args[1], content)
	}
	ts.Check(os.WriteFile(path, []byte(strings.ReplaceAll(string(content), args[1], strings.ReplaceAll(args[2], `\n`, "\n"))), 0o600))
}

// mount mounts a small file system in memory: mount dir; with -ro it makes one that is mounted read-only.
func mount(ts *testscript.TestScript, _ bool, args []string) {
	if args[0] == "-ro" {
		ts.Check(unix.Mount("", ts.MkAbs(args[1]), "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		return
	}
	dir := ts.MkAbs(args[0])
	ts.Check(unix.Mount("none", dir, "tmpfs", 0, "size=2m,mode=0700"))
	ts.Defer(func() { ts.Check(unix.Unmount(dir, unix.MNT_DETACH)) })
}

// fill leaves no room in a folder's file system: fill dir.
func fill(ts *testscript.TestScript, _ bool, args []string) {
	f, err := os.Create(filepath.Join(ts.MkAbs(args[0]), "filler"))
	ts.Check(err)
	defer f.Close()
	for {
		switch _, err := f.Write(make([]byte, 4096)); {
		case errors.Is(err, syscall.ENOSPC):
			return
		case err != nil:
			ts.Fatalf("%v", err)
		}
	}
}

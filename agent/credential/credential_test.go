package credential_test

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/agent/credential"
	"github.com/better-compute/bcd/internal/fault"
)

const text = "bcjt_jt_01k5w0x5eqf2rvs3y5c6hz8m9t.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"

func write(t *testing.T, content string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// check holds an error to its contract: the code, a hint, and nothing of the secret.
func check(t *testing.T, name string, err error, message string) {
	t.Helper()
	if fault.CodeOf(err) != fault.Token || !strings.Contains(err.Error(), message) || fault.HintOf(err) == "" {
		t.Errorf("%s: %v (%s), hint %q; want %q", name, err, fault.CodeOf(err), fault.HintOf(err), message)
	}
	if err != nil && strings.Contains(err.Error()+fault.HintOf(err), "AAECAwQF") {
		t.Errorf("%s: %v shows the secret", name, err)
	}
}

func TestFromReader(t *testing.T) {
	long := "bcjt_a." + strings.Repeat("b", 4096-7)
	for name, in := range map[string]string{
		"as it is": text, "with a line break": text + "\n", "from Windows": text + "\r\n", "with space around": " \t\n" + text + " \n\n",
	} {
		for _, r := range []io.Reader{strings.NewReader(in), iotest.OneByteReader(strings.NewReader(in)), iotest.DataErrReader(strings.NewReader(in))} {
			token, err := credential.FromReader(r)
			if err != nil || string(token.Bytes()) != text {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if token, err := credential.FromReader(strings.NewReader(long)); err != nil || string(token.Bytes()) != long {
		t.Errorf("4096 bytes: %v", err)
	}
	for name, c := range map[string]struct{ in, message string }{
		"empty":                    {"", "standard input is empty"},
		"only space":               {" \r\n\t", "standard input is empty"},
		"too much":                 {long + "b", "more than 4096 bytes"},
		"a token after much space": {strings.Repeat(" ", 4096) + text, "more than 4096 bytes"},
		"two tokens":               {text + "\n" + text + "\n", "white space"},
		"no token":                 {"hunter2\n", "does not start with"},
		"no dot":                   {"bcjt_jt_x\n", "0 dots"},
		"two dots":                 {text + ".x\n", "2 dots"},
		"quotes":                   {`"` + text + `"`, "does not start with"},
		"an assignment":            {"BCD_JOIN_TOKEN=" + text, "does not start with"},
		"binary":                   {text + "\x00", "a character that no token has"},
		"another kind of space":    {text + "\u00a0", "a character that no token has"},
	} {
		token, err := credential.FromReader(strings.NewReader(c.in))
		check(t, name, err, c.message)
		if !token.IsZero() {
			t.Errorf("%s: an error with a token", name)
		}
	}
	_, err := credential.FromReader(iotest.ErrReader(io.ErrClosedPipe))
	check(t, "an input that fails", err, "closed pipe")
	if !errors.Is(err, io.ErrClosedPipe) {
		t.Error("the cause is lost")
	}
}

func TestTerminalIsRefused(t *testing.T) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	slave, err := os.OpenFile(filepath.Join("/dev/pts", itoa(n)), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no pseudo terminals here: ", err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	_, err = credential.FromReader(slave)
	check(t, "a terminal", err, "standard input is a terminal")
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + itoa(n%10)
}

func TestStandardInputThatIsAFile(t *testing.T) {
	for path, want := range map[string]string{write(t, text+"\n", 0o644): "", "/dev/null": "standard input is empty"} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		token, err := credential.FromReader(f)
		_ = f.Close()
		if want != "" {
			check(t, path, err, want)
		} else if err != nil || string(token.Bytes()) != text {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Req: CF-022 CF-024
func TestFromFile(t *testing.T) {
	for _, mode := range []fs.FileMode{0o600, 0o400} {
		f, err := credential.FromFile(write(t, text+"\n", mode))
		if err != nil || string(f.Token.Bytes()) != text {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
	for _, mode := range []fs.FileMode{0o644, 0o640, 0o440, 0o700, 0o604, 0o620, 0o660, 0o500, 0o000, 0o200} {
		if mode&0o400 == 0 && os.Geteuid() != 0 {
			continue // such a file cannot even be opened
		}
		_, err := credential.FromFile(write(t, text, mode))
		check(t, mode.String(), err, "must be 0600 or 0400")
	}
	_, err := credential.FromFile(write(t, text, 0o440))
	if hint := fault.HintOf(err); !strings.Contains(hint, "defaultMode: 0400") || !strings.Contains(hint, "fsGroup") {
		t.Errorf("hint %q does not help with Kubernetes", hint)
	}
	if _, err := credential.FromFile(write(t, text+strings.Repeat("\n", 4096-len(text)), 0o600)); err != nil {
		t.Errorf("4096 bytes: %v", err)
	}
	_, err = credential.FromFile(write(t, text+strings.Repeat("\n", 4097-len(text)), 0o600))
	check(t, "4097 bytes", err, "more than 4096 bytes")
	for name, c := range map[string]struct{ content, message string }{
		"empty": {"\n", "it is empty"}, "no token": {"hunter2", "does not start with"}, "two tokens": {text + "\n" + text, "white space"},
	} {
		_, err := credential.FromFile(write(t, c.content, 0o600))
		check(t, name, err, c.message)
	}
	_, err = credential.FromFile(filepath.Join(t.TempDir(), "none"))
	check(t, "no file", err, "no such file")
}

// Req: CF-023
func TestFromFileTakesOnlyRegularFiles(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{fifo: "a FIFO", dir: "a directory", "/dev/zero": "a device"} {
		_, err := credential.FromFile(path)
		check(t, path, err, "it is "+want+", not a regular file")
	}
}

func TestFileOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("giving a file to another user needs root")
	}
	path := write(t, text, 0o600)
	if err := os.Chown(path, 65534, 0); err != nil {
		t.Skip("this system lets nobody give files away: ", err)
	}
	_, err := credential.FromFile(path)
	check(t, "another user's", err, "belongs to the user with id 65534")
}

// secret lays files out as a Kubernetes Secret's mount has them.
func secret(t *testing.T) (dir, path string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "..2026_11_30"), 0o755); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(dir, "..2026_11_30", "token")
	if err := os.WriteFile(target, []byte(text), 0o400); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"..data": "..2026_11_30", "token": "..data/token"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	return dir, filepath.Join(dir, "token")
}

func TestDelete(t *testing.T) {
	path := write(t, text, 0o600)
	f, err := credential.FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("reading deletes: %v", err)
	}
	if err := f.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
	if err := f.Delete(); err != nil {
		t.Errorf("a second time: %v", err)
	}
}

func TestDeleteFollowsALinkToTheSecret(t *testing.T) {
	dir, path := secret(t)
	f, err := credential.FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Delete(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"token", "..2026_11_30/token"} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
}

func TestDeleteLeavesAnotherFileAlone(t *testing.T) {
	path := write(t, text, 0o600)
	f, err := credential.FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(write(t, "the next token", 0o600), path); err != nil {
		t.Fatal(err)
	}
	if err := f.Delete(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file that came after: %v", err)
	}
}

func TestFileThatCannotBeDeletedIsAnErrorToWarnOf(t *testing.T) {
	path := write(t, text, 0o600)
	f, err := credential.FromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		if err := os.Chmod(filepath.Dir(path), 0o500); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Chmod(filepath.Dir(path), 0o700) })
	} else if err := unix.Mount(path, path, "", unix.MS_BIND, ""); err != nil {
		t.Skip("root needs a mount to be stopped from deleting, and may not make one here: ", err)
	} else {
		t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
	}
	err = f.Delete()
	if err == nil || !strings.Contains(err.Error(), "cannot delete the token file") || strings.Count(err.Error(), path) != 1 {
		t.Errorf("%v", err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

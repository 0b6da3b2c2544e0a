package helper

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/internal/fault"
)

const hintSocket = "set [helper] socket to a path of its own that root may write"

// listen opens the helper's socket: mode 0660, of root and the node's group. A socket that a dead helper left is replaced.
func listen(ctx context.Context, o Options) (net.Listener, error) {
	if err := makeFolder(filepath.Dir(o.Socket), o.GID); err != nil {
		return nil, err
	}
	if c, err := (&net.Dialer{Timeout: dialWithin}).DialContext(ctx, "unix", o.Socket); err == nil {
		_ = c.Close()
		return nil, fault.New(fault.Busy, "stop the other helper, or give this one a [helper] socket of its own", "another program answers on the helper's socket %q", o.Socket)
	}
	if info, err := os.Lstat(o.Socket); err == nil && info.Mode().Type() != fs.ModeSocket {
		return nil, fault.New(fault.Config, hintSocket, "cannot open the helper's socket %q: something else than a socket is there", o.Socket)
	}
	if err := os.Remove(o.Socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Unwritable, hintSocket, "cannot replace the helper's socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", o.Socket)
	if err != nil {
		return nil, fault.New(fault.Unwritable, hintSocket, "cannot open the helper's socket: %w", err)
	}
	// Nobody but root can have put something else there since: makeFolder saw to that. Who connects before the mode is right is
	// judged by who he is, as is everybody.
	if err := errors.Join(os.Lchown(o.Socket, os.Geteuid(), o.GID), os.Chmod(o.Socket, 0o660)); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("cannot give the helper's socket to group %d: %w", o.GID, err)
	}
	return l, nil
}

// makeFolder makes the folder of the socket where it is missing: root's, and one that the node, too, can put its sockets into
// without being able to replace root's. In a folder that is there, nobody else may be able to do that either.
func makeFolder(path string, gid int) error {
	const mode = fs.ModeSticky | 0o775
	err := os.Mkdir(path, 0o700)
	if err == nil {
		err = errors.Join(os.Chown(path, os.Geteuid(), gid), os.Chmod(path, mode))
	} else if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	if err != nil {
		return fault.New(fault.Unwritable, hintSocket, "cannot make the folder of the helper's socket: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return fault.New(fault.Unwritable, hintSocket, "cannot use the folder %q of the helper's socket: %w", path, err)
	}
	if owner := int(st.Uid); owner != 0 && owner != os.Geteuid() {
		return fault.New(fault.Unwritable, "chown root "+path, "cannot use the folder %q of the helper's socket: it belongs to user %d", path, owner)
	}
	if st.Mode&0o022 != 0 && st.Mode&unix.S_ISVTX == 0 {
		return fault.New(fault.Unwritable, "chmod +t "+path, "cannot use the folder %q of the helper's socket: others could replace what is in it", path)
	}
	return nil
}

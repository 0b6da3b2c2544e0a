// Package peercred tells who is at the other end of a Unix socket, as the kernel knows it (SO_PEERCRED, unix(7)).
//
// It judges nobody: who may do what is the caller's rule.
package peercred

import (
	"net"

	"golang.org/x/sys/unix"
)

// UID returns the user at the other end of a connection: who connected, or who listened. Any other connection than one of a Unix
// socket is an error.
func UID(c net.Conn) (uint32, error) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0, net.UnknownNetworkError(c.LocalAddr().Network())
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { cred, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if asked != nil {
		return 0, asked
	}
	return cred.Uid, nil
}

package gateway

import (
	"io"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
)

const (
	// lingerFor and lingerBytes bound how long, and for how much, a refused connection is read to its end.
	lingerFor   = time.Second
	lingerBytes = 64 << 10
)

// serverCredentials is TLS whose refusals arrive: a connection that is refused is read to its end before it is closed.
//
// A TLS 1.3 client has sent its first request before the server looks at its certificate. To close with that unread
// resets the connection, and the reset overtakes the alert: an expired certificate would look like a network fault.
type serverCredentials struct {
	credentials.TransportCredentials
	log *slog.Logger
}

// ServerHandshake implements [credentials.TransportCredentials].
func (c *serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	tcp, ok := raw.(*net.TCPConn)
	if !ok {
		return c.TransportCredentials.ServerHandshake(raw)
	}
	held := &heldConn{TCPConn: tcp}
	held.hold.Store(true)
	conn, info, err := c.TransportCredentials.ServerHandshake(held)
	held.hold.Store(false)
	if err != nil {
		c.log.Debug("refuse connection", "peer", raw.RemoteAddr().String(), "error", err)
		linger(tcp)
		_ = tcp.Close()
	}
	return conn, info, err
}

// Clone implements [credentials.TransportCredentials].
func (c *serverCredentials) Clone() credentials.TransportCredentials {
	return &serverCredentials{TransportCredentials: c.TransportCredentials.Clone(), log: c.log}
}

// heldConn is not closed while it is held: TLS closes what it refuses.
type heldConn struct {
	*net.TCPConn
	hold atomic.Bool
}

// Close implements [net.Conn].
func (c *heldConn) Close() error {
	if c.hold.Load() {
		return nil
	}
	return c.TCPConn.Close()
}

// linger lets the peer read what was sent, and drops what it still sends.
func linger(tcp *net.TCPConn) {
	if tcp.CloseWrite() != nil {
		return
	}
	late := time.AfterFunc(lingerFor, func() { _ = tcp.SetReadDeadline(time.Unix(1, 0)) })
	defer late.Stop()
	_, _ = io.CopyN(io.Discard, tcp, lingerBytes)
}

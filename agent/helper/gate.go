package helper

import (
	"context"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/better-compute/bcd/internal/peercred"
)

// maxClients bounds the connections that are open at once. A node has one or two.
const maxClients = 16

// maxStrangers bounds how many users are remembered as turned away, so that each is logged once.
const maxStrangers = 64

// sendWithin is how long a connection has its place for sure before its request is there. A node sends at once.
const sendWithin = 100 * time.Millisecond

// gate is a listener that lets only some users in, and only so many connections at once. Where there are too many, the oldest
// one is closed whose request has been awaited for long enough.
type gate struct {
	net.Listener
	allowed func(uid uint32) bool
	log     *slog.Logger

	mu        sync.Mutex
	open      []*entry      // oldest first
	room      chan struct{} // has a value when there may be room
	strangers map[uint32]bool
}

func newGate(l net.Listener, allowed func(uid uint32) bool, log *slog.Logger) *gate {
	return &gate{Listener: l, allowed: allowed, log: log, room: make(chan struct{}, 1), strangers: map[uint32]bool{}}
}

// Accept returns the next connection of a user who may connect.
func (g *gate) Accept() (net.Conn, error) {
	for {
		conn, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		uid, err := peercred.UID(conn)
		if err == nil && g.allowed(uid) {
			return g.admit(conn), nil
		}
		g.turnAway(uid, err)
		_ = conn.Close() // nothing was said
	}
}

func (g *gate) turnAway(uid uint32, err error) {
	g.mu.Lock()
	known := g.strangers[uid] || len(g.strangers) >= maxStrangers
	if !known {
		g.strangers[uid] = true
	}
	g.mu.Unlock()
	if !known {
		g.log.Warn("turn away from helper", "uid", uid, "error", err)
	}
}

// admit makes room for a connection. Where all others are at work, or just came, it waits for one of them.
func (g *gate) admit(conn net.Conn) net.Conn {
	e := &entry{Conn: conn, gate: g}
	for {
		g.mu.Lock()
		if len(g.open) < maxClients {
			g.open = append(g.open, e)
			g.mu.Unlock()
			time.AfterFunc(sendWithin, e.isLate)
			return e
		}
		oldest := slices.IndexFunc(g.open, func(other *entry) bool { return other.waited && !other.working })
		var idle *entry
		if oldest >= 0 {
			idle = g.open[oldest]
		}
		g.mu.Unlock()
		if idle != nil {
			_ = idle.Close() // it gets no answer
			continue
		}
		<-g.room
	}
}

// entry is a connection that was let in.
type entry struct {
	net.Conn
	gate *gate

	// Guarded by gate.mu.
	waited  bool // its request has been awaited for sendWithin
	working bool // its request is there
}

func (e *entry) isLate() {
	e.gate.mu.Lock()
	e.waited = true
	e.gate.mu.Unlock()
	e.gate.mayHaveRoom()
}

func (g *gate) mayHaveRoom() {
	select {
	case g.room <- struct{}{}:
	default:
	}
}

// work marks a connection as one that waits for an answer.
func (e *entry) work() {
	e.gate.mu.Lock()
	defer e.gate.mu.Unlock()
	e.working = true
}

// Close closes the connection and gives its place to another one.
func (e *entry) Close() error {
	e.gate.mu.Lock()
	e.gate.open = slices.DeleteFunc(e.gate.open, func(other *entry) bool { return other == e })
	e.gate.mu.Unlock()
	e.gate.mayHaveRoom()
	return e.Conn.Close()
}

// entryKey is the key of a request's connection in its context.
type entryKey struct{}

func withEntry(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, entryKey{}, c)
}

// working marks a request's connection as one that waits for its answer.
func working(ctx context.Context) {
	if e, ok := ctx.Value(entryKey{}).(*entry); ok {
		e.work()
	}
}

// dialWithin bounds the connect to a socket of this machine.
const dialWithin = 5 * time.Second

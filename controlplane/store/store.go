// Package store keeps the control plane's state in a SQL database: tenants, sites, pools, tokens, nodes, certificates,
// joins, the event outbox and the audit log.
//
// All access is through transactions: [Store.Read] gives a consistent snapshot and takes no lock, [Store.Write] is
// serialised and durable when it returns. The methods of [Tx] are one SQL statement each, or a few that belong together;
// rules about who may do what live in the packages above (tokens, joinservice). [Tx.Now] is the transaction's clock,
// read after the lock: what a write decides by time, it decides by that.
//
// The SQL is plain enough for PostgreSQL too; what differs between databases is in sqlite.go.
//
// The package does not know the wire, HTTP or certificates' contents.
package store

import (
	"context"
	"errors"
	"time"
)

// Store is the database. [Open] returns the only implementation.
type Store interface {
	// Read runs fn on a snapshot. Writing methods of the Tx fail.
	Read(ctx context.Context, fn func(*Tx) error) error
	// Write runs fn in a transaction that is committed durably when fn returns nil and undone otherwise. Concurrent
	// writes may share one commit, so fn runs on any goroutine, must be quick and must not call the Store. It may run
	// again when the commit that it shared failed; so it must set its results afresh and have no other effect.
	Write(ctx context.Context, fn func(*Tx) error) error
	// Watch returns a channel that gets a value after each commit that called [Tx.Notify] with the topic, and the
	// function that ends the watch. Values are not queued: one stands for any number of commits. Only commits of
	// this process are seen.
	Watch(topic string) (changed <-chan struct{}, stop func())
	// Close waits for the transactions under way and closes the database. Later ones fail. Close is called once.
	Close() error
}

// Sentinels that callers branch on.
var (
	// ErrNotFound is a row that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrDuplicate is a write that a unique index refuses.
	ErrDuplicate = errors.New("already exists")
)

// Options configure [Open].
type Options struct {
	// Path is the SQLite file. It is created with mode 0600 when it does not exist.
	Path string
	// Existing says that the database was made before: one that is missing or empty is [fault.Config], and nothing is made
	// in its place.
	Existing bool
	// Now is the control plane's clock. Required.
	Now func() time.Time
	// AfterStep, if set, is called after each statement that writes, with the statement's name. An error fails the
	// transaction: this is how tests inject faults.
	AfterStep func(step string) error
}

package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/better-compute/bcd/internal/fault"
)

// maxReaders is how many snapshots may be open at once. More reads wait.
const maxReaders = 4

// busyTimeout is how long a write waits for another process that holds the lock. Only this package's tests change it.
var busyTimeout = 10 * time.Second

const (
	// cacheKiB is each connection's page cache.
	cacheKiB = 8 << 10
	// checkpointPages is the size of the write-ahead log at which it is folded into the file: 16 MiB, so that the fold's
	// cost is shared by a few hundred commits.
	checkpointPages = 4096
)

// sqliteStore is the [Store] over one SQLite file.
type sqliteStore struct {
	db      *sql.DB
	opts    Options
	file    fs.FileInfo // of the database when it was opened
	writer  *writer
	readers chan *conn // holds nil for a reader that was not opened yet; closed with the store
	watchers
}

// Open opens the database, creates it when it does not exist, and migrates an older one. A database of a newer program
// is [fault.Newer].
func Open(ctx context.Context, o Options) (_ Store, err error) {
	if o.Now == nil {
		return nil, errors.New("cannot open the database: no clock")
	}
	file, err := prepare(o)
	if err != nil {
		return nil, err
	}
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database: %w", err)
	}
	dsn := (&url.URL{Scheme: "file", Path: path, RawQuery: url.Values{"_pragma": {
		fmt.Sprintf("busy_timeout(%d)", busyTimeout.Milliseconds()),
		"journal_mode(WAL)",
		"synchronous(FULL)",
		"foreign_keys(1)",
		fmt.Sprintf("cache_size(-%d)", cacheKiB),
		fmt.Sprintf("wal_autocheckpoint(%d)", checkpointPages),
	}}.Encode()}).String()
	db, err := sql.Open("sqlite", dsn)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %q: %w", o.Path, err)
	}
	s := &sqliteStore{db: db, opts: o, file: file, readers: make(chan *conn, maxReaders)}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	c, err := newConn(ctx, db)
	if err != nil {
		return nil, fmt.Errorf("cannot open the database %q: %w", o.Path, classify(err))
	}
	if err := migrate(ctx, c, o.Now); err != nil {
		return nil, classify(err)
	}
	s.writer = newWriter(c, s)
	for range maxReaders {
		s.readers <- nil
	}
	return s, nil
}

const (
	hintSpace    = "free space on the database's file system"
	hintRestore  = "restore the database from a backup"
	hintWritable = "make the database, its folder and its file system writable for the user that runs better-compute"
)

// prepare looks at the file and makes it where it may be made.
func prepare(o Options) (fs.FileInfo, error) {
	// SQLite creates with the umask's mode; the file holds hardware claims.
	flags := os.O_RDWR | os.O_CREATE
	if o.Existing {
		flags = os.O_RDWR
	}
	f, err := os.OpenFile(o.Path, flags, 0o600)
	switch {
	case o.Existing && errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.Config, hintRestore, "cannot open the database: %w", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return nil, fault.New(fault.NoSpace, hintSpace, "cannot make the database: %w", err)
	case err != nil:
		return nil, fault.New(fault.Unwritable, hintWritable, "cannot open the database: %w", err)
	}
	info, err := f.Stat()
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("cannot open the database: %w", err)
	}
	switch {
	case !info.Mode().IsRegular():
		return nil, fault.New(fault.Config, hintRestore, "cannot open the database: %q is not a regular file", o.Path)
	case o.Existing && info.Size() == 0:
		return nil, fault.New(fault.Config, hintRestore, "cannot open the database: %q is empty", o.Path)
	}
	return info, nil
}

// inPlace refuses to go on where the database was removed or another file put in its place: SQLite would go on with the
// file that it has open, which the next start does not find.
func (s *sqliteStore) inPlace() error {
	now, err := os.Stat(s.opts.Path)
	switch {
	case err == nil && os.SameFile(now, s.file):
		return nil
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return fault.New(fault.Config, hintRestore, "the database %q was removed or replaced while it was in use", s.opts.Path)
	default:
		return fmt.Errorf("cannot look for the database: %w", err)
	}
}

var errClosed = errors.New("the database is closed")

// Close implements [Store].
func (s *sqliteStore) Close() error {
	var err error
	for range maxReaders {
		if c := <-s.readers; c != nil {
			err = errors.Join(err, c.close())
		}
	}
	close(s.readers)
	return errors.Join(err, s.writer.close(), s.db.Close())
}

// Read implements [Store].
func (s *sqliteStore) Read(ctx context.Context, fn func(*Tx) error) (err error) {
	var c *conn
	open := true
	select {
	case c, open = <-s.readers:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !open {
		return errClosed
	}
	// A reader whose transaction did not end well is not used again.
	good := false
	defer func() {
		if !good && c != nil {
			err = errors.Join(err, c.close())
			c = nil
		}
		s.readers <- c
	}()
	if err := s.inPlace(); err != nil {
		return err
	}
	if c == nil {
		if c, err = newConn(ctx, s.db); err != nil {
			return fmt.Errorf("cannot read the database: %w", classify(err))
		}
	}
	if err := c.run(ctx, "BEGIN"); err != nil {
		return fmt.Errorf("cannot read the database: %w", classify(err))
	}
	err = fn(&Tx{ctx: ctx, conn: c, now: s.now()})
	if end := c.run(context.WithoutCancel(ctx), "ROLLBACK"); end != nil {
		return errors.Join(err, end)
	}
	good = true
	return err
}

// Write implements [Store].
func (s *sqliteStore) Write(ctx context.Context, fn func(*Tx) error) error {
	return s.writer.do(ctx, fn)
}

// now is the clock as the database keeps it: UTC, whole milliseconds.
func (s *sqliteStore) now() time.Time { return s.opts.Now().UTC().Truncate(time.Millisecond) }

// classify gives SQLite's errors the sentinels of this package, and what an operator must act on its code and hint.
func classify(err error) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_ROWID:
		return fmt.Errorf("%w: %w", ErrDuplicate, err)
	case sqlite3.SQLITE_FULL:
		return fault.New(fault.NoSpace, hintSpace, "%w", err)
	case sqlite3.SQLITE_IOERR_SHMSIZE: // its first page in the -shm file is all that can fail so
		return fault.New(fault.NoSpace, hintSpace, "no room beside the database: %w", err)
	}
	switch e.Code() & 0xff { // without what SQLite adds of the place
	case sqlite3.SQLITE_BUSY:
		return fault.New(fault.Busy, "end the other program that uses the database", "%w", err)
	case sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT:
		return fault.New(fault.Config, hintRestore, "%w", err)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		return fault.New(fault.Unwritable, hintWritable, "%w", err)
	}
	return err
}

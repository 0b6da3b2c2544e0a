package store

import (
	"database/sql"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

// SetBusyTimeout changes how long the writes of stores that are opened from now on wait for another process.
func SetBusyTimeout(t testing.TB, d time.Duration) {
	before := busyTimeout
	busyTimeout = d
	t.Cleanup(func() { busyTimeout = before })
}

// SetMaxVouches changes how many machines of one site are vouched for at a time.
func SetMaxVouches(t testing.TB, n int) {
	before := maxVouches
	maxVouches = n
	t.Cleanup(func() { maxVouches = before })
}

// Lock takes the write lock of a database, as another process would, until the function that it returns is called.
func Lock(t testing.TB, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(c.Close(), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

// RaiseSchemaVersion makes the database look as if a newer program had written it.
func RaiseSchemaVersion(t testing.TB, path string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), `INSERT INTO schema_version (version, migrated_at) VALUES (1000, 0)`); err != nil {
		t.Fatal(err)
	}
}

// Plans returns how SQLite runs each query that was prepared on the store's connections so far, by query.
func Plans(t testing.TB, s Store) map[string][]string {
	t.Helper()
	db := s.(*sqliteStore)
	queries := map[string][]string{}
	for range maxReaders {
		c := <-db.readers
		if c != nil {
			for q := range c.stmts {
				queries[q] = nil
			}
		}
		defer func() { db.readers <- c }()
	}
	for q := range db.writer.conn.stmts {
		queries[q] = nil
	}
	for q := range queries {
		verb, _, _ := strings.Cut(q, " ")
		if !slices.Contains([]string{"SELECT", "UPDATE", "DELETE", "INSERT"}, verb) {
			continue
		}
		rows, err := db.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+q, make([]any, strings.Count(q, "?"))...)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var id, parent, unused int
			var step string
			if err := rows.Scan(&id, &parent, &unused, &step); err != nil {
				t.Fatal(err)
			}
			queries[q] = append(queries[q], step)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return queries
}

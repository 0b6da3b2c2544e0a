package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// Tx is a transaction. It is good only inside the function that got it, on that function's goroutine.
type Tx struct {
	ctx       context.Context //nolint:containedctx // a Tx lives no longer than the call that made it
	conn      *conn
	now       time.Time
	writable  bool
	afterStep func(string) error
	ids       *idClock // nil in a read
	topics    []string
}

// Now returns the transaction's time, to the millisecond: the control plane's clock, read when the transaction had
// its lock.
func (tx *Tx) Now() time.Time { return tx.now }

// Notify wakes the watchers of the topic when the transaction has been committed.
func (tx *Tx) Notify(topic string) { tx.topics = append(tx.topics, topic) }

var errReadOnly = errors.New("the transaction is read-only")

// exec runs a writing statement. step names it.
func (tx *Tx) exec(step, query string, args ...any) (affected int64, err error) {
	if !tx.writable {
		return 0, fmt.Errorf("cannot %s: %w", step, errReadOnly)
	}
	stmt, err := tx.conn.prepare(tx.ctx, query)
	if err != nil {
		return 0, fmt.Errorf("cannot %s: %w", step, classify(err))
	}
	res, err := stmt.ExecContext(tx.ctx, args...)
	if err != nil {
		return 0, fmt.Errorf("cannot %s: %w", step, classify(err))
	}
	affected, err = res.RowsAffected()
	if err != nil {
		return 0, fmt.Errorf("cannot %s: %w", step, err)
	}
	return affected, tx.stepped(step)
}

// update is exec for statements that change exactly one row: none is [ErrNotFound].
func (tx *Tx) update(step, query string, args ...any) error {
	n, err := tx.exec(step, query, args...)
	if err == nil && n == 0 {
		err = fmt.Errorf("cannot %s: %w", step, ErrNotFound)
	}
	return err
}

func (tx *Tx) insert(step, query string, args ...any) error {
	_, err := tx.exec(step, query, args...)
	return err
}

func (tx *Tx) stepped(step string) error {
	if tx.afterStep == nil {
		return nil
	}
	if err := tx.afterStep(step); err != nil {
		return fmt.Errorf("cannot %s: %w", step, err)
	}
	return nil
}

// scanner is a row of a result.
type scanner interface{ Scan(dest ...any) error }

// one reads the only row of a query; none is [ErrNotFound].
func one[T any](tx *Tx, scan func(scanner) (T, error), query string, args ...any) (T, error) {
	var zero T
	stmt, err := tx.conn.prepare(tx.ctx, query)
	if err != nil {
		return zero, classify(err)
	}
	v, err := scan(stmt.QueryRowContext(tx.ctx, args...))
	if errors.Is(err, sql.ErrNoRows) {
		return zero, ErrNotFound
	}
	if err != nil {
		return zero, fmt.Errorf("cannot read the database: %w", classify(err))
	}
	return v, nil
}

// many reads all rows of a query.
func many[T any](tx *Tx, scan func(scanner) (T, error), query string, args ...any) (_ []T, err error) {
	stmt, err := tx.conn.prepare(tx.ctx, query)
	if err != nil {
		return nil, classify(err)
	}
	rows, err := stmt.QueryContext(tx.ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("cannot read the database: %w", classify(err))
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	var all []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("cannot read the database: %w", classify(err))
		}
		all = append(all, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("cannot read the database: %w", classify(err))
	}
	return all, nil
}

// scalar reads one value.
func scalar[T any](s scanner) (v T, err error) {
	err = s.Scan(&v)
	return v, err
}

// Times are columns of Unix milliseconds, so that both databases keep and compare them alike.

// millis is the column of a time.
func millis(t time.Time) int64 { return t.UnixMilli() }

// nullMillis is the column of a time that may be absent: the zero time is NULL.
func nullMillis(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMilli()
}

// nullText is the column of a text that may be absent: "" is NULL.
func nullText(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// nullNumber is the column of a number that may be absent: 0 is NULL.
func nullNumber(n int64) any {
	if n == 0 {
		return nil
	}
	return n
}

// nullBytes is the column of bytes that may be absent: none is NULL.
func nullBytes(b []byte) any {
	if len(b) == 0 {
		return nil
	}
	return b
}

// timeOf scans a column of Unix milliseconds; NULL is the zero time.
type timeOf struct{ t *time.Time }

// Scan implements [sql.Scanner].
func (d timeOf) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*d.t = time.Time{}
	case int64:
		*d.t = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time is %T", src)
	}
	return nil
}

// textOf scans a text; NULL is "".
type textOf struct{ s *string }

// Scan implements [sql.Scanner].
func (d textOf) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*d.s = ""
	case string:
		*d.s = v
	case []byte:
		*d.s = string(v)
	default:
		return fmt.Errorf("a text is %T", src)
	}
	return nil
}

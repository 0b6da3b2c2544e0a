package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// conn is one database connection and the statements prepared on it.
type conn struct {
	c     *sql.Conn
	stmts map[string]*sql.Stmt
}

func newConn(ctx context.Context, db *sql.DB) (*conn, error) {
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{c: c, stmts: make(map[string]*sql.Stmt)}, nil
}

// prepare returns the statement for a constant query. A statement lives as long as its connection, not as the context.
func (c *conn) prepare(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	s, err := c.c.PrepareContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare %q: %w", query, err)
	}
	c.stmts[query] = s
	return s, nil
}

// run runs a statement without arguments or results.
func (c *conn) run(ctx context.Context, query string) error {
	s, err := c.prepare(ctx, query)
	if err != nil {
		return err
	}
	_, err = s.ExecContext(ctx)
	return err
}

func (c *conn) close() error {
	var err error
	for _, s := range c.stmts {
		err = errors.Join(err, s.Close())
	}
	return errors.Join(err, c.c.Close())
}

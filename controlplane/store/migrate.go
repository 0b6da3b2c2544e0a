package store

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

// A file migrations/NNNN.sql brings the schema from version N-1 to N. A file that was released never changes.
//
//go:embed migrations/*.sql
var migrations embed.FS

const schemaVersionTable = `CREATE TABLE IF NOT EXISTS schema_version (
  version     BIGINT NOT NULL PRIMARY KEY,
  migrated_at BIGINT NOT NULL
)`

// SchemaVersion returns the version of the schema that this program writes.
func SchemaVersion() (int, error) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	return len(files), err
}

// migrate brings the database to this program's schema, in one transaction under the write lock: two programs that
// start at once migrate once.
func migrate(ctx context.Context, c *conn, now func() time.Time) (err error) {
	want, err := SchemaVersion()
	if err != nil {
		return fmt.Errorf("cannot read the migrations: %w", err)
	}
	if _, err := c.c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("cannot migrate the database: %w", err)
	}
	defer func() {
		if err != nil {
			// SQLite may have rolled back already (a full disk): then this fails, and nothing is left to undo.
			_, _ = c.c.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
		}
	}()
	if _, err := c.c.ExecContext(ctx, schemaVersionTable); err != nil {
		return fmt.Errorf("cannot migrate the database: %w", err)
	}
	var have int
	if err := c.c.QueryRowContext(ctx, `SELECT COALESCE(MAX(version), 0) FROM schema_version`).Scan(&have); err != nil {
		return fmt.Errorf("cannot migrate the database: %w", err)
	}
	if have > want {
		return fault.New(fault.Newer, "run the version of better-compute that wrote it, or a newer one",
			"cannot open the database: its schema has version %d, this program knows %d", have, want)
	}
	for v := have + 1; v <= want; v++ {
		text, err := migrations.ReadFile(fmt.Sprintf("migrations/%04d.sql", v))
		if err != nil {
			return fmt.Errorf("cannot read the migrations: %w", err)
		}
		if _, err := c.c.ExecContext(ctx, string(text)); err != nil {
			return fmt.Errorf("cannot migrate the database to version %d: %w", v, err)
		}
		if _, err := c.c.ExecContext(ctx, `INSERT INTO schema_version (version, migrated_at) VALUES (?, ?)`, v, millis(now())); err != nil {
			return fmt.Errorf("cannot migrate the database to version %d: %w", v, err)
		}
	}
	if _, err := c.c.ExecContext(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("cannot migrate the database: %w", err)
	}
	return nil
}

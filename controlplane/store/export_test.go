package store

import (
	"database/sql"
	"testing"
)

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

package store_test

import (
	"bytes"
	"crypto/rand"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// A database that is removed or replaced under a running server is told at once: what is written to it would be lost.
func TestADatabaseThatIsGoneIsNotUsed(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"removed": func(*testing.T, string) {},
		"replaced": func(t *testing.T, path string) {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "control.db")
			s := open(t, func(o *store.Options) { o.Path = path })
			insert := func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: tenantID, Name: "a"}) }
			list := func(tx *store.Tx) error { _, err := tx.Tenants("", 1); return err }
			read(t, s, list)
			aside := path + ".aside"
			if err := os.Rename(path, aside); err != nil {
				t.Fatal(err)
			}
			spoil(t, path)
			for what, err := range map[string]error{"write": s.Write(t.Context(), insert), "read": s.Read(t.Context(), list)} {
				if !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
					t.Errorf("%s: %v (%s)", what, err, fault.CodeOf(err))
				}
			}
			// Once it is back in its place all is well.
			if err := os.Rename(aside, path); err != nil {
				t.Fatal(err)
			}
			write(t, s, insert)
			read(t, s, list)
		})
	}
}

// What an operator must know of a damaged database is said by a read as it is by a write.
func TestAReadOfADamagedDatabaseSaysSo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.db")
	s, err := store.Open(t.Context(), store.Options{Path: path, Now: func() time.Time { return epoch }})
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: tenantID, Name: "a"}) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	damage(t, path)
	s = open(t, func(o *store.Options) { o.Path = path })
	err = s.Read(t.Context(), func(tx *store.Tx) error { _, err := tx.Tenants("", 1); return err })
	if !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
		t.Errorf("%v (%s)", err, fault.CodeOf(err))
	}
}

// damage writes noise over every page of a database that holds the tenant.
func damage(t *testing.T, path string) {
	t.Helper()
	const size = 4096
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := 0
	for page := range slices.Chunk(text, size) {
		if bytes.Contains(page, []byte(tenantID)) {
			_, _ = rand.Read(page) // never fails, see crypto/rand
			damaged++
		}
	}
	if damaged == 0 {
		t.Fatal("no page holds the tenant")
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

package controlplane_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// A directory that was set up keeps its database: where that is gone, no other takes its place.
func TestAMissingDatabaseIsNotMadeAgain(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"missing":  func(*testing.T, string) {},
		"empty":    func(t *testing.T, path string) { check(t, os.WriteFile(path, nil, 0o600)) },
		"a folder": func(t *testing.T, path string) { check(t, os.Mkdir(path, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			_, stop := run(t, options(t, dir))
			stop()
			path := filepath.Join(dir, "control-plane.db")
			remove(t, path)
			spoil(t, path)
			before := names(t, dir)
			_, err := controlplane.New(t.Context(), options(t, dir))
			code := fault.Config
			if name == "a folder" {
				code = fault.Unwritable
			}
			if !fault.Is(err, code) || fault.HintOf(err) == "" {
				t.Errorf("%v (%s), want %s with a hint", err, fault.CodeOf(err), code)
			}
			if after := names(t, dir); after != before {
				t.Errorf("it left %s of %s", after, before)
			}
		})
	}
}

// It keeps it too where an operator wrote server.toml, which need not name the root tenant, and moved admin.toml away.
func TestAMissingDatabaseIsNotMadeAgainBesideAServerTOMLOfAnOperator(t *testing.T) {
	for name, moved := range map[string][]string{
		"as it was": nil, "admin.toml moved": {"admin.toml"}, "bcd moved": {"bcd/config.toml", "bcd/join-encryption.jwk", "bcd"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			o := options(t, dir)
			check(t, os.WriteFile(filepath.Join(dir, "server.toml"),
				[]byte("[api]\nlisten = '127.0.0.1:0'\n[gateway]\nlisten = '127.0.0.1:0'\n[attestors.join-token]\n"), 0o600))
			s, stop := run(t, o)
			_, err := s.WriteDaemonConfig(t.Context())
			check(t, err)
			stop()
			for _, file := range moved {
				remove(t, filepath.Join(dir, file))
			}
			remove(t, filepath.Join(dir, "control-plane.db"))
			before := names(t, dir)
			if _, err := controlplane.New(t.Context(), o); !fault.Is(err, fault.Config) {
				t.Errorf("%v (%s), want %s", err, fault.CodeOf(err), fault.Config)
			}
			if after := names(t, dir); after != before {
				t.Errorf("it left %s of %s", after, before)
			}
		})
	}
}

// A server.toml that is not accepted ends the start before anything is made.
func TestAConfigurationThatIsNotAcceptedMakesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	o := options(t, dir)
	refused := errors.New("refused")
	o.Accept = func(c controlplane.Config) error {
		if c.API.Listen != "127.0.0.1:0" || c.Gateway.Listen != "127.0.0.1:8443" {
			t.Errorf("it judges %+v", c)
		}
		return refused
	}
	check(t, os.WriteFile(filepath.Join(dir, "server.toml"), []byte("[api]\nlisten = '127.0.0.1:0'\n"), 0o600))
	if _, err := controlplane.New(t.Context(), o); !errors.Is(err, refused) {
		t.Error(err)
	}
	if left := names(t, dir); left != "server.toml " {
		t.Errorf("it left %s", left)
	}
}

// The root tenant's last key that may do everything can be revoked: the next start makes another.
func TestNobodyIsLockedOut(t *testing.T) {
	for name, end := range map[string]func(tx *store.Tx, k store.APIKey) error{
		"revoked": func(tx *store.Tx, k store.APIKey) error { _, err := tx.RevokeAPIKey(k.ID); return err },
		"expired": func(tx *store.Tx, k store.APIKey) error {
			if _, err := tx.RevokeAPIKey(k.ID); err != nil {
				return err
			}
			k.ID, k.SHA256[0], k.ExpiresAt = tx.NewID(store.PrefixKey), k.SHA256[0]+1, tx.Now().Add(-time.Minute)
			return tx.InsertAPIKey(k)
		},
		"able to do less": func(tx *store.Tx, k store.APIKey) error {
			if _, err := tx.RevokeAPIKey(k.ID); err != nil {
				return err
			}
			k.ID, k.SHA256[0], k.Actions = tx.NewID(store.PrefixKey), k.SHA256[0]+1, []string{"compute:nodes:*", "compute:api-keys:create"}
			return tx.InsertAPIKey(k)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cp")
			s, stop := run(t, options(t, dir))
			root, old := s.Config().RootTenant, readAdmin(t, dir)
			check(t, s.Store().Write(t.Context(), func(tx *store.Tx) error {
				keys, err := tx.APIKeys(root, false, "", 10)
				if err != nil || len(keys) != 1 {
					t.Fatalf("%d keys, %v", len(keys), err)
				}
				return end(tx, keys[0])
			}))
			stop()
			s, stop = run(t, options(t, dir))
			now := readAdmin(t, dir)
			if now.APIKey == old.APIKey {
				t.Fatal("admin.toml still holds the key that is over")
			}
			if n := count(t, http.DefaultClient, now, "tenants/list", map[string]any{}); n != 1 {
				t.Errorf("the new key lists %d tenants", n)
			}
			stop()
			// And then it stays.
			_, stop = run(t, options(t, dir))
			defer stop()
			if again := readAdmin(t, dir); again.APIKey != now.APIKey {
				t.Error("another start made another key")
			}
			_ = s
		})
	}
}

// An admin.toml that was moved away is not made again while its key is good.
func TestAdminIsMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cp")
	_, stop := run(t, options(t, dir))
	stop()
	remove(t, filepath.Join(dir, "admin.toml"))
	_, stop = run(t, options(t, dir))
	defer stop()
	if _, err := os.Stat(filepath.Join(dir, "admin.toml")); !os.IsNotExist(err) {
		t.Errorf("admin.toml: %v", err)
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// names lists a folder's files, with their sizes.
func names(t *testing.T, dir string) (all string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	check(t, err)
	for _, e := range entries {
		if e.Name() != "lock" {
			all += e.Name() + " "
		}
	}
	return all
}

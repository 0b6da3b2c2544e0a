package controlplane

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// Files in the directory.
const (
	configFile   = "server.toml"
	adminFile    = "admin.toml"
	databaseFile = "control-plane.db"

	maxFile = 64 << 10 // bytes
)

// The first start makes, in this order, each step only where its result is missing, so that a crash between two steps
// is completed by the next start:
//
//  1. in the database, in one transaction: the root tenant, one site and one pool, where there is no tenant;
//  2. server.toml, once the listeners have their ports;
//  3. admin.toml, with a new API key;
//  4. that key's digest in the database.
//
// admin.toml comes before its digest: a key that is only in the database could never be used, one that is only in the
// file is completed. While the root tenant has a good key that may do everything, a file that is gone is not made again:
// its owner moved it. Once the last such key was revoked or has expired, the next start makes a new one: whoever runs the
// server has the database anyway, and must not be locked out of it.

// readConfig returns server.toml, or, where there is none, the defaults for the first start; written says which.
func readConfig(dir *statefile.Dir, first Config) (c Config, written bool, err error) {
	text, err := dir.Read(configFile, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		first = first.withDefaults()
		first.Attestors.JoinToken = &JoinTokenConfig{}
		return first, false, first.check()
	}
	if err != nil {
		return Config{}, false, fmt.Errorf("cannot read the configuration: %w", err)
	}
	if c, err = parseConfig(text); err != nil {
		return Config{}, false, fmt.Errorf("cannot read %q: %w", dir.Path()+"/"+configFile, err)
	}
	return c, true, nil
}

// startedBefore reports whether the directory had a database once: then no other may take its place. A server.toml that an
// operator wrote need not name the root tenant, so what a start leaves behind counts too.
func startedBefore(dir *statefile.Dir, c Config) (bool, error) {
	if c.RootTenant != "" {
		return true, nil
	}
	for _, name := range []string{adminFile, daemonDir} {
		if there, err := dir.Exists(name); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// makeRoot makes the root tenant, a site and a pool in an empty database, and returns the root tenant's id.
func makeRoot(ctx context.Context, db store.Store, configured string) (string, error) {
	root := configured
	err := db.Write(ctx, func(tx *store.Tx) error {
		root = configured
		tenants, err := tx.Tenants("", 1)
		if err != nil {
			return err
		}
		if len(tenants) > 0 {
			if root == "" {
				root = tenants[0].ID // the oldest
				return nil
			}
			_, err := tx.Tenant(root)
			return err
		}
		if root != "" {
			return store.ErrNotFound
		}
		root = tx.NewID(store.PrefixTenant)
		site, pool := tx.NewID(store.PrefixSite), tx.NewID(store.PrefixPool)
		if err := tx.InsertTenant(store.Tenant{ID: root, Name: "root"}); err != nil {
			return err
		}
		if err := tx.InsertSite(store.Site{ID: site, TenantID: root, Name: "default"}); err != nil {
			return err
		}
		return tx.InsertPool(store.Pool{ID: pool, TenantID: root, SiteID: site, Name: "default", Agent: store.AgentBCD})
	})
	if errors.Is(err, store.ErrNotFound) {
		return "", fault.New(fault.Config, "restore the database that belongs to "+configFile+", or correct root_tenant",
			"root_tenant %q is not in the database", configured)
	}
	if err != nil {
		return "", fmt.Errorf("cannot make the root tenant: %w", err)
	}
	return root, nil
}

// admin is admin.toml: a context of the command line.
type admin struct {
	URL    string `toml:"url"`
	APIKey string `toml:"api_key"`
}

// makeAdmin makes an API key of the root tenant that may do everything, where there is none, and writes it to admin.toml.
func makeAdmin(ctx context.Context, db store.Store, dir *statefile.Dir, root, url string) error {
	there, err := hasAdmin(ctx, db, root)
	if err != nil {
		return fmt.Errorf("cannot look for API keys: %w", err)
	}
	if there {
		return nil
	}
	digest, err := writeAdmin(dir, url)
	if err != nil {
		return fmt.Errorf("cannot make the admin API key: %w", err)
	}
	err = db.Write(ctx, func(tx *store.Tx) error {
		return tx.InsertAPIKey(store.APIKey{
			ID: tx.NewID(store.PrefixKey), TenantID: root, Name: "admin", SHA256: digest, Actions: []string{apikeys.All},
		})
	})
	if err != nil {
		return fmt.Errorf("cannot make the admin API key: %w", err)
	}
	return nil
}

// hasAdmin reports whether the root tenant has a good key that may do everything.
func hasAdmin(ctx context.Context, db store.Store, root string) (there bool, err error) {
	const page = 200
	err = db.Read(ctx, func(tx *store.Tx) error {
		there = false
		for after := ""; ; {
			keys, err := tx.APIKeys(root, false, after, page)
			if err != nil {
				return err
			}
			there = slices.ContainsFunc(keys, func(k store.APIKey) bool { return apikeys.Covers(k.Actions, apikeys.All) })
			if there || len(keys) < page {
				return nil
			}
			after = keys[page-1].ID
		}
	})
	return there, err
}

// writeAdmin returns the digest of a fresh key that is in admin.toml. A file that a crash left without its digest is
// replaced: nobody can have used its key.
func writeAdmin(dir *statefile.Dir, url string) (digest [sha256.Size]byte, err error) {
	bearer, digest := apikeys.New()
	text, err := toml.Marshal(admin{URL: url, APIKey: bearer})
	if err != nil {
		return digest, err
	}
	return digest, dir.Replace(adminFile, text)
}

// concretePort returns listen with the port that the listener got, where listen leaves it open.
func concretePort(listen string, l net.Listener) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if port != "0" {
		return listen, nil
	}
	_, got, err := net.SplitHostPort(l.Addr().String())
	return net.JoinHostPort(host, got), err
}

// localURL is how a listener is reached from its own machine. A host that stands for every address is loopback.
func localURL(scheme, listen string) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

package config

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/smallfile"
	"github.com/better-compute/bcd/seal"
)

// JoinKeyFile is the name of the join key file, which stands beside config.toml.
const JoinKeyFile = "join-encryption.jwk"

// maxJoinKey is the largest join key file, in bytes.
const maxJoinKey = 16 << 10

// JoinKeyDir returns the directory that holds the join key file of this configuration.
func (c *Config) JoinKeyDir() string { return filepath.Dir(c.Path) }

// JoinKey returns the key to seal a token to: the join key file's, else what the control plane named by --server
// publishes. A file that is there decides alone, right or wrong; only its absence leads to the fetch.
func (c *Config) JoinKey(ctx context.Context, server string, fetch Fetcher) (seal.Key, error) {
	key, found, err := LoadJoinKey(c.JoinKeyDir(), c.JoinEncryption)
	if found || err != nil {
		return key, err
	}
	if server == "" {
		return seal.Key{}, fault.New(fault.Config,
			hintSource+"; or name the control plane with --server https://…",
			"cannot seal the token: there is no join key in %q", filepath.Join(c.JoinKeyDir(), JoinKeyFile))
	}
	return fetch.JoinKey(ctx, server, c.JoinEncryption)
}

// LoadJoinKey reads the join key file in dir. Its absence is no error: found is false. The file is public, so its owner
// and mode are not asked: the pins say whether it is the right one, and another key is a [fault.Verification] error.
func LoadJoinKey(dir string, pins pin.Set) (key seal.Key, found bool, err error) {
	path := filepath.Join(dir, JoinKeyFile)
	f, err := smallfile.Read(path, maxJoinKey)
	if errors.Is(err, fs.ErrNotExist) {
		return seal.Key{}, false, nil
	}
	if err != nil {
		return seal.Key{}, true, fault.New(fault.Config, hintSource, "cannot read the join key %q: %w", path, err)
	}
	key, err = seal.ParseKey(f.Content)
	if err != nil {
		return seal.Key{}, true, fault.New(fault.Config, hintSource, "cannot use the join key %q: %w", path, err)
	}
	if err := pinned(key, pins); err != nil {
		return seal.Key{}, true, fault.New(fault.Verification, hintSource, "cannot use the join key %q: %w", path, err)
	}
	return key, true, nil
}

// pinned checks that one of the pins names the key.
func pinned(key seal.Key, pins pin.Set) error {
	p, err := key.Pin()
	if err != nil {
		return err
	}
	if !pins.Has(p) {
		return fault.New(fault.Verification, "", "its key is %s and join_encryption_key_pin is %s", p, pins)
	}
	return nil
}

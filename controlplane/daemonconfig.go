package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// The folder of the directory that holds a configuration for bcd, and its files.
const (
	daemonDir        = "bcd"
	daemonConfigFile = "config.toml"
	daemonKeyFile    = "join-encryption.jwk"
	daemonStateDir   = "state"
	daemonSocket     = "status.sock"

	maxSocketPath = 107 // bytes: the kernel's sun_path without its NUL
)

// daemonConfig is bcd's config.toml.
type daemonConfig struct {
	GatewayURL           string        `toml:"gateway_url"`
	GatewayServerName    string        `toml:"gateway_server_name,omitempty"`
	Site                 string        `toml:"site"`
	ServingCAPin         string        `toml:"serving_ca_spki_pin"`
	JoinSigningKeyPin    string        `toml:"join_signing_key_pin"`
	JoinEncryptionKeyPin string        `toml:"join_encryption_key_pin"`
	DataDir              string        `toml:"data_dir" comment:"Where bcd on this machine keeps its state without being root. Drop the rest of the file on another machine."`
	Status               *daemonStatus `toml:"status,omitempty"`
}

type daemonStatus struct {
	Socket string `toml:"socket"`
}

const daemonHeader = `# Lets bcd on this machine join this control plane. Written by "better-compute serve" at every start.
# On another machine these lines, without data_dir and what follows, are /etc/bcd/config.toml.
`

// WriteDaemonConfig writes what bcd needs to join, and returns the path of the configuration: bcd/config.toml in the
// directory, with join-encryption.jwk beside it, for the first site that the gateway serves. Nothing in them is secret.
func (s *Server) WriteDaemonConfig(ctx context.Context) (string, error) {
	path, err := s.writeDaemonConfig(ctx)
	if err != nil {
		return "", fmt.Errorf("cannot write the configuration for bcd: %w", err)
	}
	return path, nil
}

func (s *Server) writeDaemonConfig(ctx context.Context) (path string, err error) {
	site, err := s.daemonSite(ctx)
	if err != nil {
		return "", err
	}
	dir, err := statefile.Open(filepath.Join(s.o.Dir, daemonDir))
	if err != nil {
		return "", err
	}
	defer func() {
		if e := dir.Close(); err == nil {
			err = e
		}
	}()
	pins := s.bundle.Public().Pins()
	c := daemonConfig{
		GatewayURL: s.config.Gateway.URL, GatewayServerName: s.config.Gateway.ServerName, Site: site,
		ServingCAPin: pins.ServingCA.String(), JoinSigningKeyPin: pins.JoinSigning.String(), JoinEncryptionKeyPin: pins.JoinEncryption.String(),
		DataDir: filepath.Join(dir.Path(), daemonStateDir),
	}
	if socket := filepath.Join(dir.Path(), daemonSocket); len(socket) <= maxSocketPath {
		c.Status = &daemonStatus{Socket: socket}
	}
	text, err := toml.Marshal(c)
	if err != nil {
		return "", err
	}
	key, err := json.Marshal(s.bundle.Public().EncryptionJWK())
	if err != nil {
		return "", err
	}
	// The key first: a configuration without its key would be one that cannot join.
	if err := dir.Replace(daemonKeyFile, append(key, '\n')); err != nil {
		return "", err
	}
	if err := os.Chmod(filepath.Join(dir.Path(), daemonKeyFile), 0o644); err != nil { //nolint:gosec // it is public
		return "", err
	}
	return filepath.Join(dir.Path(), daemonConfigFile), dir.Replace(daemonConfigFile, append([]byte(daemonHeader), text...))
}

// daemonSite returns the first site that the gateway serves.
func (s *Server) daemonSite(ctx context.Context) (string, error) {
	if sites := s.config.Gateway.Sites; len(sites) > 0 {
		return sites[0], nil
	}
	var sites []store.Site
	err := s.store.Read(ctx, func(tx *store.Tx) (err error) {
		sites, err = tx.Sites(s.config.RootTenant, "", 1)
		return err
	})
	if err == nil && len(sites) == 0 {
		err = fault.New(fault.InvalidState, "", "the root tenant has no site")
	}
	if err != nil {
		return "", err
	}
	return sites[0].ID, nil
}

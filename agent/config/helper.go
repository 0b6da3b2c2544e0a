package config

import (
	"fmt"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// helperPath is what a configuration that came from the helper is called.
const helperPath = "the helper's configuration"

// NodeParts returns what a node under [helper] needs of the configuration, as a config.toml: all of it but the way to the TPM,
// which is the helper's.
func (c *Config) NodeParts() ([]byte, error) {
	parts := map[string]any{
		"gateway_url": c.Gateway.URL, "gateway_server_name": c.Gateway.ServerName, "site": c.Site,
		"serving_ca_spki_pin": texts(c.ServingCA), "join_signing_key_pin": texts(c.JoinSigning), "join_encryption_key_pin": texts(c.JoinEncryption),
		"data_dir": c.DataDir, "host_root": c.HostRoot,
		"tpm":    map[string]any{"mode": string(c.TPM.Mode), "auto_rejoin": c.TPM.AutoRejoin},
		"log":    map[string]any{"level": strings.ToLower(c.Log.Level.String()), "format": "text"},
		"status": map[string]any{"socket": c.Status.Socket},
	}
	if len(c.Placeholders) > 0 {
		parts["hardware"] = map[string]any{"placeholders": c.Placeholders}
	}
	if c.Log.JSON {
		parts["log"].(map[string]any)["format"] = "json"
	}
	if c.Helper.User != "" {
		parts["helper"] = map[string]any{"user": c.Helper.User, "socket": c.Helper.Socket}
	}
	switch c.Metrics.Network {
	case "tcp":
		parts["metrics"] = map[string]any{"listen": c.Metrics.Address}
	case "unix":
		parts["metrics"] = map[string]any{"listen": "unix:" + c.Metrics.Address}
	}
	document, err := toml.Marshal(parts)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the node's configuration: %w", err)
	}
	return document, nil
}

func texts(set pin.Set) (all []string) {
	for _, p := range set {
		all = append(all, p.String())
	}
	return all
}

// FromHelper reads what [Config.NodeParts] of the helper's configuration returned. The flags win over it.
func FromHelper(document []byte, flags Flags) (*Config, error) {
	c := Default()
	c.Path = DefaultPath
	document, err := clean(helperPath, document)
	if err != nil {
		return nil, err
	}
	f, err := parse(document)
	if err == nil {
		err = f.into(c)
	}
	if err != nil {
		return nil, fault.New(fault.Config, "install the same version of bcd for node and helper", "cannot use %s: %w", helperPath, err)
	}
	return c, flags.Apply(c)
}

package controlplane

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Config is server.toml. Unknown keys are errors.
type Config struct {
	// RootTenant is the id of the tenant that the platform itself is.
	RootTenant string `toml:"root_tenant" comment:"The tenant of the platform itself. Made by the first start."`
	// BasePath is the HTTP API's, without a slash at the end.
	BasePath  string          `toml:"base_path" comment:"The path under which the HTTP API is served."`
	API       APIConfig       `toml:"api"`
	Gateway   GatewayConfig   `toml:"gateway"`
	Join      JoinConfig      `toml:"join"`
	Attestors AttestorsConfig `toml:"attestors" comment:"The ways in which machines may join. A pool without joinAttestors takes every one that has a section here."`
}

// APIConfig is the listener of the HTTP API.
type APIConfig struct {
	// Listen is host:port.
	Listen string `toml:"listen" comment:"host:port of the HTTP API. Anything but loopback needs tls_cert and tls_key, or a proxy that speaks TLS."`
	// TLSCert and TLSKey are PEM files, relative to the directory. Both or none: without them the API speaks plain HTTP.
	TLSCert string `toml:"tls_cert,omitempty"`
	TLSKey  string `toml:"tls_key,omitempty"`
}

// GatewayConfig is the gateway.
type GatewayConfig struct {
	// Listen is host:port.
	Listen string `toml:"listen" comment:"host:port of the gateway, which machines reach as url."`
	// URL is what machines dial: https://HOST[:PORT].
	URL string `toml:"url"`
	// ServerName is the name in the gateway's certificate where it is not the URL's host.
	ServerName string `toml:"server_name,omitempty"`
	// Sites are the sites that the gateway serves; none is every one.
	Sites []string `toml:"sites,omitempty"`
	// RefusedPerSecond and RefusedBurst limit the refused calls of one IPv4 address or IPv6 /64.
	RefusedPerSecond int `toml:"refused_per_second" comment:"Refused calls that one IPv4 address or IPv6 /64 may make."`
	RefusedBurst     int `toml:"refused_burst"`
}

// JoinConfig is JoinService.
type JoinConfig struct {
	// Listen is host:port for gateways, over mutual TLS.
	Listen string `toml:"listen" comment:"host:port of JoinService, for gateways, over mutual TLS."`
	// CertTTLSeconds is the life of a node certificate, 1 to 86400 seconds.
	CertTTLSeconds int `toml:"cert_ttl_seconds" comment:"Life of a node certificate, at most 86400."`
}

// AttestorsConfig says which attestors are there: those whose section is.
type AttestorsConfig struct {
	JoinToken *JoinTokenConfig `toml:"join-token"`
	Discovery *DiscoveryConfig `toml:"discovery"`
	X509PoP   *X509PoPConfig   `toml:"x509pop"`
	TPM       *TPMConfig       `toml:"tpm"`
}

// JoinTokenConfig is the section of the attestor join-token. It has no keys.
type JoinTokenConfig struct{}

// DiscoveryConfig is the section of the attestor discovery.
type DiscoveryConfig struct {
	// Approval says about which machines a person decides.
	Approval joinservice.ApprovalRule `toml:"approval" comment:"About which machines a person decides: never, unknown-machines or always."`
	// PendingTTLSeconds is how long a join request waits for a decision, 60 to 604800 seconds.
	PendingTTLSeconds int `toml:"pending_ttl_seconds" comment:"How long a join request waits for a decision, 60 to 604800."`
}

// X509PoPConfig is the section of the attestor x509pop. It has no keys.
type X509PoPConfig struct{}

// TPMConfig is the section of the attestor tpm.
type TPMConfig struct {
	// EKRoots are PEM files with the certificates of authorities of TPM makers, relative to the directory.
	EKRoots []string `toml:"ek_roots,omitempty" comment:"PEM files with the authorities of TPM makers, relative to this directory."`
	// Enrollment asks a person about TPMs that nothing else vouches for.
	Enrollment bool `toml:"enrollment" comment:"Ask a person about TPMs that nothing else vouches for."`
	// PendingTTLSeconds is how long a join request waits for a decision, 60 to 604800 seconds.
	PendingTTLSeconds int `toml:"pending_ttl_seconds" comment:"How long a join request waits for a decision, 60 to 604800."`
	// Pools are, by the id of a site, the pools that take every TPM with a certificate under EKRoots.
	Pools map[string]string `toml:"pools,omitempty" comment:"By the id of a site: the pool that takes every TPM with a certificate under ek_roots."`
}

var (
	// basePath is what goes into URLs as it stands.
	basePath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+$`)
	// hostName is a DNS name or an IP address, as far as its characters go.
	hostName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$|^[0-9A-Fa-f:.]+$`)
)

// withDefaults fills what is not set.
func (c Config) withDefaults() Config {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	number := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	set(&c.BasePath, httpapi.DefaultBasePath)
	set(&c.API.Listen, "127.0.0.1:8080")
	set(&c.Gateway.Listen, "127.0.0.1:8443")
	set(&c.Join.Listen, "127.0.0.1:0")
	number(&c.Gateway.RefusedPerSecond, 20)
	number(&c.Gateway.RefusedBurst, 200)
	number(&c.Join.CertTTLSeconds, int(joinservice.MaxCertTTL/time.Second))
	if c.Attestors.Discovery != nil {
		discovery := *c.Attestors.Discovery
		set((*string)(&discovery.Approval), string(joinservice.ApproveUnknown))
		number(&discovery.PendingTTLSeconds, int(joinservice.DefaultPendingTTL/time.Second))
		c.Attestors.Discovery = &discovery
	}
	if c.Attestors.TPM != nil {
		tpm := *c.Attestors.TPM
		number(&tpm.PendingTTLSeconds, int(joinservice.DefaultPendingTTL/time.Second))
		c.Attestors.TPM = &tpm
	}
	return c
}

// parseConfig reads server.toml.
func parseConfig(text []byte) (Config, error) {
	// What the file leaves out is the default. What it says, a zero or an empty text too, is judged as it stands: so it is
	// read over the defaults. Which sections it has, on which their defaults depend, is read first.
	var given Config
	if err := decodeConfig(text, &given); err != nil {
		return Config{}, err
	}
	var c Config
	if given.Attestors.Discovery != nil {
		c.Attestors.Discovery = &DiscoveryConfig{}
	}
	if given.Attestors.TPM != nil {
		c.Attestors.TPM = &TPMConfig{}
	}
	c = c.withDefaults()
	if err := decodeConfig(text, &c); err != nil {
		return Config{}, err
	}
	for i, id := range c.Gateway.Sites {
		if store.CheckID(store.PrefixSite, id) != nil {
			return Config{}, fault.New(fault.Config, `write the ids of sites, site_…; "better-compute sites list" shows them`, "gateway.sites[%d] is %q", i, id)
		}
	}
	return c, c.check()
}

func decodeConfig(text []byte, c *Config) error {
	if err := toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(c); err != nil {
		return fault.New(fault.Config, "", "%w", tomlError(err))
	}
	return nil
}

func (c Config) marshal() ([]byte, error) {
	text, err := toml.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s: %w", configFile, err)
	}
	return text, nil
}

// check refuses what no server can run with. What a part checks by itself is left to it.
func (c Config) check() error {
	if c.RootTenant != "" && store.CheckID(store.PrefixTenant, c.RootTenant) != nil {
		return fault.New(fault.Config, `write the id of a tenant, tn_…; "better-compute tenants list" shows it`, "root_tenant is %q", c.RootTenant)
	}
	if !basePath.MatchString(c.BasePath) {
		return fault.New(fault.Config, "write it as "+httpapi.DefaultBasePath, "base_path is %q, which is not a base path", c.BasePath)
	}
	if n := c.Gateway.ServerName; n != "" && !hostName.MatchString(n) {
		return fault.New(fault.Config, "write a host name or an IP address, without a scheme or a port", "gateway.server_name is %q", n)
	}
	if c.Join.CertTTLSeconds < 1 || time.Duration(c.Join.CertTTLSeconds)*time.Second > joinservice.MaxCertTTL {
		return fault.New(fault.Config, fmt.Sprintf("set it to a number from 1 to %d", int(joinservice.MaxCertTTL/time.Second)),
			"join.cert_ttl_seconds is %d", c.Join.CertTTLSeconds)
	}
	if err := c.Attestors.Discovery.check(); err != nil {
		return err
	}
	if err := c.Attestors.TPM.check(); err != nil {
		return err
	}
	if c.Gateway.RefusedPerSecond < 1 || c.Gateway.RefusedBurst < 1 {
		return fault.New(fault.Config, "set both to a positive number", "gateway.refused_per_second is %d and gateway.refused_burst %d",
			c.Gateway.RefusedPerSecond, c.Gateway.RefusedBurst)
	}
	if (c.API.TLSCert == "") != (c.API.TLSKey == "") {
		return fault.New(fault.Config, "", "api.tls_cert and api.tls_key go together, and one is missing")
	}
	for _, l := range []struct{ key, value string }{
		{"api.listen", c.API.Listen}, {"gateway.listen", c.Gateway.Listen}, {"join.listen", c.Join.Listen},
	} {
		if _, _, err := net.SplitHostPort(l.value); err != nil {
			return fault.New(fault.Config, "write it as HOST:PORT", "%s is %q", l.key, l.value)
		}
	}
	if c.Gateway.URL != "" {
		u, err := url.Parse(c.Gateway.URL)
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
			return fault.New(fault.Config, "write it as https://HOST or https://HOST:PORT", "gateway.url is %q", c.Gateway.URL)
		}
	}
	return nil
}

func (d *DiscoveryConfig) check() error {
	if d == nil {
		return nil
	}
	if !slices.Contains(joinservice.ApprovalRules, d.Approval) {
		return fault.New(fault.Config, fmt.Sprintf("set it to %q, %q or %q", joinservice.ApproveNever, joinservice.ApproveUnknown, joinservice.ApproveAlways),
			"attestors.discovery.approval is %q", d.Approval)
	}
	return checkPendingTTL("attestors.discovery.pending_ttl_seconds", d.PendingTTLSeconds)
}

func (t *TPMConfig) check() error {
	if t == nil {
		return nil
	}
	if err := checkPendingTTL("attestors.tpm.pending_ttl_seconds", t.PendingTTLSeconds); err != nil {
		return err
	}
	for _, site := range slices.Sorted(maps.Keys(t.Pools)) {
		if store.CheckID(store.PrefixSite, site) != nil {
			return fault.New(fault.Config, `write the id of a site, site_…; "better-compute sites list" shows them`, "attestors.tpm.pools has the key %q", site)
		}
		if store.CheckID(store.PrefixPool, t.Pools[site]) != nil {
			return fault.New(fault.Config, `write the id of a pool, pool_…; "better-compute pools list" shows them`,
				"attestors.tpm.pools.%s is %q", site, t.Pools[site])
		}
	}
	if len(t.Pools) > 0 && len(t.EKRoots) == 0 {
		return fault.New(fault.Config, "name the makers' authorities in attestors.tpm.ek_roots, or list single TPMs with \"better-compute ek-allow add\"",
			"attestors.tpm.pools is set without attestors.tpm.ek_roots")
	}
	return nil
}

func checkPendingTTL(key string, seconds int) error {
	least, most := int(joinservice.MinPendingTTL/time.Second), int(joinservice.MaxPendingTTL/time.Second)
	if seconds < least || seconds > most {
		return fault.New(fault.Config, fmt.Sprintf("set it to a number from %d to %d", least, most), "%s is %d", key, seconds)
	}
	return nil
}

// gatewayNames are the names that the gateway's certificate must hold.
func (c Config) gatewayNames() []string {
	var names []string
	if u, err := url.Parse(c.Gateway.URL); err == nil && u.Hostname() != "" {
		names = append(names, u.Hostname())
	}
	if n := c.Gateway.ServerName; n != "" && (len(names) == 0 || names[0] != n) {
		names = append(names, n)
	}
	return names
}

// tomlError adds the place to an error of the TOML decoder.
func tomlError(err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) && len(unknown.Errors) > 0 {
		row, column := unknown.Errors[0].Position()
		return fmt.Errorf("line %d, column %d: unknown key %q", row, column, strings.Join(unknown.Errors[0].Key(), "."))
	}
	var wrong *toml.DecodeError
	if errors.As(err, &wrong) {
		row, column := wrong.Position()
		return fmt.Errorf("line %d, column %d: %w", row, column, err)
	}
	return err
}

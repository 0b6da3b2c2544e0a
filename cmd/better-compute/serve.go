package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/fault"
)

// serving is the flags of a running server.
type serving struct {
	dir, trustDomain                   string
	listen, gatewayListen, joinListen  string
	gatewayURL, gatewayName, logFormat string
	logLevel                           slog.Level
	gatewaySites                       []string
	certTTL                            time.Duration
}

func serveCommand(env Env) *cobra.Command {
	var s serving
	c := &cobra.Command{
		Use:   "serve --dir DIR",
		Short: "Run the control plane",
		Long: `Run the control plane: JoinService, the gateway and the HTTP API.

DIR holds the PKI of "pki init" and everything that the server keeps. The first start makes a root tenant with one site
and one pool, and writes:

  server.toml       the configuration; the flags of the first start go into it, and later starts read it
  admin.toml        a context with the API's URL and an API key that may do everything (mode 0600)
  bcd/config.toml   a configuration with which bcd on this machine can join, written at every start

With --trust-domain it makes the PKI too, where DIR has none. $` + envSecret + ` opens the PKI's private keys. SIGTERM ends
it: calls under way finish, sessions are told to reconnect.`,
		Example: `  better-compute pki init --trust-domain compute.example.com --dir DIR
  better-compute serve --dir DIR --gateway-url https://gw.eu.example.com --gateway-listen :443`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if s.dir == "" {
				return usage(c, "--dir is missing")
			}
			return s.run(c, env)
		},
	}
	flags := c.Flags()
	flags.StringVar(&s.dir, "dir", "", "directory of the PKI and of everything that the server keeps")
	flags.StringVar(&s.trustDomain, "trust-domain", "", "make the PKI, for this domain, where there is none")
	flags.StringVar(&s.listen, "listen", "", "HOST:PORT of the HTTP API (default 127.0.0.1:8080)")
	flags.StringVar(&s.gatewayListen, "gateway-listen", "", "HOST:PORT of the gateway (default 127.0.0.1:8443)")
	flags.StringVar(&s.joinListen, "join-listen", "", "HOST:PORT of JoinService, for gateways elsewhere (default a free port of loopback)")
	flags.StringVar(&s.gatewayURL, "gateway-url", "", "what machines dial, https://HOST[:PORT] (default the gateway's address)")
	flags.StringVar(&s.gatewayName, "gateway-server-name", "", "name in the gateway's certificate where it is not the URL's host")
	flags.StringSliceVar(&s.gatewaySites, "gateway-sites", nil, "ids of the sites that the gateway serves (default all)")
	flags.DurationVar(&s.certTTL, "cert-ttl", 0, "life of a node certificate, in whole seconds up to 24h (default 24h)")
	s.addLogTo(c)
	return c
}

func (s *serving) addLogTo(c *cobra.Command) {
	c.Flags().TextVar(&s.logLevel, "log-level", slog.LevelInfo, "debug, info, warn or error")
	c.Flags().StringVar(&s.logFormat, "log-format", "text", "text or json")
}

// logger returns the log of the flags.
func (s *serving) logger(env Env) (*slog.Logger, error) {
	options := &slog.HandlerOptions{Level: s.logLevel}
	switch s.logFormat {
	case "text":
		return slog.New(slog.NewTextHandler(env.Stderr, options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(env.Stderr, options)), nil
	default:
		return nil, fault.New(fault.Usage, "", "invalid value %q for --log-format: must be text or json", s.logFormat)
	}
}

// firstConfig is what the flags put into server.toml.
func (s *serving) firstConfig() (controlplane.Config, error) {
	if s.certTTL%time.Second != 0 || s.certTTL < 0 {
		return controlplane.Config{}, flagError("cert-ttl", s.certTTL.String(), errors.New("must be whole seconds"))
	}
	return controlplane.Config{
		API:     controlplane.APIConfig{Listen: s.listen},
		Gateway: controlplane.GatewayConfig{Listen: s.gatewayListen, URL: s.gatewayURL, ServerName: s.gatewayName, Sites: s.gatewaySites},
		Join:    controlplane.JoinConfig{Listen: s.joinListen, CertTTLSeconds: int(s.certTTL / time.Second)},
	}, nil
}

func (s *serving) run(c *cobra.Command, env Env) error {
	log, err := s.logger(env)
	if err != nil {
		return err
	}
	// What is printed is for use elsewhere, too.
	if s.dir, err = filepath.Abs(s.dir); err != nil {
		return fmt.Errorf("cannot find the directory: %w", err)
	}
	first, err := s.firstConfig()
	if err != nil {
		return err
	}
	bundle, err := s.bundle(env)
	if err != nil {
		return err
	}
	server, err := controlplane.New(c.Context(), controlplane.Options{
		Dir: s.dir, Bundle: bundle, FirstConfig: first, GatewaySites: s.gatewaySites,
		Accept: func(there controlplane.Config) error { return agrees(there, first) },
		Now:    env.Now, Log: log, Version: version(),
	})
	if err != nil {
		return err
	}
	return serveUntilDone(c.Context(), env, server, func(config string) {
		printReady(env, server, config)
	})
}

// bundle opens the PKI of the directory, or makes it where that was asked for.
func (s *serving) bundle(env Env) (*pki.Bundle, error) {
	secret, err := env.secret()
	if err != nil {
		return nil, err
	}
	bundle, err := pki.Load(s.dir, secret)
	if s.trustDomain == "" {
		return bundle, err
	}
	if err == nil {
		if got := bundle.Public().TrustDomain(); got != s.trustDomain {
			return nil, fault.New(fault.Config, "leave --trust-domain out, or name another --dir",
				"the PKI in %q is of the trust domain %q, not %q", s.dir, got, s.trustDomain)
		}
		return bundle, nil
	}
	made, initErr := pki.Init(s.dir, s.trustDomain, secret, env.Now())
	if fault.Is(initErr, fault.AlreadyExists) {
		return nil, err // there is a PKI, and it did not open
	}
	return made, initErr
}

// agrees reports a flag that a later start gives another value than server.toml has. A flag that is silently without
// effect would be worse than an error.
func agrees(config, flags controlplane.Config) error {
	for _, f := range []struct{ name, key, flag, config string }{
		{"listen", "api.listen", flags.API.Listen, config.API.Listen},
		{"gateway-listen", "gateway.listen", flags.Gateway.Listen, config.Gateway.Listen},
		{"join-listen", "join.listen", flags.Join.Listen, config.Join.Listen},
		{"gateway-url", "gateway.url", flags.Gateway.URL, config.Gateway.URL},
		{"gateway-server-name", "gateway.server_name", flags.Gateway.ServerName, config.Gateway.ServerName},
		{"cert-ttl", "join.cert_ttl_seconds", lifetime(flags.Join.CertTTLSeconds), lifetime(config.Join.CertTTLSeconds)},
	} {
		if f.flag == "" || f.flag == f.config || freePort(f.flag) {
			continue
		}
		return fault.New(fault.Config, "edit server.toml, or leave the flag out",
			"--%s is %s, but %s in server.toml is %q: flags count at the first start only", f.name, f.flag, f.key, f.config)
	}
	return nil
}

func lifetime(n int) string {
	if n == 0 {
		return ""
	}
	return (time.Duration(n) * time.Second).String()
}

// freePort reports whether the address asks for any free port, which server.toml then names.
func freePort(listen string) bool {
	_, port, err := net.SplitHostPort(listen)
	return err == nil && port == "0"
}

// serveUntilDone runs the server until ctx ends. It calls ready, with the path of bcd's configuration, once the
// listeners are open.
func serveUntilDone(ctx context.Context, env Env, server *controlplane.Server, ready func(config string)) error {
	config, err := server.WriteDaemonConfig(ctx)
	if err != nil {
		return errors.Join(err, server.Close())
	}
	if exposed(server) {
		fmt.Fprintf(env.Stderr, "warning: the HTTP API speaks plain HTTP on %s: set api.tls_cert and api.tls_key in server.toml, or let only a proxy that speaks TLS reach it\n", server.Config().API.Listen)
	}
	collectSeldom(env)
	ready(config)
	return server.Run(ctx)
}

// seldom is how much the heap of a server grows between two garbage collections, in percent of what is in use. A join
// leaves some 400 KB behind and the heap in use is a few MiB: with Go's 100 there is a collection every dozen joins, which
// takes a fifth of a busy server's CPU time. This one costs some 15 MiB of memory.
const seldom = 400

// collectSeldom sets the garbage collector, unless the environment does.
func collectSeldom(env Env) {
	if env.Getenv("GOGC") == "" {
		debug.SetGCPercent(seldom)
	}
}

// exposed reports whether API keys may cross a network in clear.
func exposed(server *controlplane.Server) bool {
	u, err := url.Parse(server.APIURL())
	if err != nil || u.Scheme == "https" {
		return false
	}
	host, _, err := net.SplitHostPort(server.Config().API.Listen)
	if err != nil || host == "localhost" {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err != nil || !ip.IsLoopback()
}

// printReady says where everything is. The listeners are open: what is printed can be used.
func printReady(env Env, server *controlplane.Server, config string) {
	w := env.Stdout
	fmt.Fprintf(w, "HTTP API       %s\n", server.APIURL())
	fmt.Fprintf(w, "gateway        %s (listens on %s)\n", server.Config().Gateway.URL, server.GatewayAddr())
	fmt.Fprintf(w, "context        %s\n", server.AdminFile())
	fmt.Fprintf(w, "bcd's config   %s\n", config)
	fmt.Fprintf(w, "ready\n")
}

package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/acceptance"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

const (
	// maxJoinMessage bounds what a gateway may send to JoinService: a gateway's own limit and room for what it adds.
	maxJoinMessage = 128 << 10
	// drainWithin bounds the end of each part.
	drainWithin = 10 * time.Second
)

// Options configure a server.
type Options struct {
	// Dir is the directory; it is made where it is missing. Required.
	Dir string
	// Secret opens pki.age in Dir. It is not used where Bundle is set.
	Secret string
	// Bundle is the PKI, where the caller has it already.
	Bundle *pki.Bundle
	// WithoutJoinKeys runs JoinService without its keys: every join fails with INVALID_CONFIG, and the well-known
	// document has no join section.
	WithoutJoinKeys bool
	// FirstConfig is what the first start writes to server.toml; what it leaves out gets its default. A port 0 is
	// written as the port that the listener got.
	FirstConfig Config
	// Accept, which may be nil, judges a server.toml that is there already, before anything is opened or made.
	Accept func(Config) error
	// GatewaySites, where set, takes the place of the configuration's.
	GatewaySites []string
	// Now is the clock of every part. Required.
	Now func() time.Time
	// Log is required.
	Log *slog.Logger
	// Version is the program's, for the well-known document.
	Version string

	// WithoutGateway leaves the gateway to the caller, who makes gateways with [Server.NewGateway].
	WithoutGateway bool
	// AfterStep, JoinPoll and JoinSleep are the store's and JoinService's options of these names, for tests.
	AfterStep func(step string) error
	JoinPoll  time.Duration
	JoinSleep func(ctx context.Context, d time.Duration) error
}

// Server is a control plane whose listeners are open.
type Server struct {
	o       Options
	config  Config
	bundle  *pki.Bundle
	store   store.Store
	tokens  *tokens.Service
	join    *joinservice.Service
	api     *httpapi.API
	gateway *gateway.Gateway // nil without
	release func()           // of the directory's lock

	apiCertificate tls.Certificate // where the API speaks TLS

	apiListener, gatewayListener, joinListener net.Listener

	closeOnce sync.Once
	closeErr  error
}

// New opens the directory, completes its first start and opens the listeners. Nothing is served before [Server.Run];
// a server that is not run is closed with [Server.Close].
func New(ctx context.Context, o Options) (_ *Server, err error) {
	if o.Dir == "" || o.Now == nil || o.Log == nil {
		return nil, errors.New("cannot make a control plane: directory, clock and log are required")
	}
	s := &Server{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	dir, err := statefile.Open(o.Dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	if s.release, err = dir.Lock(); err != nil {
		return nil, lockError(err)
	}
	config, written, err := readConfig(dir, o.FirstConfig)
	if err != nil {
		return nil, err
	}
	if written && o.Accept != nil {
		if err := o.Accept(config); err != nil {
			return nil, err
		}
	}
	existing, err := startedBefore(dir, config)
	if err != nil {
		return nil, err
	}
	if s.bundle = o.Bundle; s.bundle == nil {
		if s.bundle, err = pki.Load(o.Dir, o.Secret); err != nil {
			return nil, err
		}
	}
	if s.store, err = store.Open(ctx, store.Options{
		Path: filepath.Join(o.Dir, databaseFile), Existing: existing, Now: o.Now, AfterStep: o.AfterStep,
	}); err != nil {
		return nil, err
	}
	if config.RootTenant, err = makeRoot(ctx, s.store, config.RootTenant); err != nil {
		return nil, err
	}
	if err := s.listen(ctx, &config); err != nil {
		return nil, err
	}
	if !written {
		text, err := config.marshal()
		if err != nil {
			return nil, err
		}
		if err := dir.Replace(configFile, text); err != nil {
			return nil, fmt.Errorf("cannot write the configuration: %w", err)
		}
	}
	if len(o.GatewaySites) > 0 {
		config.Gateway.Sites = o.GatewaySites
	}
	s.config = config
	if err := s.warnOfUnknownSites(ctx); err != nil {
		return nil, err
	}
	if err := s.store.Read(ctx, config.Attestors.TPM.checkPools); err != nil {
		return nil, err
	}
	if err := makeAdmin(ctx, s.store, dir, config.RootTenant, s.APIURL()); err != nil {
		return nil, err
	}
	return s, s.build()
}

// warnOfUnknownSites tells of sites that the gateway serves and that are not there: it refuses the machines of all others.
func (s *Server) warnOfUnknownSites(ctx context.Context) error {
	return s.store.Read(ctx, func(tx *store.Tx) error {
		for _, id := range s.config.Gateway.Sites {
			if _, err := tx.Site(id); errors.Is(err, store.ErrNotFound) {
				s.o.Log.WarnContext(ctx, "serve unknown site", "site", id, "hint", "correct gateway.sites in "+configFile+", or --gateway-sites")
			} else if err != nil {
				return err
			}
		}
		return nil
	})
}

// listen opens the listeners and completes the configuration of a first start with what they got.
func (s *Server) listen(ctx context.Context, c *Config) (err error) {
	for _, l := range []struct {
		key  string
		addr *string
		to   *net.Listener
	}{{"api.listen", &c.API.Listen, &s.apiListener}, {"join.listen", &c.Join.Listen, &s.joinListener}, {"gateway.listen", &c.Gateway.Listen, &s.gatewayListener}} {
		if l.to == &s.gatewayListener && s.o.WithoutGateway {
			continue
		}
		if *l.to, err = new(net.ListenConfig).Listen(ctx, "tcp", *l.addr); err != nil {
			return fault.New(fault.Config, "choose another address in "+configFile, "cannot listen for %s: %w", l.key, err)
		}
		if l.to == &s.joinListener {
			continue // gateways of this process ask the listener: an open port may stay open
		}
		if *l.addr, err = concretePort(*l.addr, *l.to); err != nil {
			return fmt.Errorf("cannot listen for %s: %w", l.key, err)
		}
	}
	if c.Gateway.URL != "" || s.o.WithoutGateway {
		return nil
	}
	if host, _, err := net.SplitHostPort(c.Gateway.Listen); err != nil || host == "" || net.ParseIP(host).IsUnspecified() {
		return fault.New(fault.Config, "set gateway.url to what machines dial, as https://HOST:PORT",
			"the gateway listens on every address of %q and has no URL", c.Gateway.Listen)
	}
	c.Gateway.URL, err = localURL("https", c.Gateway.Listen)
	return err
}

// build makes the parts.
func (s *Server) build() (err error) {
	s.tokens = &tokens.Service{Store: s.store}
	jo := joinservice.Options{
		Store: s.store, RootTenant: s.config.RootTenant, CertTTL: time.Duration(s.config.Join.CertTTLSeconds) * time.Second,
		Poll: s.o.JoinPoll, Sleep: s.o.JoinSleep, Now: s.o.Now, Log: s.o.Log,
	}
	ao := httpapi.Options{
		Store: s.store, RootTenant: s.config.RootTenant, Tokens: s.tokens, BasePath: s.config.BasePath, Version: s.o.Version, Log: s.o.Log,
	}
	if !s.o.WithoutJoinKeys {
		jo.Keys = joinservice.KeysOf(s.bundle)
		if jo.Attestors, err = s.config.Attestors.make(jo.Keys, s.path); err != nil {
			return err
		}
		if len(jo.Attestors) == 0 {
			s.o.Log.Warn("serve without attestors", "hint", "no machine can join: add a section to "+configFile+", [attestors.join-token] for instance")
		}
		ao.PKI = s.bundle.Public()
		if s.config.Gateway.URL != "" {
			ao.Gateway = &httpapi.Gateway{URL: s.config.Gateway.URL, ServerName: s.config.Gateway.ServerName}
		}
	}
	if s.join, err = joinservice.New(jo); err != nil {
		return err
	}
	if s.config.API.TLSCert != "" {
		if s.apiCertificate, err = tls.LoadX509KeyPair(s.path(s.config.API.TLSCert), s.path(s.config.API.TLSKey)); err != nil {
			return fault.New(fault.Config, "", "cannot read the HTTP API's certificate: %w", err)
		}
	}
	ao.Connected = s.join.Connected
	if s.api, err = httpapi.New(ao); err != nil {
		return err
	}
	if !s.o.WithoutGateway {
		s.gateway, err = s.NewGateway(nil)
	}
	return err
}

// NewGateway makes a gateway for this control plane's JoinService. change, which may be nil, changes its options.
func (s *Server) NewGateway(change func(*gateway.Options)) (*gateway.Gateway, error) {
	certificate, err := gatewayCertificate(s.o.Dir, s.bundle, s.config.gatewayNames(), s.o.Now, s.o.Log)
	if err != nil {
		return nil, err
	}
	o := gateway.Options{
		GetCertificate: certificate, NodeCAs: poolOf(s.bundle.Public().NodeCA()), JoinService: s.JoinServiceAddr(),
		JoinServiceTLS: s.bundle.InternalClient(s.o.Now), Now: s.o.Now, Log: s.o.Log, Name: "embedded",
		Sites: s.config.Gateway.Sites, RefusedPerSecond: s.config.Gateway.RefusedPerSecond, RefusedBurst: s.config.Gateway.RefusedBurst,
	}
	if change != nil {
		change(&o)
	}
	return gateway.New(o)
}

// Config returns the configuration that the server runs with.
func (s *Server) Config() Config { return s.config }

// PKI returns what anybody may know of the server's PKI.
func (s *Server) PKI() *pki.Public { return s.bundle.Public() }

// Store returns the database.
func (s *Server) Store() store.Store { return s.store }

// Tokens makes and ends join tokens, as the API does, for whoever runs the server.
func (s *Server) Tokens() *tokens.Service { return s.tokens }

// APIURL is how the HTTP API is reached from this machine, with its base path.
func (s *Server) APIURL() string {
	scheme := "http"
	if s.config.API.TLSCert != "" {
		scheme = "https"
	}
	url, err := localURL(scheme, s.apiListener.Addr().String())
	if err != nil { // a listener's address always splits
		panic(err)
	}
	return url + s.config.BasePath
}

// GatewayAddr is the address that the gateway listens on, "" without a gateway.
func (s *Server) GatewayAddr() string {
	if s.gatewayListener == nil {
		return ""
	}
	return s.gatewayListener.Addr().String()
}

// JoinServiceAddr is the address that JoinService listens on.
func (s *Server) JoinServiceAddr() string { return s.joinListener.Addr().String() }

// AdminFile is the path of admin.toml.
func (s *Server) AdminFile() string { return filepath.Join(s.o.Dir, adminFile) }

// Run serves until ctx ends, then drains: the gateway says goodbye to its sessions, calls under way finish within 10
// seconds, and the database is closed last. It returns nil after an end that ctx asked for. A server runs once.
func (s *Server) Run(ctx context.Context) error {
	// JoinService outlives the parts that ask it.
	backCtx, stopBack := context.WithCancel(context.WithoutCancel(ctx))
	defer stopBack()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	back := make(chan error, 1)
	go func() {
		defer cancel()
		back <- s.serveJoin(backCtx)
	}()
	accept := &acceptance.Controller{Store: s.store, Checks: acceptance.Checks, Log: s.o.Log}
	parts := []func(context.Context) error{s.serveAPI, accept.Run}
	if s.gateway != nil {
		parts = append(parts, func(ctx context.Context) error { return s.gateway.Serve(ctx, s.gatewayListener) })
	}
	front := make(chan error, len(parts))
	for _, part := range parts {
		go func() {
			defer cancel()
			front <- part(ctx)
		}()
	}
	var err error
	for range parts {
		err = errors.Join(err, <-front)
	}
	stopBack()
	return errors.Join(err, <-back, s.Close())
}

// serveJoin serves JoinService to gateways.
func (s *Server) serveJoin(ctx context.Context) error {
	server := grpc.NewServer(
		grpc.Creds(credentials.NewTLS(s.bundle.InternalServer(s.o.Now))),
		grpc.MaxRecvMsgSize(maxJoinMessage),
		grpc.ConnectionTimeout(drainWithin),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: drainWithin}),
		grpc.WaitForHandlers(true),
	)
	joinv1.RegisterJoinServiceServer(server, s.join)
	served := make(chan error, 1)
	go func() { served <- server.Serve(s.joinListener) }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve JoinService: %w", err)
	case <-ctx.Done():
	}
	late := time.AfterFunc(drainWithin, server.Stop)
	server.GracefulStop()
	late.Stop()
	if err := <-served; !errors.Is(err, grpc.ErrServerStopped) { // that is: ctx ended before the server began
		return err
	}
	return nil
}

// serveAPI serves the HTTP API.
func (s *Server) serveAPI(ctx context.Context) error {
	l := s.apiListener
	if s.config.API.TLSCert != "" {
		l = tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{s.apiCertificate}, NextProtos: []string{"http/1.1"}, Time: s.o.Now,
		})
	}
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && s.config.API.TLSCert == "" && !tcp.IP.IsLoopback() {
		s.o.Log.Warn("serve HTTP API without TLS", "listen", tcp.String(), "hint", "set api.tls_cert and api.tls_key, or listen on loopback behind a proxy that speaks TLS")
	}
	server := httpapi.NewServer(s.api, s.o.Log)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("cannot serve the HTTP API: %w", err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainWithin)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(err, server.Close())
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// path returns a path of the configuration: one that is not absolute is in the directory.
func (s *Server) path(p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join(s.o.Dir, p)
}

// Close closes the listeners and the database and gives back the directory. Run calls it. It may be called twice.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		if s.gateway != nil {
			s.closeErr = s.gateway.Close()
		}
		for _, l := range []net.Listener{s.apiListener, s.gatewayListener, s.joinListener} {
			if l == nil {
				continue
			}
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				s.closeErr = errors.Join(s.closeErr, err)
			}
		}
		if s.store != nil {
			s.closeErr = errors.Join(s.closeErr, s.store.Close())
		}
		if s.release != nil {
			s.release()
		}
	})
	return s.closeErr
}

// lockError says whose lock it is: the file's own words are for the daemon.
func lockError(err error) error {
	if fault.Is(err, fault.Busy) {
		return fault.New(fault.Busy, "stop the other one, or choose another --dir", "another better-compute serves this directory")
	}
	return err
}

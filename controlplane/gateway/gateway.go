package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

// ServerTimeHeader is the gateway's clock on every response, as Unix milliseconds. It is not signed: a hint.
const ServerTimeHeader = "bc-server-time"

const (
	// maxUnary bounds the message of every method but Session, in bytes.
	maxUnary = 64 << 10
	// maxFrame bounds a frame of a session, in bytes.
	maxFrame = 1 << 20
	// maxHeaders bounds a request's headers, in bytes. Ours need a few hundred.
	maxHeaders = 16 << 10
	// maxStreams bounds the calls under way on one connection. A daemon has two at most.
	maxStreams = 16
	// idleAfter ends a connection without a call. A session is a call.
	idleAfter = 2 * time.Minute
	// clientPings is the keepalive interval of daemons, clientPingsLeast the shortest that is tolerated.
	clientPings      = 30 * time.Second
	clientPingsLeast = 15 * time.Second
	pingTimeout      = 10 * time.Second
	// drainWithin bounds a graceful stop.
	drainWithin = 10 * time.Second
)

// Options configure a gateway.
type Options struct {
	// GetCertificate returns the server certificate, its CA last in the chain. Required.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// NodeCAs verify the client certificates of daemons. Required.
	NodeCAs *x509.CertPool
	// JoinService is the address, host:port, of JoinService. Required.
	JoinService string
	// JoinServiceTLS is the gateway's side of the mutual TLS with JoinService. Required.
	JoinServiceTLS *tls.Config
	// Now is the clock: it judges certificates, fills [ServerTimeHeader] and ends sessions. Required.
	Now func() time.Time
	// Log is required.
	Log *slog.Logger

	// Sites are the ids of the sites that this gateway serves. None means every site.
	Sites []string
	// Name names the process to JoinService, for people.
	Name string
	// RefusedPerSecond and RefusedBurst limit the refused calls of one IPv4 address or IPv6 /64. Zero means 20 and 200.
	RefusedPerSecond, RefusedBurst int
	// HandshakeWithin bounds the TLS handshake with the HTTP/2 preface. Zero means 10 seconds.
	HandshakeWithin time.Duration
	// CallWithin bounds every call but a session, from its first byte to its answer, however slowly the caller sends.
	// Zero means 30 seconds.
	CallWithin time.Duration
	// RecheckEvery is how often a session compares the wall clock with its certificate's end. Zero means 10 seconds.
	RecheckEvery time.Duration

	// ServerOptions and DialOptions come after the gateway's own: for metrics, and for tests that listen in.
	ServerOptions []grpc.ServerOption
	DialOptions   []grpc.DialOption
}

// Gateway is a NodeGateway server.
type Gateway struct {
	daemonv1.UnimplementedNodeGatewayServer

	o       Options
	server  *grpc.Server
	conn    *grpc.ClientConn
	join    joinv1.JoinServiceClient
	refused *limiter

	drainOnce sync.Once
	draining  chan struct{}
	closeOnce sync.Once
	closeErr  error
}

// New makes a gateway. It connects to nothing yet.
func New(o Options) (*Gateway, error) {
	if o.GetCertificate == nil || o.NodeCAs == nil || o.JoinService == "" || o.JoinServiceTLS == nil || o.Now == nil || o.Log == nil {
		return nil, errors.New("cannot make a gateway: a required option is missing")
	}
	if min(o.RefusedPerSecond, o.RefusedBurst) < 0 || min(o.HandshakeWithin, o.CallWithin, o.RecheckEvery) < 0 {
		return nil, errors.New("cannot make a gateway: an option is negative")
	}
	o.RefusedPerSecond = orDefault(o.RefusedPerSecond, 20)
	o.RefusedBurst = orDefault(o.RefusedBurst, 200)
	o.HandshakeWithin = orDefault(o.HandshakeWithin, 10*time.Second)
	o.CallWithin = orDefault(o.CallWithin, 30*time.Second)
	o.RecheckEvery = orDefault(o.RecheckEvery, 10*time.Second)

	conn, err := grpc.NewClient(o.JoinService, append([]grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(o.JoinServiceTLS)),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 3 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: clientPings, Timeout: pingTimeout}),
	}, o.DialOptions...)...)
	if err != nil {
		return nil, fmt.Errorf("cannot make a gateway: JoinService at %q: %w", o.JoinService, err)
	}
	g := &Gateway{
		o: o, conn: conn, join: joinv1.NewJoinServiceClient(conn), draining: make(chan struct{}),
		refused: newLimiter(float64(o.RefusedPerSecond), float64(o.RefusedBurst), o.Now),
	}
	g.server = grpc.NewServer(append(g.serverOptions(), o.ServerOptions...)...)
	daemonv1.RegisterNodeGatewayServer(g.server, g)
	return g, nil
}

// Serve answers on the listener until ctx ends. Then it says Goodbye to every session, lets calls under way finish for
// at most 10 seconds, and returns nil. It closes the listener. A gateway serves once.
func (g *Gateway) Serve(ctx context.Context, l net.Listener) error {
	served := make(chan error, 1)
	go func() { served <- g.server.Serve(l) }()
	select {
	case err := <-served:
		return errors.Join(err, g.Close())
	case <-ctx.Done():
	}
	g.drainOnce.Do(func() { close(g.draining) })
	late := time.AfterFunc(drainWithin, g.server.Stop)
	g.server.GracefulStop()
	late.Stop()
	err := <-served
	if errors.Is(err, grpc.ErrServerStopped) { // ctx ended before the server began
		err = nil
	}
	return errors.Join(err, g.Close())
}

// Close ends a gateway at once. Serve calls it. It may be called twice.
func (g *Gateway) Close() error {
	g.server.Stop()
	g.closeOnce.Do(func() { g.closeErr = g.conn.Close() })
	return g.closeErr
}

func (g *Gateway) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(&serverCredentials{TransportCredentials: credentials.NewTLS(g.tlsConfig()), log: g.o.Log}),
		grpc.ConnectionTimeout(g.o.HandshakeWithin),
		grpc.ForceServerCodecV2(newRequestCodec()),
		grpc.MaxRecvMsgSize(maxFrame),
		grpc.MaxHeaderListSize(maxHeaders),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: clientPingsLeast, PermitWithoutStream: true}),
		// No maximum age: a session lives as long as its certificate.
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleAfter, Time: clientPings, Timeout: pingTimeout}),
		// An idle session costs a connection and little else.
		grpc.ReadBufferSize(4 << 10),
		grpc.WriteBufferSize(4 << 10),
		grpc.WaitForHandlers(true),
		grpc.InTapHandle(g.bound),
		grpc.ChainUnaryInterceptor(g.unary),
		grpc.ChainStreamInterceptor(g.stream),
		grpc.UnknownServiceHandler(unknownMethod),
	}
}

// tlsConfig verifies a client certificate where one is given, so that an expired or a foreign one ends the handshake
// with the alert that says so. Which method needs one is the method's business.
func (g *Gateway) tlsConfig() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		NextProtos:             []string{"h2"},
		GetCertificate:         g.o.GetCertificate,
		ClientAuth:             tls.VerifyClientCertIfGiven,
		ClientCAs:              g.o.NodeCAs,
		SessionTicketsDisabled: true,
		Time:                   g.o.Now,
	}
}

func orDefault[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

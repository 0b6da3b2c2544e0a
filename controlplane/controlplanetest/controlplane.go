package controlplanetest

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
)

// TrustDomain is the trust domain of every control plane that a test starts.
const TrustDomain = "compute.test"

// Options configure [Start]. The zero value is a control plane as its first start makes it.
type Options struct {
	// Clock is shared by store, JoinService and gateway. Nil is a new one, at real time.
	Clock *Clock
	// CertTTL is the life of node certificates, in whole seconds; 0 is 24 hours.
	CertTTL time.Duration
	// WithoutJoinKeys is a control plane without JoinService keys.
	WithoutJoinKeys bool
	// AfterStep is called after every writing statement, as the store's option of this name.
	AfterStep func(step string) error
	// AnswerAtOnce answers refusals at once, where a test makes many; else at the next multiple of 250 ms.
	AnswerAtOnce bool
	// RefusedPerSecond and RefusedBurst limit refused calls; 0 is 1,000 and 10,000, more than a test makes by chance.
	RefusedPerSecond, RefusedBurst int
	// Attestors switches on the attestors that have a section, beside join-token.
	Attestors controlplane.AttestorsConfig
	// Sites are the sites that the gateway says it serves.
	Sites []string
	// Log gets the log. Nil is the test's output.
	Log *slog.Logger
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	// Dir is its directory.
	Dir string
	// Bundle is its PKI.
	Bundle *pki.Bundle
	// Pins are what a machine is configured with.
	Pins pki.Pins
	// EncryptionJWK is the key that tokens are sealed to.
	EncryptionJWK pki.JWK
	// Clock is the clock of every part.
	Clock *Clock
	// Tenant, Site and Pool are what the first start made. The tenant is the root tenant.
	Tenant, Site, Pool string
	// GatewayURL is what machines dial.
	GatewayURL string

	options Options
	addr    string // of the gateway
	faults  faults

	mu     sync.Mutex
	server *controlplane.Server
	stop   func() error // of the server; nil while it is stopped
	stopGW func() error // of the gateway; nil while it is stopped
	tokens int          // made by NewToken
}

// Start starts a control plane, which ends with the test.
func Start(t testing.TB, o Options) *ControlPlane {
	t.Helper()
	if o.Clock == nil {
		o.Clock = &Clock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if o.RefusedPerSecond == 0 {
		o.RefusedPerSecond = 1_000
	}
	if o.RefusedBurst == 0 {
		o.RefusedBurst = 10_000
	}
	bundle, err := pki.New(TrustDomain, o.Clock.Now())
	check(t, err)
	cp := &ControlPlane{
		Dir: filepath.Join(t.TempDir(), "control-plane"), Bundle: bundle, Pins: bundle.Public().Pins(),
		EncryptionJWK: bundle.Public().EncryptionJWK(), Clock: o.Clock, options: o,
	}
	l := listen(t, "127.0.0.1:0")
	cp.addr = l.Addr().String()
	cp.GatewayURL = "https://" + cp.addr
	check(t, os.Mkdir(cp.Dir, 0o700))
	t.Cleanup(func() { cp.Stop(t) })
	cp.start(t, l)

	cp.Tenant = cp.server.Config().RootTenant
	cp.Read(t, func(tx *store.Tx) error {
		sites, err := tx.Sites(cp.Tenant, "", 2)
		if err != nil {
			return err
		}
		pools, err := tx.Pools(cp.Tenant, true, "", 2)
		if err != nil {
			return err
		}
		if len(sites) != 1 || len(pools) != 1 {
			return fmt.Errorf("first start made %d sites and %d pools", len(sites), len(pools))
		}
		cp.Site, cp.Pool = sites[0].ID, pools[0].ID
		return nil
	})
	return cp
}

// start starts the server, and the gateway on l.
func (cp *ControlPlane) start(t testing.TB, l net.Listener) {
	t.Helper()
	server, err := controlplane.New(t.Context(), controlplane.Options{
		Dir: cp.Dir, Bundle: cp.Bundle, WithoutJoinKeys: cp.options.WithoutJoinKeys, Now: cp.Clock.Now, Log: cp.options.Log,
		Version: "0.0.0-test", WithoutGateway: true, GatewaySites: cp.options.Sites, AfterStep: cp.options.AfterStep,
		JoinPoll: 20 * time.Millisecond, JoinSleep: cp.sleep(),
		FirstConfig: controlplane.Config{
			API: controlplane.APIConfig{Listen: "127.0.0.1:0"},
			Gateway: controlplane.GatewayConfig{
				Listen: cp.addr, URL: cp.GatewayURL, RefusedPerSecond: cp.options.RefusedPerSecond, RefusedBurst: cp.options.RefusedBurst,
			},
			Join: controlplane.JoinConfig{CertTTLSeconds: int(cp.options.CertTTL / time.Second)}, Attestors: cp.options.Attestors,
		},
	})
	check(t, err)
	cp.mu.Lock()
	cp.server, cp.stop = server, background(server.Run)
	cp.mu.Unlock()
	cp.startGateway(t, l)
}

// sleep is how JoinService waits before a refusal; nil is in real time.
func (cp *ControlPlane) sleep() func(context.Context, time.Duration) error {
	if cp.options.AnswerAtOnce {
		return func(ctx context.Context, _ time.Duration) error { return ctx.Err() }
	}
	return nil
}

// Server returns the running server. A restart makes another one.
func (cp *ControlPlane) Server() *controlplane.Server {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return cp.server
}

// Store returns the database. A restart opens another one.
func (cp *ControlPlane) Store() store.Store { return cp.Server().Store() }

// Stop stops everything, in order. It may be called twice.
func (cp *ControlPlane) Stop(t testing.TB) {
	t.Helper()
	cp.StopGateway(t)
	cp.mu.Lock()
	stop := cp.stop
	cp.stop = nil
	cp.mu.Unlock()
	if stop != nil {
		check(t, stop())
	}
}

// Restart stops everything and starts it again on the same directory and the same address.
func (cp *ControlPlane) Restart(t testing.TB) {
	t.Helper()
	cp.Stop(t)
	cp.start(t, listen(t, cp.addr))
}

// StopGateway stops the gateway: its sessions get Goodbye, and nothing listens on its address. JoinService stays.
func (cp *ControlPlane) StopGateway(t testing.TB) {
	t.Helper()
	cp.mu.Lock()
	stop := cp.stopGW
	cp.stopGW = nil
	cp.mu.Unlock()
	if stop != nil {
		check(t, stop())
	}
}

// StartGateway starts the gateway again, on the same address.
func (cp *ControlPlane) StartGateway(t testing.TB) {
	t.Helper()
	cp.startGateway(t, listen(t, cp.addr))
}

func (cp *ControlPlane) startGateway(t testing.TB, l net.Listener) {
	t.Helper()
	g, err := cp.Server().NewGateway(func(o *gateway.Options) {
		o.RecheckEvery = 20 * time.Millisecond
		o.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(cp.faults.unary)}
	})
	check(t, err)
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.stopGW = background(func(ctx context.Context) error { return g.Serve(ctx, l) })
}

// Gateway starts one more gateway, which change makes different: one with another certificate, for instance. It returns
// its URL; it ends with the test.
func (cp *ControlPlane) Gateway(t testing.TB, change func(*gateway.Options)) (url string) {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	g, err := cp.Server().NewGateway(func(o *gateway.Options) {
		o.RecheckEvery = 20 * time.Millisecond
		if change != nil {
			change(o)
		}
	})
	check(t, err)
	stop := background(func(ctx context.Context) error { return g.Serve(ctx, l) })
	t.Cleanup(func() { check(t, stop()) })
	return "https://" + l.Addr().String()
}

// background runs a part until the function that it returns is called, which returns the part's error.
func background(run func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	return sync.OnceValue(func() error { cancel(); return <-ended })
}

// listen opens a listener. An address that another socket held a moment ago is tried again for a while.
func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	for range 100 {
		if l, err = net.Listen("tcp", addr); err == nil {
			return l
		}
		time.Sleep(20 * time.Millisecond)
	}
	check(t, err)
	return nil
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("control plane: %v", err)
	}
}

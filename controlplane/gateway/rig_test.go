package gateway_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/pki"
)

const host = "gw.example.com"

var now = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

func clock() time.Time { return now }

// joinService answers as a test tells it to, over the real mutual TLS, and keeps what it was asked. What JoinService
// itself decides is tested with it.
type joinService struct {
	joinv1.UnimplementedJoinServiceServer

	mu        sync.Mutex
	err       error
	challenge []*joinv1.ChallengeRequest
	join      []*joinv1.JoinRequest
	renew     []*joinv1.RenewRequest
	session   []*joinv1.SessionRequest
	events    chan *joinv1.SessionEvent
	vouched   chan *joinv1.VouchRequest
}

func (j *joinService) answer(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.err = err
}

func (j *joinService) Challenge(_ context.Context, r *joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.challenge = append(j.challenge, r)
	return &daemonv1.ChallengeResponse{State: []byte("state")}, j.err
}

func (j *joinService) Join(_ context.Context, r *joinv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.join = append(j.join, r)
	return &daemonv1.JoinResponse{Body: []byte("admission"), Sig: &daemonv1.Signature{Signature: []byte("by J")}}, j.err
}

func (j *joinService) Renew(_ context.Context, r *joinv1.RenewRequest) (*daemonv1.RenewResponse, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.renew = append(j.renew, r)
	return &daemonv1.RenewResponse{Body: []byte("renewed")}, j.err
}

func (j *joinService) Vouch(_ context.Context, r *joinv1.VouchRequest) (*daemonv1.VouchAck, error) {
	j.vouched <- r
	j.mu.Lock()
	defer j.mu.Unlock()
	return &daemonv1.VouchAck{VouchSha256: r.GetVouch().GetBody(), Recorded: true}, j.err
}

func (j *joinService) Session(r *joinv1.SessionRequest, s grpc.ServerStreamingServer[joinv1.SessionEvent]) error {
	j.mu.Lock()
	j.session = append(j.session, r)
	err := j.err
	j.mu.Unlock()
	if err != nil {
		return err
	}
	for {
		select {
		case e := <-j.events:
			if err := s.Send(e); err != nil {
				return err
			}
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

// rig is a gateway on loopback with a JoinService behind it.
type rig struct {
	bundle      *pki.Bundle
	joinService *joinService
	addr        string
	internal    *grpc.Server
	stop        func() error // ends the gateway and returns what Serve returned
}

func newRig(t *testing.T, change func(*gateway.Options)) *rig {
	t.Helper()
	bundle, err := pki.New("compute.example.com", now)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{bundle: bundle, joinService: &joinService{events: make(chan *joinv1.SessionEvent), vouched: make(chan *joinv1.VouchRequest, 10)}}

	internal := listen(t)
	r.internal = grpc.NewServer(grpc.Creds(credentials.NewTLS(bundle.InternalServer(clock))))
	joinv1.RegisterJoinServiceServer(r.internal, r.joinService)
	go func() { _ = r.internal.Serve(internal) }()
	t.Cleanup(r.internal.Stop)

	certificate, err := bundle.GatewayCertificate([]string{host}, clock)
	if err != nil {
		t.Fatal(err)
	}
	nodeCAs := x509.NewCertPool()
	nodeCAs.AddCert(bundle.Public().NodeCA())
	o := gateway.Options{
		GetCertificate: certificate, NodeCAs: nodeCAs, JoinService: internal.Addr().String(),
		JoinServiceTLS: bundle.InternalClient(clock), Now: clock, Log: slog.New(slog.DiscardHandler), Name: "gw-1",
	}
	if change != nil {
		change(&o)
	}
	g, err := gateway.New(o)
	if err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	r.addr = l.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- g.Serve(ctx, l) }()
	r.stop = sync.OnceValue(func() error { cancel(); return <-served })
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tlsConfig is a daemon's, presenting certificate where it is not nil, whatever the gateway says that it wants.
func (r *rig) tlsConfig(certificate *tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AddCert(r.bundle.Public().ServingCA())
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, ServerName: host, NextProtos: []string{"h2"}, Time: clock}
	if certificate != nil {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate, nil }
	}
	return c
}

func (r *rig) dial(t *testing.T, certificate *tls.Certificate) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.addr, grpc.WithTransportCredentials(credentials.NewTLS(r.tlsConfig(certificate))), grpc.WithNoProxy())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (r *rig) client(t *testing.T, certificate *tls.Certificate) daemonv1.NodeGatewayClient {
	return daemonv1.NewNodeGatewayClient(r.dial(t, certificate))
}

// nodeCertificate is one of the bundle's, issued at a time.
func nodeCertificate(t *testing.T, b *pki.Bundle, at time.Time) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := b.IssueNode(pki.NodeRequest{
		Site: "site_1", Node: "node_1", Role: pki.RoleNode, Key: &key.PublicKey, Now: at, Lifetime: pki.MaxNodeLifetime,
	})
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
}

package gateway

import (
	"context"
	"net"
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/internal/fault"
)

// Challenge implements [daemonv1.NodeGatewayServer].
func (g *Gateway) Challenge(ctx context.Context, req *daemonv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
	resp, err := g.join.Challenge(ctx, &joinv1.ChallengeRequest{Peer: g.peer(ctx), Request: req})
	if err != nil {
		return nil, g.relayed("Challenge", err)
	}
	return resp, nil
}

// Join implements [daemonv1.NodeGatewayServer].
func (g *Gateway) Join(ctx context.Context, req *daemonv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	resp, err := g.join.Join(ctx, &joinv1.JoinRequest{Peer: g.peer(ctx), Request: req})
	if err != nil {
		return nil, g.relayed("Join", err)
	}
	return resp, nil
}

// Renew implements [daemonv1.NodeGatewayServer].
func (g *Gateway) Renew(ctx context.Context, req *daemonv1.RenewRequest) (*daemonv1.RenewResponse, error) {
	p := g.peer(ctx)
	if len(p.GetCertificate()) == 0 {
		return nil, errNoCertificate()
	}
	resp, err := g.join.Renew(ctx, &joinv1.RenewRequest{Peer: p, Request: req})
	if err != nil {
		return nil, g.relayed("Renew", err)
	}
	return resp, nil
}

// errNoCertificate answers a call that needs a client certificate and came without one.
func errNoCertificate() error {
	return newStatus(codes.Unauthenticated, fault.Unauthenticated, "Client certificate required").Err()
}

// peer says what this gateway saw of the caller.
func (g *Gateway) peer(ctx context.Context) *joinv1.Peer {
	p := &joinv1.Peer{GatewaySites: g.o.Sites}
	if ip := addressOf(ctx); ip.IsValid() {
		p.Address = ip.String()
	}
	if from, ok := peer.FromContext(ctx); ok {
		// The handshake has verified the chain; VerifiedChains is what crypto/tls says about it.
		if info, ok := from.AuthInfo.(credentials.TLSInfo); ok && len(info.State.VerifiedChains) > 0 {
			p.Certificate = info.State.VerifiedChains[0][0].Raw
		}
	}
	return p
}

// addressOf returns the caller's IP address, the zero value where it has none.
func addressOf(ctx context.Context) netip.Addr {
	from, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	tcp, ok := from.Addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	return tcp.AddrPort().Addr().Unmap().WithZone("")
}

// sourceOf returns what the caller's refused calls are counted for.
func sourceOf(ctx context.Context) source { return sourceOfAddress(addressOf(ctx)) }

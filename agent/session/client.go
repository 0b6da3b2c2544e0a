package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// Protocol is the version of the wire protocol that this daemon speaks.
const Protocol = 1

// MaxJoinRequest is the largest join that is sent, in bytes of the request's body.
const MaxJoinRequest = 60 << 10

// What a gateway may answer, in bytes: a message, and the headers beside it, which hold an error's text and details.
const (
	maxResponse = 256 << 10
	maxHeaders  = 16 << 10
)

// serverTimeHeader is the gateway's clock on every response, as Unix milliseconds. It is not signed: a hint.
const serverTimeHeader = "bc-server-time"

// Gateway says where the gateway is and how it is authenticated.
type Gateway struct {
	// Address is host:port.
	Address string
	// ServerName is the name that the gateway's certificate must hold.
	ServerName string
	// ServingCA pins the CA that the gateway's certificate verifies to.
	ServingCA pin.Set
	// Now judges the certificate's dates.
	Now func() time.Time
}

// Client is a connection to the gateway. Its methods are safe for concurrent use.
type Client struct {
	gateway    Gateway
	conn       *grpc.ClientConn
	api        daemonv1.NodeGatewayClient
	tls        *transport
	serverTime atomic.Int64
}

// Dial connects and waits until the gateway is authenticated and speaks HTTP/2, so that what is wrong with the
// connection is known before anything is sent. With a nil certificate the client presents none, which is what Join asks
// for. The error is [fault.Unreachable], or [fault.Verification], or, where a certificate was presented, [CertificateRefused].
func Dial(ctx context.Context, g Gateway, certificate *tls.Certificate) (*Client, error) {
	t := &transport{serverName: g.ServerName, servingCA: g.ServingCA, now: g.Now, client: certificate}
	conn, err := grpc.NewClient("dns:///"+g.Address,
		grpc.WithTransportCredentials(t),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableHealthCheck(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithReadBufferSize(4<<10),
		grpc.WithWriteBufferSize(4<<10),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: 10 * time.Second}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
	)
	if err != nil {
		return nil, fault.New(fault.Config, "write gateway_url as https://name or https://name:port", "cannot dial %q: %w", g.Address, err)
	}
	c := &Client{gateway: g, conn: conn, api: daemonv1.NewNodeGatewayClient(conn), tls: t}
	if err := c.connect(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func (c *Client) connect(ctx context.Context) error {
	c.conn.Connect()
	for {
		switch state := c.conn.GetState(); state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return c.connectError(ctx)
		default:
			if !c.conn.WaitForStateChange(ctx, state) {
				return c.timedOut(ctx)
			}
		}
	}
}

// connectError asks for the reason of a failed connection. gRPC tells it only to a call, and such a call fails before
// anything is sent.
func (c *Client) connectError(ctx context.Context) error {
	if err := c.tls.lastError(); err != nil {
		return err
	}
	err := c.conn.Invoke(ctx, "/"+daemonv1.NodeGateway_ServiceDesc.ServiceName+"/Connect", &daemonv1.ChallengeRequest{}, &daemonv1.ChallengeResponse{})
	if err == nil {
		return fault.New(fault.Unreachable, hintReach, "cannot reach the gateway at %s", c.gateway.Address)
	}
	return c.callError(err)
}

func (c *Client) timedOut(ctx context.Context) error {
	if err := c.tls.lastError(); err != nil {
		return err
	}
	cause := context.Cause(ctx)
	if errors.Is(cause, context.Canceled) {
		return cause
	}
	if err := c.tls.lateKey(); err != nil {
		return err
	}
	return fault.New(fault.Unreachable, hintReach, "the gateway at %s did not answer in time", c.gateway.Address)
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// ServerTime returns the gateway's clock as its last response told it, unsigned. The boolean is false before any.
func (c *Client) ServerTime() (time.Time, bool) {
	ms := c.serverTime.Load()
	return time.UnixMilli(ms), ms != 0
}

// Join sends a join. The error of a refusal has the control plane's code and message.
func (c *Client) Join(ctx context.Context, req *daemonv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	if n := len(req.GetBody()); n > MaxJoinRequest {
		return nil, fault.New(fault.TooLarge, "shorten what is named", "the join request has %d bytes, more than %d; most of it is %s", n, MaxJoinRequest, largest(req.GetBody()))
	}
	var header metadata.MD
	resp, err := c.api.Join(ctx, req, grpc.Header(&header))
	c.noteServerTime(header)
	if err != nil {
		return nil, c.callError(err)
	}
	return resp, nil
}

// Challenge asks for the challenge that a TPM answers in a join.
func (c *Client) Challenge(ctx context.Context, req *daemonv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
	var header metadata.MD
	resp, err := c.api.Challenge(ctx, req, grpc.Header(&header))
	c.noteServerTime(header)
	if err != nil {
		return nil, c.callError(err)
	}
	return resp, nil
}

// Renew sends a renewal, over a connection that presents the node's certificate.
func (c *Client) Renew(ctx context.Context, req *daemonv1.RenewRequest) (*daemonv1.RenewResponse, error) {
	var header metadata.MD
	resp, err := c.api.Renew(ctx, req, grpc.Header(&header))
	c.noteServerTime(header)
	if err != nil {
		return nil, c.callError(err)
	}
	return resp, nil
}

func (c *Client) noteServerTime(header metadata.MD) {
	for _, v := range header.Get(serverTimeHeader) {
		if ms, err := strconv.ParseInt(v, 10, 64); err == nil && ms > 0 {
			c.serverTime.Store(ms)
		}
	}
}

// callError turns the error of a call into one with a code: what TLS remembers first, then the control plane's own.
func (c *Client) callError(err error) error {
	return callError(err, c.tls.lastError(), c.gateway.Address)
}

// largest names the biggest parts of a join request's body.
func largest(body []byte) string {
	var b daemonv1.JoinRequestBody
	if err := proto.Unmarshal(body, &b); err != nil {
		return "its body"
	}
	parts := map[string]int{"the CSR": len(b.GetCsr()), "the sealed token": len(b.GetSealedToken()), "the hardware claims": proto.Size(b.GetClaims()), "the evidence": proto.Size(b.GetEvidence())}
	name, size := "", -1
	for n, s := range parts {
		if s > size || s == size && n < name {
			name, size = n, s
		}
	}
	return fmt.Sprintf("%s (%d bytes)", name, size)
}

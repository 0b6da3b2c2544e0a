package controlplanetest

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/gateway"
)

// Relay is a gateway that an attacker owns: its serving certificate and its client certificate for JoinService were
// issued to it, and it has nothing else. It records all that passes, and does with it what a test says.
type Relay struct {
	// URL is what machines dial.
	URL string
	// JoinService is the attacker's own connection to JoinService, to send what it likes.
	JoinService joinv1.JoinServiceClient

	mu     sync.Mutex
	seen   bytes.Buffer
	joins  []*joinv1.JoinRequest
	renews []*joinv1.RenewRequest
	join   JoinHook
	renew  RenewHook
	vouch  VouchHook
	ask    ChallengeHook
	event  func(*joinv1.SessionEvent) *joinv1.SessionEvent
	hello  func(*joinv1.SessionRequest)
}

// JoinHook is what a relay does with a Join. It may change the request, which is its own copy, ask JoinService with next
// any number of times, and answer as it likes.
type JoinHook func(ctx context.Context, req *joinv1.JoinRequest, next func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)) (*daemonv1.JoinResponse, error)

// RenewHook is what a relay does with a Renew, as a [JoinHook].
type RenewHook func(ctx context.Context, req *joinv1.RenewRequest, next func(*joinv1.RenewRequest) (*daemonv1.RenewResponse, error)) (*daemonv1.RenewResponse, error)

// VouchHook is what a relay does with a Vouch, as a [JoinHook].
type VouchHook func(ctx context.Context, req *joinv1.VouchRequest, next func(*joinv1.VouchRequest) (*daemonv1.VouchAck, error)) (*daemonv1.VouchAck, error)

// ChallengeHook is what a relay does with a Challenge, as a [JoinHook].
type ChallengeHook func(ctx context.Context, req *joinv1.ChallengeRequest, next func(*joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error)) (*daemonv1.ChallengeResponse, error)

// Relay starts a relay, which ends with the test. Until a hook is set it relays as any gateway.
func (cp *ControlPlane) Relay(t testing.TB) *Relay {
	t.Helper()
	r := &Relay{}
	conn, err := grpc.NewClient(cp.Server().JoinServiceAddr(), grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(cp.Bundle.InternalClient(cp.Clock.Now))))
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close()) })
	r.JoinService = joinv1.NewJoinServiceClient(conn)
	r.URL = cp.Gateway(t, func(o *gateway.Options) {
		o.Name = "relay"
		o.ServerOptions = []grpc.ServerOption{grpc.ChainUnaryInterceptor(r.recordUnary), grpc.ChainStreamInterceptor(r.recordStream)}
		o.DialOptions = []grpc.DialOption{grpc.WithChainUnaryInterceptor(r.tamper), grpc.WithChainStreamInterceptor(r.tamperStream)}
	})
	return r
}

// OnJoin sets what the relay does with a Join; nil relays.
func (r *Relay) OnJoin(h JoinHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.join = h
}

// OnRenew sets what the relay does with a Renew; nil relays.
func (r *Relay) OnRenew(h RenewHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renew = h
}

// OnChallenge sets what the relay does with a Challenge; nil relays.
func (r *Relay) OnChallenge(h ChallengeHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ask = h
}

// OnVouch sets what the relay does with a Vouch; nil relays.
func (r *Relay) OnVouch(h VouchHook) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.vouch = h
}

// OnSession sets what the relay does with a Session: hello may change what JoinService is asked, event may change what it
// says. Either may be nil.
func (r *Relay) OnSession(hello func(*joinv1.SessionRequest), event func(*joinv1.SessionEvent) *joinv1.SessionEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hello, r.event = hello, event
}

// Seen returns every byte of every message that passed between daemons and the relay, in both directions.
func (r *Relay) Seen() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Clone(r.seen.Bytes())
}

// Joins returns the joins that the relay got, before any hook, oldest first.
func (r *Relay) Joins() []*joinv1.JoinRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.joins)
}

// Renews returns the renewals that the relay got, before any hook, oldest first.
func (r *Relay) Renews() []*joinv1.RenewRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.renews)
}

func (r *Relay) record(m any) {
	msg, ok := m.(proto.Message)
	if !ok {
		return
	}
	b, err := proto.Marshal(msg)
	if err != nil {
		b = []byte(err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen.Write(b)
}

func (r *Relay) recordUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	r.record(req)
	resp, err := handler(ctx, req)
	if err == nil {
		r.record(resp)
	}
	return resp, err
}

func (r *Relay) recordStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, &recordedStream{ServerStream: ss, relay: r})
}

type recordedStream struct {
	grpc.ServerStream
	relay *Relay
}

// SendMsg implements [grpc.ServerStream].
func (s *recordedStream) SendMsg(m any) error {
	s.relay.record(m)
	return s.ServerStream.SendMsg(m)
}

// RecvMsg implements [grpc.ServerStream].
func (s *recordedStream) RecvMsg(m any) error {
	err := s.ServerStream.RecvMsg(m)
	if err == nil {
		s.relay.record(m)
	}
	return err
}

// tamper is on the way from the relay to JoinService.
func (r *Relay) tamper(ctx context.Context, method string, req, resp any, cc *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	switch req := req.(type) {
	case *joinv1.JoinRequest:
		r.mu.Lock()
		r.joins = append(r.joins, proto.CloneOf(req))
		hook := r.join
		r.mu.Unlock()
		if hook == nil {
			break
		}
		answer, err := hook(ctx, proto.CloneOf(req), func(changed *joinv1.JoinRequest) (*daemonv1.JoinResponse, error) {
			out := new(daemonv1.JoinResponse)
			return out, call(ctx, method, changed, out, cc, opts...)
		})
		return answered(resp, answer, err)
	case *joinv1.RenewRequest:
		r.mu.Lock()
		r.renews = append(r.renews, proto.CloneOf(req))
		hook := r.renew
		r.mu.Unlock()
		if hook == nil {
			break
		}
		answer, err := hook(ctx, proto.CloneOf(req), func(changed *joinv1.RenewRequest) (*daemonv1.RenewResponse, error) {
			out := new(daemonv1.RenewResponse)
			return out, call(ctx, method, changed, out, cc, opts...)
		})
		return answered(resp, answer, err)
	case *joinv1.ChallengeRequest:
		r.mu.Lock()
		hook := r.ask
		r.mu.Unlock()
		if hook == nil {
			break
		}
		answer, err := hook(ctx, proto.CloneOf(req), func(changed *joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
			out := new(daemonv1.ChallengeResponse)
			return out, call(ctx, method, changed, out, cc, opts...)
		})
		return answered(resp, answer, err)
	case *joinv1.VouchRequest:
		r.mu.Lock()
		hook := r.vouch
		r.mu.Unlock()
		if hook == nil {
			break
		}
		answer, err := hook(ctx, proto.CloneOf(req), func(changed *joinv1.VouchRequest) (*daemonv1.VouchAck, error) {
			out := new(daemonv1.VouchAck)
			return out, call(ctx, method, changed, out, cc, opts...)
		})
		return answered(resp, answer, err)
	}
	return call(ctx, method, req, resp, cc, opts...)
}

// answered gives a hook's answer to the gateway.
func answered(resp any, answer proto.Message, err error) error {
	if err != nil {
		return err
	}
	proto.Merge(resp.(proto.Message), answer)
	return nil
}

func (r *Relay) tamperStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, err
	}
	return &tamperedStream{ClientStream: s, relay: r}, nil
}

type tamperedStream struct {
	grpc.ClientStream
	relay *Relay
}

// SendMsg implements [grpc.ClientStream].
func (s *tamperedStream) SendMsg(m any) error {
	s.relay.mu.Lock()
	hook := s.relay.hello
	s.relay.mu.Unlock()
	if req, ok := m.(*joinv1.SessionRequest); ok && hook != nil {
		req = proto.CloneOf(req)
		hook(req)
		m = req
	}
	return s.ClientStream.SendMsg(m)
}

// RecvMsg implements [grpc.ClientStream].
func (s *tamperedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	s.relay.mu.Lock()
	hook := s.relay.event
	s.relay.mu.Unlock()
	if e, ok := m.(*joinv1.SessionEvent); ok && hook != nil {
		changed := hook(proto.CloneOf(e))
		proto.Reset(e)
		proto.Merge(e, changed)
	}
	return nil
}

package gateway

import (
	"context"
	"net/netip"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

// Limiter is the limiter of refused calls.
type Limiter struct{ *limiter }

func NewLimiter(rate, burst float64, sources int, now func() time.Time) Limiter {
	l := newLimiter(rate, burst, now)
	l.max = sources
	return Limiter{l}
}

func (l Limiter) Wait(ip string) time.Duration { return l.wait(sourceOfText(ip)) }
func (l Limiter) Charge(ip string)             { l.charge(sourceOfText(ip)) }

func (l Limiter) Sources() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.buckets) != l.order.Len() {
		panic("map and list differ")
	}
	return len(l.buckets)
}

func sourceOfText(ip string) source {
	if ip == "" {
		return sourceOfAddress(netip.Addr{})
	}
	return sourceOfAddress(netip.MustParseAddr(ip))
}

// Pipe is a session without its network.
type Pipe struct {
	Send     func(*daemonv1.GatewayFrame) error
	Frames   func() (*daemonv1.AgentFrame, error)
	Events   func() (*joinv1.SessionEvent, error)
	Draining <-chan struct{}
	Now      func() time.Time
	Recheck  time.Duration
	Welcome  *daemonv1.Welcome
	NotAfter time.Time
	Vouch    func(context.Context, *daemonv1.Vouch) (*daemonv1.VouchAck, error)
}

func (p Pipe) Run(ctx context.Context) error {
	s := &session{
		send: p.Send, frames: receive(ctx, p.Frames), events: receive(ctx, p.Events), draining: p.Draining, now: p.Now,
		recheck: p.Recheck, welcome: p.Welcome, notAfter: p.NotAfter, relayVouch: p.Vouch,
	}
	return s.run(ctx)
}

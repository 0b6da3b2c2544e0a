package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/internal/fault"
)

const (
	// helloWithin bounds the wait for Hello, openWithin JoinService's answer to it.
	helloWithin = 10 * time.Second
	openWithin  = 10 * time.Second
	// Bounds of the heartbeat interval, and the interval where JoinService names none.
	minHeartbeat     = 5 * time.Second
	maxHeartbeat     = 60 * time.Second
	defaultHeartbeat = 25 * time.Second
	// missedHeartbeats without any frame end a session.
	missedHeartbeats = 2
	// drainReconnect is how long a daemon stays away from a gateway that stops, at least.
	drainReconnect = 2 * time.Second
)

// Reasons of a Goodbye that a gateway gives by itself.
const (
	reasonDraining = "draining"
	reasonExpired  = "certificate-expired"
)

type agentStream = grpc.BidiStreamingServer[daemonv1.AgentFrame, daemonv1.GatewayFrame]

// Session implements [daemonv1.NodeGatewayServer]. It lives as long as JoinService's call of the same name.
func (g *Gateway) Session(stream agentStream) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	p := g.peer(ctx)
	if len(p.GetCertificate()) == 0 {
		return errNoCertificate()
	}
	frames := receive(ctx, stream.Recv)
	hello, err := g.hello(ctx, frames)
	if err != nil {
		return err
	}
	join, err := g.join.Session(ctx, &joinv1.SessionRequest{Peer: p, Hello: hello, Gateway: g.o.Name})
	if err != nil {
		return g.relayed("Session", err)
	}
	events := receive(ctx, join.Recv)
	opened, bye, err := g.opened(ctx, events)
	switch {
	case err != nil:
		return err
	case bye != nil:
		return stream.Send(goodbyeFrame(bye))
	}
	s := &session{
		send: stream.Send, frames: frames, events: events, draining: g.draining, now: g.o.Now, recheck: g.o.RecheckEvery,
		welcome: opened.GetWelcome(), notAfter: time.UnixMilli(opened.GetNotAfterUnixMs()), relayVouch: g.relayVouch(p),
	}
	err = s.run(ctx)
	if errors.Is(err, errJoinService) {
		return g.relayed("Session", errors.Unwrap(err))
	}
	return err
}

// hello waits for the first frame, which must be Hello.
func (g *Gateway) hello(ctx context.Context, frames <-chan received[*daemonv1.AgentFrame]) (*daemonv1.Hello, error) {
	late := time.NewTimer(helloWithin)
	defer late.Stop()
	select {
	case f := <-frames:
		if f.err != nil {
			return nil, status.Error(codes.Canceled, "Session ended before Hello")
		}
		if h := f.value.GetHello(); h != nil {
			return h, nil
		}
		return nil, newStatus(codes.InvalidArgument, fault.InvalidArgument, "First frame is not Hello").Err()
	case <-late.C:
		return nil, status.Error(codes.DeadlineExceeded, "No Hello in time")
	case <-g.draining:
		return nil, status.Error(codes.Unavailable, "The gateway is stopping")
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
}

// opened waits for JoinService's first event: Opened, or Ended.
func (g *Gateway) opened(ctx context.Context, events <-chan received[*joinv1.SessionEvent]) (*joinv1.SessionOpened, *daemonv1.Goodbye, error) {
	late := time.NewTimer(openWithin)
	defer late.Stop()
	select {
	case e := <-events:
		switch {
		case e.err != nil:
			return nil, nil, g.relayed("Session", e.err)
		case e.value.GetEnded() != nil:
			return nil, e.value.GetEnded().GetGoodbye(), nil
		case e.value.GetOpened().GetWelcome() == nil:
			return nil, nil, g.relayed("Session", errors.New("first event is not Opened"))
		}
		return e.value.GetOpened(), nil, nil
	case <-late.C:
		return nil, nil, g.relayed("Session", status.Error(codes.DeadlineExceeded, "no Opened in time"))
	case <-ctx.Done():
		return nil, nil, status.FromContextError(ctx.Err()).Err()
	}
}

// errJoinService marks an error of JoinService's stream.
var errJoinService = errors.New("JoinService")

type joinServiceError struct{ err error }

func (e joinServiceError) Error() string        { return fmt.Sprintf("%v: %v", errJoinService, e.err) }
func (e joinServiceError) Is(target error) bool { return target == errJoinService }
func (e joinServiceError) Unwrap() error        { return e.err }

// session is a welcomed session: frames from the daemon on one side, events from JoinService on the other, the clock
// between them.
type session struct {
	send       func(*daemonv1.GatewayFrame) error
	frames     <-chan received[*daemonv1.AgentFrame]
	events     <-chan received[*joinv1.SessionEvent]
	draining   <-chan struct{}
	now        func() time.Time
	recheck    time.Duration
	welcome    *daemonv1.Welcome
	notAfter   time.Time
	relayVouch relayVouch
}

// run welcomes the daemon and carries the session to its end. nil is an end in order: a Goodbye was said, or the daemon
// closed.
func (s *session) run(ctx context.Context) error {
	interval := heartbeatInterval(s.welcome.GetHeartbeatIntervalSeconds())
	s.welcome.HeartbeatIntervalSeconds = uint32(interval / time.Second)
	if err := s.send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Welcome{Welcome: s.welcome}}); err != nil {
		return err
	}
	beat := time.NewTicker(interval)
	defer beat.Stop()
	// The wall clock is asked again and again: a timer alone stands still while a machine is suspended.
	recheck := time.NewTicker(s.recheck)
	defer recheck.Stop()
	patience := missedHeartbeats*interval + interval/5
	silence := time.NewTimer(patience)
	defer silence.Stop()
	ctx, cancel := context.WithCancel(ctx)
	vouches := newVouches(s.relayVouch)
	defer vouches.running.Wait()
	defer cancel()
	for {
		if !s.now().Before(s.notAfter) {
			return s.goodbye(&daemonv1.Goodbye{Reason: reasonExpired})
		}
		select {
		case f := <-s.frames:
			switch {
			case errors.Is(f.err, io.EOF):
				return nil
			case f.err != nil:
				return f.err
			case f.value.GetHello() != nil:
				return newStatus(codes.InvalidArgument, fault.InvalidArgument, "Second Hello").Err()
			case f.value.GetVouch() != nil:
				vouches.start(ctx, f.value.GetVouch())
			}
			// Whatever it is, it is a sign of life. No command is dispatched here, so nothing that answers one is due.
			silence.Reset(patience)
		case ack := <-vouches.answers:
			if f := vouches.answered(ack); f != nil {
				if err := s.send(f); err != nil {
					return err
				}
			}
		case e := <-s.events:
			switch {
			case errors.Is(e.err, io.EOF):
				return joinServiceError{status.Error(codes.Unavailable, "stream ended without Ended")}
			case e.err != nil:
				return joinServiceError{e.err}
			case e.value.GetEnded() != nil:
				return s.goodbye(e.value.GetEnded().GetGoodbye())
			}
		case <-beat.C:
			h := &daemonv1.Heartbeat{TimeUnixMs: s.now().UnixMilli()}
			if err := s.send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Heartbeat{Heartbeat: h}}); err != nil {
				return err
			}
		case <-recheck.C: // the loop's head looks at the clock
		case <-silence.C:
			return status.Error(codes.DeadlineExceeded, "Heartbeats missed")
		case <-s.draining:
			return s.goodbye(&daemonv1.Goodbye{Reason: reasonDraining, ReconnectAfterSeconds: uint32(drainReconnect / time.Second)})
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

func (s *session) goodbye(g *daemonv1.Goodbye) error { return s.send(goodbyeFrame(g)) }

func goodbyeFrame(g *daemonv1.Goodbye) *daemonv1.GatewayFrame {
	if g == nil {
		g = &daemonv1.Goodbye{}
	}
	return &daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Goodbye{Goodbye: g}}
}

// heartbeatInterval clamps what JoinService asks for.
func heartbeatInterval(seconds uint32) time.Duration {
	if seconds == 0 {
		return defaultHeartbeat
	}
	return min(max(time.Duration(seconds)*time.Second, minHeartbeat), maxHeartbeat)
}

// received is a message of a stream, or the stream's end.
type received[T any] struct {
	value T
	err   error
}

// receive reads a stream into a channel, until its end or ctx's. The end is the last message.
func receive[T any](ctx context.Context, recv func() (T, error)) <-chan received[T] {
	c := make(chan received[T])
	go func() {
		for {
			v, err := recv()
			select {
			case c <- received[T]{v, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return c
}

package session

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// Bounds of the heartbeat interval that a gateway may ask for, and the interval where it asks for none.
const (
	minHeartbeat     = 5 * time.Second
	maxHeartbeat     = 60 * time.Second
	defaultHeartbeat = 25 * time.Second
	// missedHeartbeats without any frame end the session.
	missedHeartbeats = 2
	// welcomeWithin bounds the wait for Welcome.
	welcomeWithin = 15 * time.Second
)

// Session is a node's open session. It was welcomed.
type Session struct {
	// ID names the session in the control plane's records.
	ID string
	// ServerTime is the gateway's clock when it welcomed the node, unsigned.
	ServerTime time.Time
	// Heartbeat is the interval of heartbeats in both directions.
	Heartbeat time.Duration

	client *Client
	stream grpc.BidiStreamingClient[daemonv1.AgentFrame, daemonv1.GatewayFrame]
	cancel context.CancelCauseFunc
	now    func() time.Time

	// out has room for one frame, so that a heartbeat is due to nobody while another frame waits for the gateway to read.
	out chan *daemonv1.AgentFrame
	// sending guards the stream's sending side: one goroutine at a time may send on it or close it.
	sending sync.Mutex
}

// Goodbye is how a gateway ends a session.
type Goodbye struct {
	// Reason is the gateway's word, such as `draining`.
	Reason string
	// ReconnectAfter is how long to stay away at least; [MaxPause] at most.
	ReconnectAfter time.Duration
}

// Error describes the goodbye.
func (g *Goodbye) Error() string { return "the gateway ended the session: " + g.Reason }

// Open dials with the node's certificate and opens its session: Hello, then Welcome. The session ends with ctx.
func Open(ctx context.Context, g Gateway, certificate *tls.Certificate, hello *daemonv1.Hello) (*Session, error) {
	dialCtx, done := context.WithTimeout(ctx, welcomeWithin)
	defer done()
	client, err := Dial(dialCtx, g, certificate)
	if err != nil {
		return nil, err
	}
	s, err := client.open(ctx, hello)
	if err != nil {
		_ = client.Close()
		return nil, err
	}
	return s, nil
}

func (c *Client) open(ctx context.Context, hello *daemonv1.Hello) (*Session, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	late := time.AfterFunc(welcomeWithin, func() {
		cancel(fault.New(fault.Unreachable, hintReach, "the gateway at %s did not welcome the node within %s", c.gateway.Address, welcomeWithin))
	})
	defer late.Stop()
	fail := func(err error) (*Session, error) {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		} else {
			err = c.lostError(err)
		}
		cancel(nil)
		return nil, err
	}
	stream, err := c.api.Session(ctx)
	if err != nil {
		return fail(err)
	}
	if err := stream.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: hello}}); err != nil && !errors.Is(err, io.EOF) {
		return fail(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return fail(err)
	}
	if h, err := stream.Header(); err == nil {
		c.noteServerTime(h)
	}
	if bye := first.GetGoodbye(); bye != nil {
		cancel(nil)
		return nil, goodbye(bye)
	}
	w := first.GetWelcome()
	if w == nil {
		cancel(nil)
		return nil, fault.New(fault.Verification, "check that gateway and bcd are of versions that fit", "the gateway's first frame is no Welcome")
	}
	if w.GetProtocol() != Protocol {
		cancel(nil)
		return nil, fault.New(fault.Verification, "upgrade bcd or the gateway", "the gateway chose protocol %d, this bcd speaks %d", w.GetProtocol(), Protocol)
	}
	if !late.Stop() {
		return fail(context.DeadlineExceeded)
	}
	return &Session{
		ID:         oneline.Bounded(w.GetSessionId(), maxWord),
		ServerTime: time.UnixMilli(w.GetServerTimeUnixMs()),
		Heartbeat:  heartbeatInterval(w.GetHeartbeatIntervalSeconds()),
		client:     c, stream: stream, cancel: cancel, now: c.gateway.Now, out: make(chan *daemonv1.AgentFrame, 1),
	}, nil
}

// heartbeatInterval clamps what a gateway asks for.
func heartbeatInterval(seconds uint32) time.Duration {
	if seconds == 0 {
		return defaultHeartbeat
	}
	return min(max(time.Duration(seconds)*time.Second, minHeartbeat), maxHeartbeat)
}

// Run carries the session until it ends and says why: a [Goodbye], a lost connection, silence, or the context's cause.
// It never returns nil. Frames go to handle, one at a time, in order; heartbeats are the session's own.
func (s *Session) Run(ctx context.Context, handle func(*daemonv1.GatewayFrame) error) error {
	frames := make(chan *daemonv1.GatewayFrame)
	lost := make(chan error, 2)
	go s.sendAll(lost)
	go func() {
		for {
			f, err := s.stream.Recv()
			if err != nil {
				lost <- err
				return
			}
			select {
			case frames <- f:
			case <-s.stream.Context().Done():
				lost <- context.Cause(s.stream.Context())
				return
			}
		}
	}()
	beat := time.NewTicker(s.Heartbeat)
	defer beat.Stop()
	patience := missedHeartbeats*s.Heartbeat + s.Heartbeat/5
	silence := time.NewTimer(patience)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-lost:
			return s.client.lostError(err)
		case f := <-frames:
			silence.Reset(patience)
			if bye := f.GetGoodbye(); bye != nil {
				return goodbye(bye)
			}
			if f.GetHeartbeat() != nil {
				continue
			}
			if err := handle(f); err != nil {
				return err
			}
		case <-silence.C:
			return fault.New(fault.Unreachable, hintReach, "the gateway sent nothing for %s", patience)
		case <-beat.C:
			select {
			case s.out <- &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Heartbeat{Heartbeat: &daemonv1.Heartbeat{TimeUnixMs: s.now().UnixMilli()}}}:
			default: // what waits to be sent is as good a sign of life
			}
		}
	}
}

// Send hands one frame to [Session.Run], which sends frames in the order in which it got them. It returns when Run took it,
// when ctx ends or when the session does; then the frame may be lost. It may be called by many goroutines at once.
func (s *Session) Send(ctx context.Context, f *daemonv1.AgentFrame) error {
	if s.stream.Context().Err() != nil {
		return context.Cause(s.stream.Context())
	}
	select {
	case s.out <- f:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-s.stream.Context().Done():
		return context.Cause(s.stream.Context())
	}
}

// sendAll sends what is handed to the session until the stream ends. A gateway that does not read holds up nothing else.
func (s *Session) sendAll(lost chan<- error) {
	for {
		select {
		case f := <-s.out:
			s.sending.Lock()
			err := s.stream.Send(f)
			s.sending.Unlock()
			if err == nil {
				continue
			}
			if !errors.Is(err, io.EOF) { // the stream has ended; Recv says why
				lost <- err
			}
			return
		case <-s.stream.Context().Done():
			return
		}
	}
}

// Close ends the session and its connection. It may be called twice.
func (s *Session) Close() {
	// A frame that the gateway does not read must not keep the session from its end.
	if s.sending.TryLock() {
		_ = s.stream.CloseSend()
		s.sending.Unlock()
	}
	s.cancel(errClosed)
	_ = s.client.Close()
}

var errClosed = errors.New("the session was closed")

// lostError is the error of a stream that ended; [io.EOF] is an end without a word.
func (c *Client) lostError(err error) error {
	if errors.Is(err, io.EOF) {
		return fault.New(fault.Unreachable, "look at the gateway's log", "the gateway closed the session")
	}
	return c.callError(err)
}

func goodbye(g *daemonv1.Goodbye) error {
	return &Goodbye{Reason: oneline.Bounded(g.GetReason(), maxWord), ReconnectAfter: pause(time.Duration(g.GetReconnectAfterSeconds()) * time.Second)}
}

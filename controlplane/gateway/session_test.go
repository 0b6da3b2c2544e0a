package gateway_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/gateway"
)

// wire is both ends that a session has, in a synctest bubble.
type wire struct {
	sent     []*daemonv1.GatewayFrame
	frames   chan *daemonv1.AgentFrame
	events   chan *joinv1.SessionEvent
	draining chan struct{}
	ended    chan error
	vouches  chan *daemonv1.Vouch // what reached JoinService; each is answered from acks
	acks     chan *daemonv1.VouchAck
}

// start runs a session whose certificate lives for life. Closing frames or events ends that stream.
func start(t *testing.T, welcome *daemonv1.Welcome, life time.Duration) *wire {
	w := &wire{
		frames: make(chan *daemonv1.AgentFrame), events: make(chan *joinv1.SessionEvent),
		draining: make(chan struct{}), ended: make(chan error, 1),
		vouches: make(chan *daemonv1.Vouch, 1000), acks: make(chan *daemonv1.VouchAck),
	}
	ctx, cancel := context.WithCancel(t.Context())
	p := gateway.Pipe{
		Send:     func(f *daemonv1.GatewayFrame) error { w.sent = append(w.sent, f); return nil },
		Frames:   func() (*daemonv1.AgentFrame, error) { return next(ctx, w.frames) },
		Events:   func() (*joinv1.SessionEvent, error) { return next(ctx, w.events) },
		Draining: w.draining, Now: time.Now, Recheck: 10 * time.Second,
		Welcome: welcome, NotAfter: time.Now().Add(life),
		Vouch: w.relayVouch,
	}
	go func() {
		err := p.Run(ctx)
		cancel()
		w.ended <- err
	}()
	synctest.Wait()
	return w
}

func next[T any](ctx context.Context, c <-chan T) (T, error) {
	var zero T
	select {
	case v, open := <-c:
		if !open {
			return zero, io.EOF
		}
		return v, nil
	case <-ctx.Done():
		return zero, ctx.Err()
	}
}

func heartbeat() *daemonv1.AgentFrame {
	return &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Heartbeat{Heartbeat: &daemonv1.Heartbeat{}}}
}

func (w *wire) goodbye(t *testing.T) string {
	t.Helper()
	if err := <-w.ended; err != nil {
		t.Fatalf("session ended with %v, want a goodbye", err)
	}
	bye := w.sent[len(w.sent)-1].GetGoodbye()
	if bye == nil {
		t.Fatalf("last frame is %v, want a goodbye", w.sent[len(w.sent)-1])
	}
	return bye.GetReason()
}

// Req: SS-002
func TestWelcomeComesFirstAndHeartbeatsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{SessionId: "s1", HeartbeatIntervalSeconds: 20, Protocol: 1}, time.Hour)
		for range 5 {
			time.Sleep(20 * time.Second)
			w.frames <- heartbeat()
		}
		synctest.Wait()
		if got := w.sent[0].GetWelcome(); got.GetSessionId() != "s1" || got.GetHeartbeatIntervalSeconds() != 20 || got.GetProtocol() != 1 {
			t.Errorf("first frame is %v", w.sent[0])
		}
		for _, f := range w.sent[1:] {
			if f.GetHeartbeat() == nil {
				t.Errorf("frame %v, want heartbeats alone", f)
			}
		}
		if n := len(w.sent) - 1; n != 5 {
			t.Errorf("%d heartbeats in 100 s at 20 s, want 5", n)
		}
		close(w.frames)
		if err := <-w.ended; err != nil {
			t.Errorf("a daemon that closes: %v", err)
		}
	})
}

func TestHeartbeatIntervalIsClamped(t *testing.T) {
	for asked, want := range map[uint32]uint32{0: 25, 1: 5, 5: 5, 25: 25, 60: 60, 3600: 60} {
		synctest.Test(t, func(t *testing.T) {
			w := start(t, &daemonv1.Welcome{HeartbeatIntervalSeconds: asked}, time.Hour)
			if got := w.sent[0].GetWelcome().GetHeartbeatIntervalSeconds(); got != want {
				t.Errorf("asked for %d s: %d s, want %d", asked, got, want)
			}
			close(w.frames)
			<-w.ended
		})
	}
}

func TestSilenceEndsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{HeartbeatIntervalSeconds: 20}, time.Hour)
		began := time.Now()
		time.Sleep(39 * time.Second)
		w.frames <- heartbeat() // two are not yet missed
		err := <-w.ended
		if status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("silence ends with %v, want DEADLINE_EXCEEDED", err)
		}
		if took := time.Since(began); took != 39*time.Second+44*time.Second {
			t.Errorf("ended after %v, want 2.2 intervals of silence", took)
		}
	})
}

func TestSessionEndsWithItsCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{HeartbeatIntervalSeconds: 60}, 95*time.Second)
		began := time.Now()
		time.Sleep(50 * time.Second)
		w.frames <- heartbeat()
		if reason := w.goodbye(t); reason != "certificate-expired" {
			t.Errorf("goodbye %q", reason)
		}
		if took := time.Since(began); took < 95*time.Second || took > 105*time.Second {
			t.Errorf("ended after %v, want within a recheck of 95 s", took)
		}
	})
}

func TestSessionEndsWithJoinServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		w.events <- &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Ended{
			Ended: &joinv1.SessionEnded{Goodbye: &daemonv1.Goodbye{Reason: "superseded"}},
		}}
		if reason := w.goodbye(t); reason != "superseded" {
			t.Errorf("goodbye %q", reason)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		close(w.events)
		if err := <-w.ended; err == nil {
			t.Error("the session outlives JoinService's")
		}
	})
}

func TestDrainingSaysGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		close(w.draining)
		if reason := w.goodbye(t); reason != "draining" {
			t.Errorf("goodbye %q", reason)
		}
		if after := w.sent[len(w.sent)-1].GetGoodbye().GetReconnectAfterSeconds(); after == 0 {
			t.Error("daemons are to come back at once")
		}
	})
}

func TestSecondHelloIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		w.frames <- &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: &daemonv1.Hello{}}}
		if err := <-w.ended; status.Code(err) != codes.InvalidArgument {
			t.Errorf("ended with %v, want INVALID_ARGUMENT", err)
		}
	})
}

package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/fault"
)

func welcome(heartbeat uint32) *daemonv1.GatewayFrame {
	return &daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Welcome{Welcome: &daemonv1.Welcome{
		SessionId: "s_1", ServerTimeUnixMs: 1_800_000_000_000, HeartbeatIntervalSeconds: heartbeat, Protocol: 1,
	}}}
}

// open opens a session with a gateway whose side of it is serve.
func open(t *testing.T, side func(daemonv1.NodeGateway_SessionServer) error) (*session.Session, error) {
	t.Helper()
	ca := newAuthority(t, "serving")
	g := gatewayAt(serve(t, serverConfig(ca.leaf(t, nil)), &answers{session: side}), ca)
	s, err := session.Open(t.Context(), g, ca.leaf(t, nil), &daemonv1.Hello{NodeId: "node_1", ProtocolMin: 1, ProtocolMax: 1})
	if s != nil {
		t.Cleanup(s.Close)
	}
	return s, err
}

// Req: SS-001 SS-002
func TestHelloComesFirstAndWelcomeAnswers(t *testing.T) {
	first := make(chan *daemonv1.AgentFrame, 1)
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		f, err := stream.Recv()
		if err != nil {
			return err
		}
		first <- f
		if err := stream.Send(welcome(30)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := (<-first).GetHello().GetNodeId(); got != "node_1" {
		t.Errorf("the first frame is no Hello of node_1: %q", got)
	}
	if s.ID != "s_1" || s.Heartbeat != 30*time.Second || !s.ServerTime.Equal(time.UnixMilli(1_800_000_000_000)) {
		t.Errorf("session %q, heartbeat %s, server time %s", s.ID, s.Heartbeat, s.ServerTime)
	}
}

func TestHeartbeatIsClamped(t *testing.T) {
	for asked, want := range map[uint32]time.Duration{0: 25 * time.Second, 1: 5 * time.Second, 5: 5 * time.Second, 60: time.Minute, 3600: time.Minute} {
		s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
			if err := stream.Send(welcome(asked)); err != nil {
				return err
			}
			<-stream.Context().Done()
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if s.Heartbeat != want {
			t.Errorf("asked for %d s: %s, want %s", asked, s.Heartbeat, want)
		}
	}
}

// Req: SS-005
func TestFirstFramesThatAreNoWelcome(t *testing.T) {
	for name, c := range map[string]struct {
		frame *daemonv1.GatewayFrame
		code  fault.Code
		say   string
	}{
		"heartbeat":        {&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Heartbeat{Heartbeat: &daemonv1.Heartbeat{}}}, fault.Verification, "no Welcome"},
		"another protocol": {&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Welcome{Welcome: &daemonv1.Welcome{Protocol: 2}}}, fault.Verification, "protocol 2"},
		"the end":          {nil, fault.Unreachable, "closed the session"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
				if c.frame == nil {
					return nil
				}
				return stream.Send(c.frame)
			})
			if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.say) {
				t.Errorf("error %v with code %s, want %s with %q", err, fault.CodeOf(err), c.code, c.say)
			}
		})
	}
}

func TestGoodbyeEndsTheSession(t *testing.T) {
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		if err := stream.Send(welcome(0)); err != nil {
			return err
		}
		return stream.Send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Goodbye{Goodbye: &daemonv1.Goodbye{Reason: "draining\n\x1b[31m", ReconnectAfterSeconds: 3}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	var bye *session.Goodbye
	err = s.Run(t.Context(), nil)
	if !errors.As(err, &bye) || bye.ReconnectAfter != 3*time.Second {
		t.Fatalf("session ended with %v", err)
	}
	if bye.Reason != `draining\n\x1b[31m` {
		t.Errorf("reason %q can reach a terminal", bye.Reason)
	}
}

// A gateway can name neither a session nor a goodbye so that a log or a terminal suffers, and send nobody away for good.
func TestWordsOfAGatewayAreBounded(t *testing.T) {
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		w := welcome(0)
		w.GetWelcome().SessionId = "s\n\u009b" + strings.Repeat("x", 100<<10)
		if err := stream.Send(w); err != nil {
			return err
		}
		return stream.Send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Goodbye{Goodbye: &daemonv1.Goodbye{
			Reason: strings.Repeat("y", 100<<10), ReconnectAfterSeconds: 4_000_000_000,
		}}})
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := `s\n\u009b`; !strings.HasPrefix(s.ID, want) || len(s.ID) > 100 {
		t.Errorf("session %.40q of %d bytes", s.ID, len(s.ID))
	}
	var bye *session.Goodbye
	if err := s.Run(t.Context(), nil); !errors.As(err, &bye) || len(bye.Reason) > 100 || bye.ReconnectAfter != session.MaxPause {
		t.Errorf("ended with %.100v", err)
	}
}

func TestFramesAreHandledInOrder(t *testing.T) {
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		if err := stream.Send(welcome(0)); err != nil {
			return err
		}
		for _, body := range []string{"1", "2", "3"} {
			if err := stream.Send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Command{Command: &daemonv1.Command{Body: []byte(body)}}}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	err = s.Run(t.Context(), func(f *daemonv1.GatewayFrame) error {
		got += string(f.GetCommand().GetBody())
		return nil
	})
	if got != "123" {
		t.Errorf("handled %q", got)
	}
	if !fault.Is(err, fault.Unreachable) {
		t.Errorf("a stream that ends without a word: %v", err)
	}
}

// A gateway that falls silent is left after two heartbeats that did not come; one that sends them is not.
func TestSilenceEndsTheSession(t *testing.T) {
	for name, c := range map[string]struct{ beats int }{"from the start": {0}, "after some heartbeats": {8}} {
		t.Run(name, func(t *testing.T) {
			s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
				if err := stream.Send(welcome(0)); err != nil {
					return err
				}
				for range c.beats {
					time.Sleep(50 * time.Millisecond)
					if err := stream.Send(&daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_Heartbeat{Heartbeat: &daemonv1.Heartbeat{}}}); err != nil {
						return err
					}
				}
				<-stream.Context().Done()
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			s.Heartbeat = 100 * time.Millisecond
			begun := time.Now()
			err = s.Run(t.Context(), nil)
			if !fault.Is(err, fault.Unreachable) || !strings.Contains(err.Error(), "sent nothing for 220ms") {
				t.Errorf("ended with %v", err)
			}
			if lived, least := time.Since(begun), time.Duration(c.beats)*50*time.Millisecond+200*time.Millisecond; lived < least || lived > least+10*time.Second {
				t.Errorf("ended after %s, want about %s", lived, least)
			}
		})
	}
}

func TestSessionEndsWithItsContext(t *testing.T) {
	ended := make(chan error, 1)
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		if err := stream.Send(welcome(0)); err != nil {
			return err
		}
		for {
			if _, err := stream.Recv(); err != nil {
				ended <- err
				return err
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	s.Close()
	s.Close() // twice is no error
	<-ended
}

// Many goroutines send beside the heartbeats; each frame arrives once and whole.
func TestFramesOfManyGoroutinesAreSent(t *testing.T) {
	got := make(chan *daemonv1.AgentFrame, 1000)
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		if err := stream.Send(welcome(0)); err != nil {
			return err
		}
		for {
			f, err := stream.Recv()
			if err != nil {
				return err
			}
			got <- f
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Heartbeat = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = s.Run(ctx, nil) }()
	const each, senders = 20, 8
	for sender := range senders {
		go func() {
			for i := range each {
				body := []byte(strings.Repeat(string(rune('a'+sender)), 1+i))
				if err := s.Send(ctx, &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Vouch{Vouch: &daemonv1.Vouch{Body: body}}}); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	last := map[byte]int{}
	for n := 0; n < each*senders; {
		body := (<-got).GetVouch().GetBody()
		if len(body) == 0 {
			continue // Hello or a heartbeat
		}
		if n++; len(body) != last[body[0]]+1 {
			t.Fatalf("%q after one of %d", body, last[body[0]])
		}
		last[body[0]] = len(body)
	}
}

// A gateway that reads nothing stops what is sent, not the session's own end.
func TestAGatewayThatDoesNotReadIsLeft(t *testing.T) {
	s, err := open(t, func(stream daemonv1.NodeGateway_SessionServer) error {
		if err := stream.Send(welcome(0)); err != nil {
			return err
		}
		<-stream.Context().Done()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Heartbeat = 100 * time.Millisecond
	sent := make(chan error, 1)
	go func() {
		for {
			f := &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Vouch{Vouch: &daemonv1.Vouch{Body: make([]byte, 256<<10)}}}
			if err := s.Send(context.Background(), f); err != nil {
				sent <- err
				return
			}
		}
	}()
	if err := s.Run(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "sent nothing for") {
		t.Errorf("ended with %v", err)
	}
	s.Close()
	<-sent
	if err := s.Send(t.Context(), &daemonv1.AgentFrame{}); err == nil {
		t.Error("sent on a closed session")
	}
}

package gateway_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

// relayVouch hands a vouch to the test and waits for its answer; nil is a JoinService that does not answer.
func (w *wire) relayVouch(ctx context.Context, v *daemonv1.Vouch) (*daemonv1.VouchAck, error) {
	w.vouches <- v
	select {
	case ack := <-w.acks:
		if ack == nil {
			return nil, errors.New("no answer")
		}
		return ack, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func vouchFrame(body string) *daemonv1.AgentFrame {
	return &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Vouch{Vouch: &daemonv1.Vouch{Body: []byte(body), Sig: []byte("sig")}}}
}

// acksSent are the answers to vouches that the daemon got.
func (w *wire) acksSent() (got []*daemonv1.VouchAck) {
	for _, f := range w.sent {
		if a := f.GetVouchAck(); a != nil {
			got = append(got, a)
		}
	}
	return got
}

func TestAVouchIsRelayedAsItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		for i, recorded := range []bool{true, false} {
			w.frames <- vouchFrame("one")
			if v := <-w.vouches; string(v.GetBody()) != "one" || string(v.GetSig()) != "sig" {
				t.Errorf("relayed %v", v)
			}
			w.acks <- &daemonv1.VouchAck{VouchSha256: []byte{1}, Recorded: recorded}
			time.Sleep(20 * time.Millisecond)
			synctest.Wait()
			if got := w.acksSent(); len(got) != i+1 || got[i].GetRecorded() != recorded || !bytes.Equal(got[i].GetVouchSha256(), []byte{1}) {
				t.Errorf("answers %v", got)
			}
		}
		close(w.frames)
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
	})
}

// A session's vouches take turns: JoinService has one of them at a time, however many come, and the session goes on.
func TestAFloodOfVouches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{HeartbeatIntervalSeconds: 5}, time.Hour)
		for range 500 {
			w.frames <- vouchFrame("flood")
		}
		synctest.Wait()
		if n := len(w.vouches); n != 1 {
			t.Fatalf("%d vouches are under way, want 1", n)
		}
		<-w.vouches
		for range 3 { // JoinService stays silent, the heartbeats do not
			time.Sleep(5 * time.Second)
			w.frames <- heartbeat()
		}
		synctest.Wait()
		if n := len(w.sent) - 1; n != 3 {
			t.Errorf("%d frames in 15 s beside a slow vouch, want 3 heartbeats", n)
		}
		w.acks <- &daemonv1.VouchAck{Recorded: true}
		// Answers come at a pace.
		began, answered := time.Now(), 0
		for time.Since(began) < time.Second {
			w.frames <- vouchFrame("flood")
			synctest.Wait()
			select {
			case <-w.vouches:
				answered++
				w.acks <- &daemonv1.VouchAck{Recorded: true}
			default:
				time.Sleep(time.Millisecond)
			}
		}
		if answered > 50 {
			t.Errorf("%d vouches in a second", answered)
		}
		close(w.frames)
		<-w.ended
	})
}

func TestAVouchThatJoinServiceDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		w.frames <- vouchFrame("one")
		<-w.vouches
		w.acks <- nil
		synctest.Wait()
		w.frames <- vouchFrame("at once")
		time.Sleep(time.Second)
		synctest.Wait()
		if len(w.vouches) != 0 || len(w.acksSent()) != 0 {
			t.Errorf("%d vouches, answers %v, want a pause and no answer", len(w.vouches), w.acksSent())
		}
		w.frames <- vouchFrame("again")
		if v := <-w.vouches; string(v.GetBody()) != "again" {
			t.Errorf("relayed %v", v)
		}
		close(w.frames) // the session does not wait for an answer
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
	})
}

// What nobody speaks is a sign of life and nothing else; a vouch that is too large is such a thing.
func TestOtherFramesAreIgnored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := start(t, &daemonv1.Welcome{}, time.Hour)
		for _, f := range []*daemonv1.AgentFrame{
			{},
			{Frame: &daemonv1.AgentFrame_Inventory{Inventory: &daemonv1.Inventory{}}},
			{Frame: &daemonv1.AgentFrame_CommandAck{CommandAck: &daemonv1.CommandAck{}}},
			vouchFrame(strings.Repeat("x", 4096)),
		} {
			w.frames <- f
		}
		synctest.Wait()
		if len(w.vouches) != 0 || len(w.sent) != 1 {
			t.Errorf("%d vouches, sent %v", len(w.vouches), w.sent)
		}
		close(w.frames)
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
	})
}

// The peer of a vouch is what the gateway saw of the session: the certificate of its handshake.
func TestAVouchNamesItsSession(t *testing.T) {
	r := newRig(t, nil)
	certificate := nodeCertificate(t, r.bundle, now)
	s := r.session(t, r.client(t, certificate))
	for _, answer := range []error{nil, status.Error(codes.Unavailable, "away")} {
		r.joinService.answer(answer)
		if err := s.Send(vouchFrame("one")); err != nil {
			t.Fatal(err)
		}
		v := <-r.joinService.vouched
		if !bytes.Equal(v.GetPeer().GetCertificate(), certificate.Leaf.Raw) || v.GetPeer().GetAddress() != "127.0.0.1" || string(v.GetVouch().GetBody()) != "one" {
			t.Errorf("relayed %v", v)
		}
		if answer != nil {
			break // not answered, and the session lives: it ends in order
		}
		if f, err := s.Recv(); err != nil || string(f.GetVouchAck().GetVouchSha256()) != "one" || !f.GetVouchAck().GetRecorded() {
			t.Errorf("frame %v, %v", f, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for {
		f, err := s.Recv()
		if f.GetVouchAck() != nil {
			t.Error("an answer that JoinService did not give")
		}
		if err != nil {
			break
		}
	}
}

// session opens a session that JoinService welcomes.
func (r *rig) session(t *testing.T, c daemonv1.NodeGatewayClient) grpc.BidiStreamingClient[daemonv1.AgentFrame, daemonv1.GatewayFrame] {
	t.Helper()
	s, err := c.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: &daemonv1.Hello{}}}); err != nil {
		t.Fatal(err)
	}
	r.joinService.events <- &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Opened{Opened: &joinv1.SessionOpened{
		Welcome: &daemonv1.Welcome{SessionId: "s1"}, NotAfterUnixMs: now.Add(time.Hour).UnixMilli(),
	}}}
	if f, err := s.Recv(); err != nil || f.GetWelcome() == nil {
		t.Fatalf("first frame %v, %v", f, err)
	}
	return s
}

package gateway

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
)

const (
	// maxVouch bounds a vouch that is relayed, in bytes. Ours need about two hundred.
	maxVouch = 4 << 10
	// vouchWithin bounds JoinService's answer to a vouch.
	vouchWithin = 5 * time.Second
	// vouchEvery is the pace of a session's vouches, vouchAfterFailure the wait after one that JoinService did not answer.
	vouchEvery        = 20 * time.Millisecond
	vouchAfterFailure = time.Second
)

// relayVouch returns what hands a session's vouches to JoinService, with the session's peer.
func (g *Gateway) relayVouch(p *joinv1.Peer) relayVouch {
	return func(ctx context.Context, v *daemonv1.Vouch) (*daemonv1.VouchAck, error) {
		ctx, cancel := context.WithTimeout(ctx, vouchWithin)
		defer cancel()
		ack, err := g.join.Vouch(ctx, &joinv1.VouchRequest{Peer: p, Vouch: v})
		if err != nil {
			return nil, g.relayed("Vouch", err)
		}
		return ack, nil
	}
}

type relayVouch func(context.Context, *daemonv1.Vouch) (*daemonv1.VouchAck, error)

// vouches relays one vouch of a session at a time, beside the session's loop, so that a slow answer holds up nothing but the
// next vouch. One that comes meanwhile is dropped: who waits for an answer before the next, as an agent does, loses none,
// and who does not costs JoinService no more than any other session. A vouch that JoinService does not answer is not
// answered here either: the agent says it again.
type vouches struct {
	relay   relayVouch
	answers chan *daemonv1.VouchAck // gets one for each that was started; nil is no answer
	busy    bool
	running sync.WaitGroup
}

func newVouches(relay relayVouch) *vouches {
	return &vouches{relay: relay, answers: make(chan *daemonv1.VouchAck, 1)}
}

// start relays a vouch, if none is under way.
func (v *vouches) start(ctx context.Context, vouch *daemonv1.Vouch) {
	if v.busy || proto.Size(vouch) > maxVouch {
		return
	}
	v.busy = true
	v.running.Go(func() {
		pace := time.NewTimer(vouchEvery)
		defer pace.Stop()
		ack, err := v.relay(ctx, vouch)
		if err != nil {
			ack = nil
			pace.Reset(vouchAfterFailure)
		}
		select {
		case <-pace.C:
		case <-ctx.Done():
		}
		v.answers <- ack
	})
}

// answered takes note of an answer, and returns the frame that tells the daemon; nil is none.
func (v *vouches) answered(ack *daemonv1.VouchAck) *daemonv1.GatewayFrame {
	v.busy = false
	if ack == nil {
		return nil
	}
	return &daemonv1.GatewayFrame{Frame: &daemonv1.GatewayFrame_VouchAck{VouchAck: ack}}
}

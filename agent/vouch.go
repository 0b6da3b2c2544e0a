package agent

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
)

// vouchTries is how often a vouch that the control plane refuses is made, each time with another guess of its time.
const vouchTries = 3

// vouchAnswer is how long a vouch may go unanswered. Then it is put off: a gateway that cannot reach the control plane does
// not answer, and one that is older than vouches ignores them.
var vouchAnswer = 10 * time.Second

var errUnanswered = errors.New("the control plane did not answer")

// sendVouches sends what waits, one after the other, until the session is stopped. Each vouch is signed by the key of the
// certificate that the session presents. acks gets the session's answers.
func (n *node) sendVouches(ctx context.Context, live *liveSession, key crypto.Signer, acks <-chan *daemonv1.VouchAck) {
	queue := n.board.vouches
	for ctx.Err() == nil {
		v, changed := queue.next()
		if v == nil {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		attrs := []any{"mac", v.mac, "boot_lease_epoch", v.epoch}
		switch err := n.deliver(ctx, live, key, v, acks); {
		case ctx.Err() != nil: // the next session sends it
		case err == nil:
			n.log.InfoContext(ctx, "record vouch", attrs...)
			queue.settle(v, nil)
		case fault.Is(err, fault.AccessDenied):
			n.log.WarnContext(ctx, "give up vouch", append(attrs, "error", err, "hint", fault.HintOf(err))...)
			queue.settle(v, err)
		default:
			n.log.WarnContext(ctx, "put off vouch", append(attrs, "error", err)...)
			queue.putOff(v)
			if !errors.Is(err, errUnanswered) {
				pause(ctx, vouchAnswer) // a key that is away for a moment, or a session that is over
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// deliver sends a vouch until it is recorded or refused. A machine whose clock is wrong may be refused for its time.
func (n *node) deliver(ctx context.Context, live *liveSession, key crypto.Signer, v *vouch, acks <-chan *daemonv1.VouchAck) error {
	for refusals := 0; ; {
		at := n.clock.Proof(refusals)
		recorded, err := sendVouch(ctx, live, key, v, at, acks)
		if err != nil || recorded {
			return err
		}
		if refusals++; refusals == vouchTries || n.clock.Proof(refusals).Sub(at).Abs() <= agreeWithin {
			return fault.New(fault.AccessDenied,
				"vouch for the machine's latest boot lease; the events security.vouch.refused tell the control plane's operator why",
				"the control plane refuses the vouch for %s", v.mac)
		}
	}
}

// sendVouch sends a vouch and waits for the answer to it.
func sendVouch(ctx context.Context, live *liveSession, key crypto.Signer, v *vouch, at time.Time, acks <-chan *daemonv1.VouchAck) (recorded bool, err error) {
	frame, digest, err := signVouch(live.id, key, v, at)
	if err != nil {
		return false, err
	}
	select {
	case <-acks: // an answer that came too late
	default:
	}
	if err := live.Send(ctx, frame); err != nil {
		return false, err
	}
	late := time.NewTimer(vouchAnswer)
	defer late.Stop()
	for {
		select {
		case ack := <-acks:
			if bytes.Equal(ack.GetVouchSha256(), digest[:]) {
				return ack.GetRecorded(), nil
			}
		case <-late.C:
			return false, errUnanswered
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// signVouch makes the frame of a vouch and the digest that its answer names.
func signVouch(id *identity.Identity, key crypto.Signer, v *vouch, at time.Time) (*daemonv1.AgentFrame, [sha256.Size]byte, error) {
	body, err := proto.Marshal(&daemonv1.VouchBody{
		NodeId: id.NodeID, Site: id.Site, Mac: v.mac, BootLeaseEpoch: v.epoch, IssuedAtUnixMs: at.UnixMilli(),
	})
	if err != nil {
		return nil, [sha256.Size]byte{}, fmt.Errorf("cannot encode the vouch: %w", err)
	}
	sig, err := signing.Sign(key, signing.SiteVouch, body)
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	return &daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Vouch{Vouch: &daemonv1.Vouch{Body: body, Sig: sig}}}, sha256.Sum256(body), nil
}

package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
)

// keepRenewed replaces the certificate before it expires. It returns when ctx ends. A renewal that fails, for whatever
// reason, is tried again with the same key and request, also past the certificate's end: this machine's clock may be
// wrong, and what the control plane makes of the certificate is for the session's loop to find out.
func (n *node) keepRenewed(ctx context.Context) error {
	var renewal *identity.Renewal
	defer func() { closeRenewal(renewal) }()
	id, _ := n.current()
	schedule := identity.ScheduleOf(id)
	due := schedule.First(n.clock.Server(), rand.Float64())
	failures, refusals := 0, 0
	for {
		if err := n.waitUntil(ctx, due); err != nil {
			return err
		}
		current, _ := n.current()
		next, err := n.renew(ctx, &renewal, refusals)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = tpmAway(current.Leaf(), err)
		n.board.update(func(s *Status) {
			s.Renewal = &RenewalStatus{At: n.clock.Local()}
			if err != nil {
				s.Renewal.Error = err.Error()
			}
		})
		if err == nil {
			closeRenewal(renewal)
			renewal, failures, refusals = nil, 0, 0
			schedule = identity.ScheduleOf(next)
			due = schedule.RenewAt
			n.log.InfoContext(ctx, "renewed", "node", next.NodeID, certificateAttrs(next))
			continue
		}
		failures++
		if fault.Is(err, fault.AccessDenied) {
			refusals++
		}
		now := n.clock.Server()
		due = schedule.Retry(now, failures, rand.Float64())
		if asked := now.Add(session.RetryAfter(err)); asked.After(due) {
			due = asked
		}
		n.sayRenewalFailed(ctx, err, due.Sub(now), schedule.Left(now))
	}
}

// sayRenewalFailed says that a renewal failed, and how much time is left. Where the TPM is why, somebody must act.
func (n *node) sayRenewalFailed(ctx context.Context, err error, retry, left time.Duration) {
	level, message := slog.LevelWarn, "renewal failed"
	if away, ok := errors.AsType[*tpmAwayError](err); ok {
		level, message, err = slog.LevelError, "renewal failed: the TPM is unavailable or names another AK", away.err
	}
	n.log.Log(ctx, level, message, "error", err, "hint", fault.HintOf(err),
		"retry_in", retry.Round(time.Millisecond).String(), "certificate_expires_in", left.Round(time.Second).String())
}

func closeRenewal(r *identity.Renewal) {
	if r != nil {
		r.Close()
	}
}

// waitUntil waits for a moment of the control plane's time, and looks at the clock again and again meanwhile.
func (n *node) waitUntil(ctx context.Context, due time.Time) error {
	for {
		n.renewing.beat(time.Now())
		wait := identity.Sleep(n.clock.Server(), due)
		if wait <= 0 {
			return nil
		}
		look := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			look.Stop()
			return context.Cause(ctx)
		case <-n.clock.Changed():
			look.Stop()
		case <-look.C:
		}
	}
}

// renew makes the next key where there is none yet, proves the current one, and takes the answer. The identity changes
// when all of it holds. refusals is how often the control plane has refused this renewal.
//
// What the TPM has to do for a certificate that names its attestation key comes first: without it nothing is sent.
func (n *node) renew(ctx context.Context, kept **identity.Renewal, refusals int) (*identity.Identity, error) {
	id, key := n.current()
	if err := n.checkAK(ctx, id.Leaf()); err != nil {
		return nil, err
	}
	if *kept == nil {
		begun, err := n.next().BeginRenewal(ctx)
		if err != nil {
			return nil, err
		}
		*kept = begun
	}
	renewal := *kept
	if err := renewal.Reserve(); err != nil {
		return nil, err
	}
	attestation, err := n.keyAttestation(ctx, id.Leaf(), renewal.Key(), renewal.CSR())
	if fault.Is(err, fault.TPMKeyLost) {
		closeRenewal(renewal) // this TPM has the attestation key and not the next key: the next try makes another
		*kept = nil
	}
	if err != nil {
		return nil, err
	}
	client, err := n.dial(ctx, n.gateway(id), clientCertificate(id, key))
	if err != nil {
		return nil, err
	}
	defer client.Close()

	at := n.clock.Proof(refusals)
	payload := signing.PoP(sha256.Sum256(renewal.CSR()), at, id.NodeID)
	pop, err := signing.Sign(key, signing.RenewPoP, payload)
	if err != nil {
		return nil, err
	}
	callCtx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	response, err := client.Renew(callCtx, &daemonv1.RenewRequest{
		Csr: renewal.CSR(), Chain: id.Chain.DER(), ClientTimeUnixMs: at.UnixMilli(), PopSig: pop, AgentVersion: n.version,
		KeyAttestation: attestation,
	})
	if hint, ok := client.ServerTime(); ok {
		n.clock.Hint(hint)
	}
	if err != nil {
		return nil, err
	}
	next, err := n.takeRenewal(id, renewal, payload, response)
	if err != nil {
		return nil, err
	}
	if tpmkey.KindOf(key) == tpmkey.KindFile && tpmkey.KindOf(renewal.Key()) == tpmkey.KindTPM {
		n.log.InfoContext(ctx, "move key into TPM", "node", next.NodeID)
	}
	n.replace(next, renewal.Key())
	return next, nil
}

// takeRenewal verifies an answer and commits the identity that it makes.
func (n *node) takeRenewal(current *identity.Identity, renewal *identity.Renewal, payload []byte, response *daemonv1.RenewResponse) (*identity.Identity, error) {
	if err := verifyAnswer(signing.RenewResponse, response.GetBody(), response.GetSig(), n.signingPins(current)); err != nil {
		return nil, err
	}
	var body daemonv1.RenewResponseBody
	if err := proto.Unmarshal(response.GetBody(), &body); err != nil {
		return nil, unparsable(err)
	}
	next, err := identity.Check(admissionOf(body.GetAdmission(), body.GetRequestSha256(), body.GetServerTimeUnixMs(), body.GetNextPins()), identity.Expectation{
		CSR: renewal.CSR(), RequestSHA256: sha256.Sum256(payload), Site: n.cfg.Site, Current: current,
	})
	if err != nil {
		return nil, err
	}
	n.clock.Signed(next.IssuedAt)
	if err := renewal.Accept(next); err != nil {
		return nil, fmt.Errorf("cannot keep the renewed identity: %w", err)
	}
	return next, nil
}

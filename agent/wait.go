package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// How long a deferred join waits before it asks again: what the control plane says, within bounds, and up to a tenth more,
// so that the machines of a rack that boot together do not ask together.
const (
	askAgainAfter   = 30 * time.Second // where the control plane does not say
	askAgainAtLeast = 5 * time.Second
	askAgainAtMost  = 10 * time.Minute
	askAgainJitter  = 10 // the tenth
)

// clockLook is how often a wait looks at the wall clock: a timer stands still while the machine is suspended.
const clockLook = time.Second

// deferredError is a verified deferral: an operator decides.
type deferredError struct {
	requestID  string
	retryAfter time.Duration
}

// Error implements error.
func (d *deferredError) Error() string {
	return fmt.Sprintf("the join request %s waits for an operator's decision", d.requestID)
}

// deferred verifies a deferral and records the join request in it.
func (j *joiner) deferred(ctx context.Context, d *daemonv1.Deferral, requestSHA256 []byte, want identity.Expectation) error {
	err := identity.CheckDeferral(identity.Deferral{CSRSHA256: d.GetCsrSha256(), RequestID: d.GetRequestId(), RequestSHA256: requestSHA256}, want)
	if err != nil {
		return err
	}
	if d.GetRequestId() != j.join.RequestID() {
		if err := j.hold(ctx); err != nil {
			return err
		}
	}
	if err := j.join.Defer(d.GetRequestId()); err != nil {
		return fmt.Errorf("cannot keep the join request %s: %w", d.GetRequestId(), err)
	}
	return &deferredError{d.GetRequestId(), askAgain(d.GetRetryAfterSeconds())}
}

// askAgain is how long to wait where the control plane says seconds.
func askAgain(seconds uint32) time.Duration {
	if seconds == 0 {
		return askAgainAfter
	}
	return min(max(time.Duration(seconds)*time.Second, askAgainAtLeast), askAgainAtMost)
}

// wait is what follows a deferral. It says so once for each join request.
func (j *joiner) wait(ctx context.Context, d *deferredError) (time.Duration, error) {
	if j.options.NoWait {
		again := "with the same token"
		if j.options.Attestor == AttestorTPM {
			again = `or start "bcd node", which goes on with it`
		}
		return 0, fault.New(fault.Pending,
			"have it approved (better-compute join-requests approve "+d.requestID+"), then run the command again "+again, "%w", d)
	}
	if j.away {
		j.log.InfoContext(ctx, "reach gateway again")
	}
	if j.waitsFor != d.requestID {
		j.options.OnWait(JoinWait{RequestID: d.requestID, Replaces: j.waitsFor})
	}
	j.waitsFor = d.requestID
	j.answered(j.clock.Local().Add(j.options.Patience))
	wait := d.retryAfter + uniform(d.retryAfter/askAgainJitter)
	j.log.DebugContext(ctx, "wait for approval", "request", d.requestID, "ask_in", wait.Round(time.Millisecond).String())
	return wait, nil
}

// notApproved is a refusal of what the control plane deferred before, in this process or in an earlier one. A refusal is not
// signed and may be the gateway's: key and request stay, and the next run of the program asks once more before it begins
// anew. This one does not: it would file another request right after an operator's no.
func (j *joiner) notApproved(ctx context.Context, err error) error {
	hint, why := "ask the control plane's operator why; to file a new request, run the command again with a token that is still good",
		"it was rejected, nobody decided in time, or its token is good no more"
	if j.options.Attestor == AttestorTPM {
		hint, why = "ask the control plane's operator why; to file a new request, run as root: bcd join --attestor tpm", "it was rejected"
	}
	err = fault.New(fault.AccessDenied, hint, "cannot join: the join request %s was not approved (%s): %w", j.join.RequestID(), why, err)
	if j.join.Refused() {
		return err
	}
	if held := j.hold(ctx); held != nil {
		return errors.Join(err, held)
	}
	return errors.Join(err, j.join.Refuse())
}

// sayResumed says what an earlier process left waiting, and with which token.
func (j *joiner) sayResumed(ctx context.Context) {
	request, was, is := j.join.RequestID(), j.join.TokenID(), j.attestor.tokenID()
	switch {
	case request == "":
	case was != is && was != "":
		j.log.WarnContext(ctx, "resume join with another token", "request", request, "was", was, "token", is)
	case is == "":
		j.log.InfoContext(ctx, "resume join", "request", request)
	default:
		j.log.InfoContext(ctx, "resume join", "request", request, "token", is)
	}
}

// sayAbandoned says that this join is not the one that waits, and takes its place once the gateway is reached.
func (j *joiner) sayAbandoned(ctx context.Context, p identity.PendingJoin) {
	if p.Waits() {
		j.log.WarnContext(ctx, "begin another join than the one that waits", "request", p.RequestID, "attestor", p.Attestor, "role", p.Role)
	}
}

// whichToken adds to a token that is missing or malformed which one the join that waits was made with.
func whichToken(p identity.PendingJoin, err error) error {
	if !p.Waits() || !fault.Is(err, fault.Token) {
		return err
	}
	token := "its token"
	if p.TokenID != "" {
		token = "the token " + p.TokenID
	}
	return fault.New(fault.Token, "give "+token+" again: bcd join < token-file, or --token-file",
		"cannot resume the join request %s, which was made with %s: %w", p.RequestID, token, err)
}

// whoWaits adds to a lock that another process holds that this one waits for an operator.
func whoWaits(store *identity.Store, err error) error {
	if !fault.Is(err, fault.Busy) {
		return err
	}
	if p, ok, pendingErr := store.PendingJoin(); pendingErr == nil && ok && p.Waits() {
		return fault.New(fault.Busy, "have the request approved (better-compute join-requests approve "+p.RequestID+"), or stop the process that waits",
			"the join request %s waits for an operator's decision: %w", p.RequestID, err)
	}
	return err
}

// stillWaits is the error of a machine that has not joined because an operator has not decided, in place of err, which says
// only that it has not joined.
func stillWaits(p identity.PendingJoin, err error) error {
	if !p.Waits() {
		return err
	}
	return fault.New(fault.NoIdentity, hintResume(p),
		"this machine has not joined: the join request %s waits for an operator's decision, and only \"bcd join\" goes on with it", p.RequestID)
}

// hintResume is what to do about a join that nobody may be waiting for any more: the token is on no disk.
func hintResume(p identity.PendingJoin) string {
	if p.Attestor == AttestorTPM {
		return "have the request approved (better-compute join-requests approve " + p.RequestID + `); "bcd node" goes on with it by itself`
	}
	token := "the same token"
	if p.TokenID != "" {
		token = "the token " + p.TokenID
	}
	return "have the request approved (better-compute join-requests approve " + p.RequestID + "); if no \"bcd join\" waits for it, run it again with " + token
}

// sleepWall waits, or ends with the context's cause. The wait is over by whichever clock is first: the wall clock, which
// goes on while the machine is suspended, or the timer, which nobody sets.
func (a *Agent) sleepWall(ctx context.Context, d time.Duration) error {
	due := a.clock.Local().Add(d)
	for d > 0 && a.clock.Local().Before(due) {
		look := min(d, clockLook)
		t := time.NewTimer(look)
		select {
		case <-ctx.Done():
			t.Stop()
			return context.Cause(ctx)
		case <-t.C:
		}
		d -= look
	}
	return nil
}

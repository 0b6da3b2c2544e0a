package agent

import (
	"context"
	"errors"
	"time"

	"github.com/better-compute/bcd/agent/session"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// resumable reports whether the daemon goes on with a join by itself: one that needs nothing but the machine's TPM.
func resumable(p identity.PendingJoin, begun bool) bool {
	return begun && p.Attestor == AttestorTPM && !p.Reset && !p.Answered
}

// resumeJoin goes on with a join by the TPM that an earlier process began, until the machine has joined. Where there is
// none, it does nothing. Between the tries nothing is locked: an operator may join the machine by other means.
//
// It only ever sends the request that was begun. An operator's no is answered by no other request than an operator's own.
func (a *Agent) resumeJoin(ctx context.Context, b *board, notify Notifier, started func()) error {
	var away backoff
	said := ""
	for {
		p, err := a.pendingJoin(b)
		if err != nil || p == nil {
			return err
		}
		started()
		b.update(func(s *Status) {
			if s.State != Joining {
				s.State, s.Since, s.Session = Joining, a.clock.Local(), nil
			}
			s.Join = joinStatus(*p)
		})
		wait, err := a.tryJoin(ctx, b, notify, *p, &away)
		if request := b.read().Join.RequestID; request != said {
			a.log.InfoContext(ctx, "wait for approval", "request", request)
			said = request
		}
		if err != nil || wait == 0 {
			b.update(func(s *Status) { s.Join = nil })
			return err
		}
		if err := a.sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// tryJoin makes one try of a join, and returns how long to wait before the next one; 0 where the machine has joined.
func (a *Agent) tryJoin(ctx context.Context, b *board, notify Notifier, p identity.PendingJoin, away *backoff) (time.Duration, error) {
	result, err := a.Join(ctx, JoinOptions{Attestor: p.Attestor, Role: p.Role, NoWait: true, Patience: leastTry, sameRequest: true})
	switch {
	case err == nil && result.Already:
		return 0, nil
	case err == nil:
		a.log.InfoContext(ctx, "joined", "node", result.NodeID, "attestor", p.Attestor)
		return 0, nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	}
	b.update(func(s *Status) { s.problem(err) })
	var d *deferredError
	switch {
	case errors.As(err, &d):
		away.reset()
		b.update(func(s *Status) { s.Join = &JoinStatus{RequestID: d.requestID, Attestor: p.Attestor, Role: p.Role} })
		notify.status("waits for approval: " + d.requestID)
		return d.retryAfter + uniform(d.retryAfter/askAgainJitter), nil
	case fault.CodeOf(err).Temporary():
		wait := max(away.next(), session.RetryAfter(err), leastPause)
		a.log.WarnContext(ctx, "fail to join", "error", err, "hint", fault.HintOf(err), "retry_in", wait.Round(time.Millisecond).String())
		notify.status("not joined: " + err.Error())
		return wait, nil
	default:
		return 0, &parkedError{err: err}
	}
}

// leastPause is the shortest pause between two tries to join: each makes keys in the TPM again.
const leastPause = time.Second

// pendingJoin is the join that the daemon is to go on with; nil where there is none.
func (a *Agent) pendingJoin(b *board) (*identity.PendingJoin, error) {
	dir, store, err := a.open()
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	if _, _, err := store.Load(); !isNoIdentity(err) {
		return nil, nil //nolint:nilerr // whoever runs next says what is wrong with it
	}
	p, begun, err := store.PendingJoin()
	if err != nil || !resumable(p, begun) || b.runs(p.Role) != nil {
		return nil, err
	}
	return &p, nil
}

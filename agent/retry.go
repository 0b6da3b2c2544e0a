package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/better-compute/bcd/agent/session"
	"github.com/better-compute/bcd/internal/fault"
)

const (
	// leastTry is what a call gets even where patience is over.
	leastTry = 5 * time.Second
	// conflictPause is the wait before the one retry of a join that another one raced.
	conflictPause = 2 * time.Second
)

// retries is what the tries of a join so far mean for the next one.
type retries struct {
	until      time.Time // when patience with an absent gateway ends
	backoff    backoff
	away       bool   // the gateway could not be reached at the last try
	conflicted bool   // one conflict was retried
	restarted  bool   // the request is one with a new key, because the one before was refused
	keyLost    bool   // the request is one with a new key, because the TPM lost the one before
	waitsFor   string // the id of the join request that this run waits for
}

// answered starts patience again.
func (r *retries) answered(until time.Time) {
	r.until, r.away, r.conflicted = until, false, false
	r.backoff.reset()
}

// patience is how long one step of a try may take. There is no end to it while the join waits for an operator.
func (r *retries) patience(now time.Time) time.Duration {
	if r.waitsFor != "" {
		return callTimeout
	}
	return max(r.until.Sub(now), leastTry)
}

// run sends the request until it is answered for good: again while the gateway cannot be reached and while an operator has
// not decided, once more after a conflict, and once more with a new key where a request that may have been answered before
// is refused.
func (j *joiner) run(ctx context.Context) (JoinResult, error) {
	j.until = j.clock.Local().Add(j.options.Patience)
	for {
		result, err := j.attempt(ctx)
		if err == nil {
			return result, nil
		}
		if ctx.Err() != nil {
			return JoinResult{}, context.Cause(ctx)
		}
		wait, err := j.after(ctx, err)
		if err != nil {
			return JoinResult{}, err
		}
		if wait == 0 {
			continue
		}
		if wait > conflictPause {
			j.yield()
		}
		if err := j.sleep(ctx, wait); err != nil {
			return JoinResult{}, err
		}
	}
}

// after decides what follows a try that failed: another one after a wait, or the end, with an error.
func (j *joiner) after(ctx context.Context, err error) (wait time.Duration, end error) {
	var d *deferredError
	switch {
	case errors.As(err, &d):
		return j.wait(ctx, d)
	case fault.Is(err, fault.Conflict) && !j.conflicted:
		j.conflicted = true
		j.sayRetry(ctx, slog.LevelInfo, err, conflictPause)
		return conflictPause, nil
	case fault.Is(err, fault.TPMKeyLost) && j.join != nil && !j.keyLost:
		// The TPM was cleared or replaced since the join began. What the request may have been answered with is of no use any
		// more to anybody.
		j.log.WarnContext(ctx, "try join with new key", "reason", err)
		if err := j.restart(ctx); err != nil {
			return 0, fmt.Errorf("cannot join: %w", err)
		}
		j.keyLost, j.sent, j.waitsFor = true, false, ""
		return 0, nil
	case fault.Is(err, fault.TPMUnavailable) && j.waitsFor != "":
		return j.absent(ctx, err) // an operator has not decided yet: no reason to give up
	case fault.Is(err, fault.AccessDenied) && j.provesAgain():
		j.sayRetry(ctx, slog.LevelInfo, err, 0)
		return 0, nil
	case fault.Is(err, fault.AccessDenied) && j.join.RequestID() != "" && (j.options.sameRequest || !j.join.Refused()):
		return 0, j.notApproved(ctx, err)
	case fault.Is(err, fault.AccessDenied) && j.options.sameRequest:
		return 0, fmt.Errorf("cannot join: %w", err)
	case fault.Is(err, fault.AccessDenied) && j.sent && !j.restarted:
		// The request was sent before, and may have been answered then. That admission is gone by now, and its key
		// can never join again.
		j.log.InfoContext(ctx, "try join with new key")
		if err := j.restart(ctx); err != nil {
			return 0, fmt.Errorf("cannot join: %w", err)
		}
		j.restarted, j.sent = true, false
		return 0, nil
	case fault.Is(err, fault.AccessDenied) && j.restarted:
		// Refused with either key. A gateway can forge a refusal: the earlier request may have been admitted, and only
		// its key can collect that.
		return 0, errors.Join(fmt.Errorf("cannot join: %w", err), j.undo(ctx))
	case fault.Is(err, fault.Unreachable), fault.Is(err, fault.RateLimited):
		return j.absent(ctx, err)
	default:
		return 0, fmt.Errorf("cannot join: %w", err)
	}
}

// restart begins the join again with a new key.
func (j *joiner) restart(ctx context.Context) error {
	if err := j.hold(ctx); err != nil {
		return err
	}
	if err := j.join.Restart(ctx); err != nil {
		return err
	}
	return j.join.Reserve()
}

// undo puts the request back that a restart replaced.
func (j *joiner) undo(ctx context.Context) error {
	if err := j.hold(ctx); err != nil {
		return err
	}
	return j.join.Undo()
}

// provesAgain reports whether the attestor has another proof than the one that was refused.
func (j *joiner) provesAgain() bool {
	x, ok := j.attestor.(*x509pop)
	return ok && x.again()
}

// absent is a gateway that cannot be reached, or that has no time.
func (j *joiner) absent(ctx context.Context, err error) (wait time.Duration, end error) {
	wait = max(j.backoff.next(), session.RetryAfter(err))
	if j.waitsFor == "" {
		if wait > j.until.Sub(j.clock.Local()) {
			return 0, fmt.Errorf("cannot join: %w", err)
		}
		j.sayRetry(ctx, slog.LevelInfo, err, wait)
		return wait, nil
	}
	level := slog.LevelDebug // that it is still away is no news, for hours perhaps
	if !j.away {
		level = slog.LevelWarn
	}
	j.away = true
	j.sayRetry(ctx, level, err, wait)
	return wait, nil
}

func (j *joiner) sayRetry(ctx context.Context, level slog.Level, err error, wait time.Duration) {
	j.log.Log(ctx, level, "retry join", "error", err, "retry_in", wait.Round(time.Millisecond).String())
}

package agent

import (
	"context"
	"crypto"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
	"github.com/better-compute/bcd/tpmkey"
)

// Run is a node's daemon: it holds the node's session and renews its certificate until ctx ends, which is no error.
//
// Nothing that a gateway says ends it. A node that is refused, or whose certificate expired, parks: it stays up, says
// why, tries again slowly, and holds no lock meanwhile, so that an operator can join the machine again beside it.
func (a *Agent) Run(ctx context.Context, notify Notifier) error {
	return a.runDaemon(ctx, newBoard(nil), notify)
}

func (a *Agent) runDaemon(ctx context.Context, b *board, notify Notifier) error {
	if err := a.checkUser(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	b.update(func(s *Status) {
		s.Version, s.PID, s.State, s.Since = a.version, os.Getpid(), Connecting, a.clock.Local()
	})

	var served sync.WaitGroup
	defer func() {
		notify.stopping()
		cancel(nil)
		served.Wait()
	}()
	started := false
	start := func() {
		if started {
			return
		}
		started = true
		served.Go(func() {
			if err := a.serveStatus(ctx, b); err != nil {
				cancel(err)
			}
		})
		notify.ready()
	}
	for first := true; ; first = false {
		asked, err := b.untilAsked(ctx, func(ctx context.Context) error { return a.runUnlocked(ctx, b, notify, start) })
		if asked == nil && ctx.Err() == nil {
			var parked *parkedError
			if !errors.As(err, &parked) && first {
				return err // nothing ran yet: the operator who starts the daemon sees it end
			}
			asked, _ = b.untilAsked(ctx, func(ctx context.Context) error {
				notify.whileFed(ctx, func() {
					if err := a.autoRejoin(ctx, b, err); err != nil && ctx.Err() == nil {
						a.park(ctx, b, notify, err)
					}
				})
				return nil
			})
		}
		if asked != nil && ctx.Err() == nil {
			notify.whileFed(ctx, func() { a.handOver(ctx, b, notify, asked) })
		}
		if ctx.Err() != nil {
			return endOf(ctx)
		}
	}
}

// endOf tells an order to stop, which is no error, from a part that failed.
func endOf(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// parkedError ends a run that must wait for an operator.
type parkedError struct{ err error }

func (p *parkedError) Error() string { return p.err.Error() }
func (p *parkedError) Unwrap() error { return p.err }

// runUnlocked takes the data directory's lock, runs the node and gives the lock back.
func (a *Agent) runUnlocked(ctx context.Context, b *board, notify Notifier, started func()) (err error) {
	if notify.whileFed(ctx, func() { err = a.resumeJoin(ctx, b, notify, started) }); err != nil {
		return err
	}
	dir, store, err := a.open()
	if err != nil {
		return err
	}
	defer dir.Close()
	// Nothing is written on a machine that never joined, nor beside an identity that needs an operator.
	if _, _, err := store.Load(); err != nil {
		if _, begun, pendingErr := store.PendingJoin(); !isNoIdentity(err) || !begun && pendingErr == nil {
			return err
		}
	}
	unlock, err := dir.Lock()
	if err != nil {
		return whoWaits(store, err)
	}
	defer unlock()
	if err := store.Recover(); err != nil {
		return err
	}
	id, key, err := store.Load()
	if isNoIdentity(err) {
		p, _, pendingErr := store.PendingJoin()
		if pendingErr != nil {
			return pendingErr
		}
		return stillWaits(p, err)
	}
	if err != nil {
		return err
	}
	if err := b.runs(id.Role); err != nil {
		return err
	}
	n := &node{Agent: a, dir: dir, board: b, notify: notify, renewed: make(chan struct{}, 1), id: id, key: key}
	n.bootID = bootID(a.cfg.HostRoot)
	n.showIdentity()
	started()
	return n.live(ctx)
}

// park waits until it is time to try again, or until the identity on disk is another one.
func (a *Agent) park(ctx context.Context, b *board, notify Notifier, err error) {
	pause := parkAtLeast + uniform(parkAtMost-parkAtLeast)
	if fault.Is(err, fault.Busy) {
		pause = parkedLook // another bcd has the data directory: it may end at any time
	}
	a.log.ErrorContext(ctx, "park node", "error", err, "hint", fault.HintOf(err), "next_try", pause.Round(time.Second).String())
	b.update(func(s *Status) {
		s.State, s.Since, s.Session = Parked, a.clock.Local(), nil
		s.problem(err)
	})
	notify.status("parked: " + err.Error())
	was := a.identityMark()
	until := a.clock.Local().Add(pause)
	look := time.NewTicker(parkedLook)
	defer look.Stop()
	for a.clock.Local().Before(until) {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if a.identityMark() != was {
				a.log.InfoContext(ctx, "find another identity")
				return
			}
		}
	}
}

// identityMark changes when the identity on disk does.
func (a *Agent) identityMark() string {
	id, _, err := a.stored()
	if err != nil {
		return "error: " + err.Error()
	}
	return serialText(id.Leaf())
}

// node is a running node: an identity, under the data directory's lock.
type node struct {
	*Agent
	dir     *statefile.Dir
	board   *board
	notify  Notifier
	bootID  string
	renewed chan struct{} // has a value when the identity changed

	mu  sync.Mutex
	id  *identity.Identity
	key crypto.Signer

	connecting, renewing pulse
}

// run holds the session and renews until ctx ends or the node must park.
func (n *node) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var loops sync.WaitGroup
	loops.Go(func() { cancel(n.keepConnected(ctx)) })
	loops.Go(func() { cancel(n.keepRenewed(ctx)) })
	loops.Go(func() { n.notify.feed(ctx, &n.connecting, &n.renewing) })
	loops.Wait()
	return context.Cause(ctx)
}

// current returns the identity and its key.
func (n *node) current() (*identity.Identity, crypto.Signer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.id, n.key
}

// next is the store that makes the successor of the current key. That of a key in the TPM is made there too, or not at all: a
// TPM that is away for a moment is no reason for a weaker key.
func (n *node) next() *identity.Store {
	id, key := n.current()
	keys := n.keys
	if tpmkey.KindOf(key) == tpmkey.KindTPM || namesAK(id.Leaf()) {
		keys = keys.Require()
	}
	return identity.New(n.dir, keys)
}

func (n *node) replace(id *identity.Identity, key crypto.Signer) {
	n.mu.Lock()
	n.id, n.key = id, key
	n.mu.Unlock()
	n.showIdentity()
	select {
	case n.renewed <- struct{}{}:
	default:
	}
}

func (n *node) showIdentity() {
	id, key := n.current()
	n.board.update(func(s *Status) { s.Identity = identityStatus(id, key) })
}

// certificateAttrs are the attributes that a certificate is logged with.
func certificateAttrs(id *identity.Identity) slog.Attr {
	leaf := id.Leaf()
	return slog.Group("certificate", "serial", serialText(leaf), "not_after", leaf.NotAfter.UTC().Format(time.RFC3339), "renew_at", identity.ScheduleOf(id).RenewAt.Format(time.RFC3339))
}

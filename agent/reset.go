package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/agent/credential"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// ResetPlan is what a reset would do to a machine's files.
type ResetPlan struct {
	// DataDir is the folder that they are in.
	DataDir string
	// Moves are the files that get other names there, with [ResetTime] for the time in them.
	Moves []identity.Move
	// Stays are the names of the files that keep theirs.
	Stays []string
	// NodeID is the node that the machine is; empty where its identity does not load.
	NodeID string
}

// ResetTime stands for the time in the names of a [ResetPlan].
const ResetTime = "<UTC time>"

// PlanReset says what [JoinOptions.Reset] would move. It changes nothing, and needs root as the reset does.
func (a *Agent) PlanReset() (ResetPlan, error) {
	if err := a.needsRoot(); err != nil {
		return ResetPlan{}, err
	}
	dir, store, err := a.open()
	if err != nil {
		return ResetPlan{}, err
	}
	defer dir.Close()
	plan := ResetPlan{DataDir: dir.Path()}
	moves, stays, err := store.ResetPlan()
	if err != nil {
		return ResetPlan{}, err
	}
	for _, name := range moves {
		plan.Moves = append(plan.Moves, identity.Move{From: name, To: identity.MovedName(name, ".reset-"+ResetTime)})
	}
	plan.Stays = stays
	if id, _, err := store.Load(); err == nil {
		plan.NodeID = id.NodeID
	}
	return plan, nil
}

func (a *Agent) needsRoot() error {
	if uid := a.euid(); uid != 0 {
		return fault.New(fault.NotRoot, "run it as root", "cannot reset the identity: this is the user with id %d, not root", uid)
	}
	return nil
}

// reset joins the machine again beside its identity, which is used and renewed meanwhile, and moves that aside once there is a
// verified answer.
func (j *joiner) reset(ctx context.Context) (JoinResult, error) {
	pending, _, err := j.store.PendingJoin()
	if err != nil {
		return JoinResult{}, err
	}
	if pending.Reset && pending.Answered {
		if done, err := j.finish(ctx); err != nil || done.NodeID != "" {
			return done, err
		}
		pending = identity.PendingJoin{}
	}
	if j.options.NoJoin {
		return j.moveAside(ctx)
	}
	id, key, err := j.store.Load()
	if err != nil {
		id, key = nil, nil
	}
	if j.options.roleOpen && id != nil {
		j.options.Role = askedRole(j.options, id)
	}
	if pending.Attestor != j.options.Attestor || pending.Role != j.options.Role {
		j.sayAbandoned(ctx, pending)
		pending = identity.PendingJoin{}
	}
	if j.options.Attestor == AttestorX509PoP {
		if j.attestor, err = newX509PoP(j.Agent, id, key, err); err != nil {
			return JoinResult{}, err
		}
		j.known = id
		if namesAK(id.Leaf()) {
			j.store = identity.New(j.dir, j.keys.Require()) // the key that the TPM vouches for is one of its own
		}
	} else if j.attestor, err = j.newAttestor(ctx, j.options); errors.Is(err, credential.ErrNone) {
		return j.withoutCredential(ctx, id, err)
	} else if err != nil {
		return JoinResult{}, whichToken(pending, err)
	}
	if j.claims, err = j.claimsFor(ctx, j.options.Attestor); err != nil {
		return JoinResult{}, err
	}
	if err := j.attestor.check(ctx, j.claims); err != nil {
		return JoinResult{}, err
	}
	result, err := j.run(ctx)
	if err != nil {
		return JoinResult{}, j.refusedReset(err)
	}
	result.TokenLeft = j.attestor.admitted()
	return result, nil
}

// askedRole is the role that a reset asks for where nobody named one: what the machine is.
func askedRole(o JoinOptions, id *identity.Identity) string {
	if id.Role == identity.RoleSite && o.Attestor != AttestorDiscovery {
		return identity.RoleSite
	}
	return o.Role
}

// finish ends a reset that stopped after its answer. It returns the zero result where there was none to give: the old files
// alone were moved.
func (j *joiner) finish(ctx context.Context) (JoinResult, error) {
	if err := j.hold(ctx); err != nil {
		return JoinResult{}, err
	}
	if err := j.store.Recover(); err != nil {
		return JoinResult{}, err
	}
	id, key, err := j.store.Load()
	if isNoIdentity(err) {
		return JoinResult{}, nil
	}
	if err != nil {
		return JoinResult{}, err
	}
	return JoinResult{NodeID: id.NodeID, Key: keyKind(key)}, nil
}

// withoutCredential is a reset that nobody gave a token to: it ends after the move. A certificate that is still good is not
// given up because somebody forgot the token.
func (j *joiner) withoutCredential(ctx context.Context, id *identity.Identity, missing error) (JoinResult, error) {
	if id != nil {
		if end := id.Leaf().NotAfter; j.clock.Local().Before(end) {
			return JoinResult{}, fault.New(fault.Token, "give the token: bcd join --reset --yes < token-file, or --token-file; to move the identity aside all the same, add --no-join",
				"cannot reset the identity without a join token while its certificate is good until %s: %w", end.UTC().Format(time.RFC3339), missing)
		}
	}
	return j.moveAside(ctx)
}

// moveAside moves the identity aside and joins nothing.
func (j *joiner) moveAside(ctx context.Context) (JoinResult, error) {
	if err := j.hold(ctx); err != nil {
		return JoinResult{}, err
	}
	moved, err := j.store.MoveIdentity(j.clock.Local())
	if err != nil {
		return JoinResult{}, fmt.Errorf("cannot reset the identity: %w", err)
	}
	return JoinResult{Moved: moved, NotJoined: true}, nil
}

// refusedReset adds to a refusal what it most often is: the control plane knows the machine.
func (j *joiner) refusedReset(err error) error {
	if !fault.Is(err, fault.AccessDenied) {
		return err
	}
	hint := "nothing was moved; a machine that the control plane knows needs a token that was made with --allow-reclaim; the reason is in: better-compute events list"
	switch j.options.Attestor {
	case AttestorX509PoP:
		hint = "nothing was moved; join with a token: " + fault.HintJoinAgain
	case AttestorTPM:
		hint = "nothing was moved; the reason is in: better-compute events list"
	}
	return fault.New(fault.AccessDenied, hint, "%w", err)
}

// hold takes the data directory's lock, from a running daemon where one has it, and with it the join that has begun. It does
// nothing while the lock is held.
func (j *joiner) hold(ctx context.Context) error {
	if j.unlock != nil {
		return nil
	}
	unlock, err := j.dir.Lock()
	if fault.Is(err, fault.Busy) && !j.options.unattended {
		back, refused := j.askHandover(ctx)
		if refused != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fault.New(fault.Busy, fault.HintOf(refused), "%w; the daemon does not hand over: %w", whoWaits(j.store, err), refused)
		}
		release, err := lockSoon(ctx, j.dir)
		if err != nil {
			back()
			return err
		}
		j.unlock = func() {
			release()
			back()
		}
	} else if err != nil {
		return err
	} else {
		j.unlock = unlock
	}
	if j.join == nil {
		return nil
	}
	err = j.join.Hold()
	if err == nil {
		err = j.join.Reserve()
	}
	if err != nil {
		j.yield() // whoever goes on without the lock would not ask again whether the join still stands
	}
	return err
}

// yield gives the lock back for as long as a reset only waits: the daemon goes on with the old identity.
func (j *joiner) yield() {
	if !j.options.Reset || j.unlock == nil {
		return
	}
	if j.join != nil {
		j.join.Close()
	}
	j.unlock()
	j.unlock = nil
}

package agent

import (
	"context"
	"errors"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// autoRejoin joins a node again by its TPM that would park because its certificate expired, where [tpm] auto_rejoin allows it:
// the reset that an operator would run. It returns nil once the machine has joined, and else why the node parks.
func (a *Agent) autoRejoin(ctx context.Context, b *board, parked error) error {
	if !a.cfg.TPM.AutoRejoin {
		return parked
	}
	id, _, err := a.stored()
	if err != nil || b.runs(id.Role) != nil || id.Role != identity.RoleNode || !namesAK(id.Leaf()) || !a.clock.Proof(0).After(id.Leaf().NotAfter) {
		return parked
	}
	if err := a.checkAK(ctx, id.Leaf()); err != nil { // another TPM is another machine
		return fault.New(fault.CodeOf(err), fault.HintOf(err), "%w; cannot join again by the TPM: %w", parked, err)
	}
	waiting, err := a.waitingReset()
	if err != nil {
		return errors.Join(parked, err)
	}
	result, err := a.Join(ctx, JoinOptions{
		Reset: true, Attestor: AttestorTPM, Role: id.Role, NoWait: true, Patience: leastTry, unattended: true, sameRequest: waiting,
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fault.New(fault.CodeOf(err), fault.HintOf(err), "%w; joining again by the TPM failed: %w", parked, err)
	}
	a.log.InfoContext(ctx, "join again by TPM", "node", result.NodeID, "was", id.NodeID)
	return nil
}

// lostForGood reports whether only autoRejoin can still bring the node back: its certificate expired, and the TPM has lost the
// key with which it could be shown.
func (n *node) lostForGood(err error) bool {
	id, _ := n.current()
	return n.cfg.TPM.AutoRejoin && fault.Is(err, fault.TPMKeyLost) && namesAK(id.Leaf()) && n.clock.Proof(0).After(id.Leaf().NotAfter)
}

// waitingReset reports whether a reset by the TPM waits for an operator: then no other request is filed.
func (a *Agent) waitingReset() (bool, error) {
	dir, store, err := a.open()
	if err != nil {
		return false, err
	}
	defer dir.Close()
	p, begun, err := store.PendingJoin()
	return begun && p.Reset && p.Attestor == AttestorTPM && p.RequestID != "", err
}

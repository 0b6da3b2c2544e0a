// Package nodes is what operators do to nodes: adopt, cordon, uncordon, revoke their identities, delete.
//
// Each is one transaction with its event and its audit row, and each may be repeated: what is done already is not done or
// told again. Who may call is the caller's to have decided: httpapi authorizes before it calls.
//
// The package admits nobody and ends no session itself. It changes rows, and whoever holds a session is woken by the store
// to look at its row again. What a machine that was deleted may do next is joinservice's to decide.
package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/better-compute/bcd/controlplane/acceptance"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// The reasons of revoked certificates.
const (
	// RevokedIdentity is the reason of [Service.RevokeIdentity].
	RevokedIdentity = "revoked"
	// RevokedDeleted is the reason of [Service.Delete].
	RevokedDeleted = "deleted"
)

// Service changes nodes. All methods are safe for concurrent use. Each acts on behalf of actor, the id of an API key, on a
// node of the tenant, and returns the node as it is afterwards. Another tenant's node does not exist.
type Service struct {
	Store store.Store
}

// Adopt makes an adopting node ready for work, whatever its acceptance checks found: the operator vouches for it. A node
// that is adopted already is returned as it is.
func (s *Service) Adopt(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error) {
	return s.change(ctx, tenantID, nodeID, "adopt the node", func(tx *store.Tx, n store.Node) error {
		if n.State == store.NodeAdopted {
			return nil
		}
		if err := notRetired(n); err != nil {
			return err
		}
		left := slices.DeleteFunc(n.Conditions, func(c store.Condition) bool { return c.Type == acceptance.ConditionFailed })
		if err := tx.SetNodeConditions(n.ID, left); err != nil {
			return err
		}
		if err := tx.SetNodeState(n.ID, store.NodeAdopted); err != nil {
			return err
		}
		return tell(tx, n, events.ActionNodeAdopted, actor, events.NodeAdopted{NodeID: n.ID})
	})
}

// Cordon sets a node aside: it stays connected and renews, and gets no new work. That is the operator's decision, so it
// outlives a reclaim; only [Service.Uncordon] ends it.
func (s *Service) Cordon(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error) {
	return s.change(ctx, tenantID, nodeID, "cordon the node", func(tx *store.Tx, n store.Node) error {
		if err := notRetired(n); err != nil || !n.CordonedAt.IsZero() {
			return err
		}
		if err := tx.CordonNode(n.ID); err != nil {
			return err
		}
		return tell(tx, n, events.ActionNodeCordoned, actor, events.NodeCordoned{NodeID: n.ID, CordonedBy: actor})
	})
}

// Uncordon lets a node take work again.
func (s *Service) Uncordon(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error) {
	return s.change(ctx, tenantID, nodeID, "uncordon the node", func(tx *store.Tx, n store.Node) error {
		if err := notRetired(n); err != nil || n.CordonedAt.IsZero() {
			return err
		}
		if err := tx.UncordonNode(n.ID); err != nil {
			return err
		}
		return tell(tx, n, events.ActionNodeUncordoned, actor, events.NodeUncordoned{NodeID: n.ID, UncordonedBy: actor})
	})
}

// RevokeIdentity revokes every certificate of a node. Its session ends with them, and nothing that was signed before
// brings the node back: only a new join does.
func (s *Service) RevokeIdentity(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error) {
	return s.change(ctx, tenantID, nodeID, "revoke the node's identity", func(tx *store.Tx, n store.Node) error {
		return revoke(tx, n, actor, RevokedIdentity)
	})
}

// Delete retires a node for good: every certificate is revoked, its session ends, and its machine is free to join as a new
// node. The row stays, so that what refers to it and a repeat of its join find what became of it.
func (s *Service) Delete(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error) {
	return s.change(ctx, tenantID, nodeID, "delete the node", func(tx *store.Tx, n store.Node) error {
		if !n.DeletedAt.IsZero() {
			return nil
		}
		if err := revoke(tx, n, actor, RevokedDeleted); err != nil {
			return err
		}
		if err := tx.DeleteNode(n.ID); err != nil {
			return err
		}
		return tell(tx, n, events.ActionNodeDeleted, actor, events.NodeDeleted{
			NodeID: n.ID, PoolID: n.PoolID, SiteID: n.SiteID, DeletedBy: actor,
		})
	})
}

// change runs fn on a node of the tenant in one transaction.
func (s *Service) change(
	ctx context.Context, tenantID, nodeID, what string, fn func(*store.Tx, store.Node) error,
) (store.Node, error) {
	var n store.Node
	err := s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		n, err = tx.Node(nodeID)
		if errors.Is(err, store.ErrNotFound) || err == nil && n.TenantID != tenantID {
			return fault.New(fault.NotFound, "", "no node %q", nodeID)
		}
		if err != nil {
			return err
		}
		if err := fn(tx, n); err != nil {
			return err
		}
		n, err = tx.Node(nodeID)
		return err
	})
	if err != nil {
		return store.Node{}, fmt.Errorf("cannot %s: %w", what, err)
	}
	return n, nil
}

func notRetired(n store.Node) error {
	if n.State == store.NodeRetired {
		return fault.New(fault.InvalidState, "a machine whose node was deleted joins again as a new node", "node %q is retired", n.ID)
	}
	return nil
}

// revoke revokes what certificates the node has left, with an event and an audit row for each.
func revoke(tx *store.Tx, n store.Node, actor, reason string) error {
	revoked, err := tx.RevokeCerts(n.ID, n.IdentityGeneration, reason)
	if err != nil {
		return err
	}
	for _, c := range revoked {
		if err := tell(tx, n, events.ActionIdentityRevoked, actor, events.CertificateRevoked{
			NodeID: n.ID, Serial: c.Serial, IdentityGeneration: c.Generation, Reason: reason,
		}); err != nil {
			return err
		}
	}
	return nil
}

// tell publishes the event and records it in the audit log.
func tell(tx *store.Tx, n store.Node, action events.Action, actor string, p events.Payload) error {
	if err := tx.Publish(n.TenantID, p); err != nil {
		return err
	}
	return tx.Record(n.TenantID, action, actor, n.ID, p)
}

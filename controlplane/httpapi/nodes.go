package httpapi

import (
	"context"
	"errors"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// revokedByOperator is the reason in the events of nodes.revokeIdentity.
const revokedByOperator = "revoked"

func (a *API) listNodes(ctx context.Context, caller Caller, in ListNodes) (List[Node], error) {
	resource := resourceTenant + in.TenantID
	if in.PoolID != "" {
		if err := checkID("poolId", store.PrefixPool, in.PoolID); err != nil {
			return List[Node]{}, err
		}
		resource = resourcePool + in.PoolID
	}
	if err := a.authorize(ctx, caller, in.TenantID, actionReadNodes, resource); err != nil {
		return List[Node]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixNode)
	if err != nil {
		return List[Node]{}, err
	}
	var nodes []store.Node
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		if in.PoolID == "" {
			nodes, err = tx.NodesOfTenant(in.TenantID, in.Cursor, limit+1)
			return err
		}
		if pool, err := tx.Pool(in.PoolID); errors.Is(err, store.ErrNotFound) || err == nil && pool.TenantID != in.TenantID {
			return notFound("pool", in.PoolID)
		} else if err != nil {
			return err
		}
		nodes, err = tx.NodesOfPool(in.PoolID, in.Cursor, limit+1)
		return err
	})
	return listOf(nodes, limit, func(n store.Node) string { return n.ID }, a.nodeOf), err
}

func (a *API) getNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	if err := a.authorizeNode(ctx, caller, in, actionReadNodes); err != nil {
		return Node{}, err
	}
	var n store.Node
	err := a.store.Read(ctx, func(tx *store.Tx) (err error) {
		n, err = nodeOfTenant(tx, in)
		return err
	})
	return a.nodeOf(n), err
}

// revokeIdentity revokes every certificate of a node. Its session ends with them, and nothing that was signed before
// brings the node back: only a new join does.
func (a *API) revokeIdentity(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	if err := a.authorizeNode(ctx, caller, in, actionRevokeIdentity); err != nil {
		return Node{}, err
	}
	var n store.Node
	err := a.store.Write(ctx, func(tx *store.Tx) (err error) {
		if n, err = nodeOfTenant(tx, in); err != nil {
			return err
		}
		revoked, err := tx.RevokeCerts(n.ID, n.IdentityGeneration, revokedByOperator)
		if err != nil {
			return err
		}
		for _, c := range revoked {
			payload := events.CertificateRevoked{
				NodeID: n.ID, Serial: c.Serial, IdentityGeneration: c.Generation, Reason: revokedByOperator,
			}
			if err := tx.Publish(n.TenantID, payload); err != nil {
				return err
			}
			if err := tx.Record(n.TenantID, events.ActionIdentityRevoked, caller.KeyID, n.ID, payload); err != nil {
				return err
			}
		}
		return nil
	})
	return a.nodeOf(n), err
}

func (a *API) authorizeNode(ctx context.Context, caller Caller, in NodeRef, action string) error {
	if err := checkID("nodeId", store.PrefixNode, in.NodeID); err != nil {
		return err
	}
	return a.authorize(ctx, caller, in.TenantID, action, resourceNode+in.NodeID)
}

// nodeOfTenant returns the node where the tenant has it.
func nodeOfTenant(tx *store.Tx, in NodeRef) (store.Node, error) {
	n, err := tx.Node(in.NodeID)
	if errors.Is(err, store.ErrNotFound) || err == nil && n.TenantID != in.TenantID {
		return store.Node{}, notFound("node", in.NodeID)
	}
	return n, err
}

func (a *API) nodeOf(n store.Node) Node {
	return Node{
		ID:                 n.ID,
		PoolID:             n.PoolID,
		SiteID:             n.SiteID,
		State:              string(n.State),
		Role:               n.Role,
		Trust:              string(n.Trust),
		IdentityGeneration: n.IdentityGeneration,
		HardwareKeyTrusted: n.HardwareKeyTrusted,
		Connected:          a.connected(n.ID),
		Hostname:           n.Claims.Hostname,
		JoinedAt:           n.JoinedAt,
	}
}

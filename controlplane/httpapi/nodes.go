package httpapi

import (
	"context"
	"errors"

	"github.com/better-compute/bcd/controlplane/store"
)

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
	states, err := nodeStates(in)
	if err != nil {
		return List[Node]{}, err
	}
	var found []nodeRow
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		var nodes []store.Node
		if in.PoolID == "" {
			nodes, err = tx.NodesOfTenant(in.TenantID, in.Cursor, limit+1, states...)
		} else if err = poolOfTenant(tx, in.TenantID, in.PoolID); err == nil {
			nodes, err = tx.NodesOfPool(in.PoolID, in.Cursor, limit+1, states...)
		}
		if err != nil {
			return err
		}
		found, err = withCertificates(tx, nodes)
		return err
	})
	return listOf(found, limit, func(n nodeRow) string { return n.ID }, a.nodeOf), err
}

// nodeStates returns the states that a list asks for.
func nodeStates(in ListNodes) ([]store.NodeState, error) {
	switch {
	case in.State != nil:
		switch state := store.NodeState(*in.State); state {
		case store.NodeAdopting, store.NodeAdopted, store.NodeRetired:
			return []store.NodeState{state}, nil
		default:
			return nil, invalid(`field "state" must be %q, %q or %q`, store.NodeAdopting, store.NodeAdopted, store.NodeRetired)
		}
	case in.IncludeRetired:
		return []store.NodeState{store.NodeAdopting, store.NodeAdopted, store.NodeRetired}, nil
	default:
		return []store.NodeState{store.NodeAdopting, store.NodeAdopted}, nil
	}
}

// poolOfTenant checks that the tenant has the pool.
func poolOfTenant(tx *store.Tx, tenantID, poolID string) error {
	_, err := tx.PoolOfTenant(tenantID, poolID)
	if errors.Is(err, store.ErrNotFound) {
		return notFound("pool", poolID)
	}
	return err
}

// getNode shows a node, retired or not.
func (a *API) getNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	if err := a.authorizeNode(ctx, caller, in, actionReadNodes); err != nil {
		return Node{}, err
	}
	return a.showNode(ctx, in)
}

func (a *API) showNode(ctx context.Context, in NodeRef) (Node, error) {
	var row nodeRow
	err := a.store.Read(ctx, func(tx *store.Tx) (err error) {
		row.Node, err = tx.Node(in.NodeID)
		if errors.Is(err, store.ErrNotFound) || err == nil && row.TenantID != in.TenantID {
			return notFound("node", in.NodeID)
		}
		if err != nil {
			return err
		}
		return row.readCertificate(tx)
	})
	return a.nodeOf(row), err
}

func (a *API) adoptNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	return a.changeNode(ctx, caller, in, actionAdoptNodes, a.nodes.Adopt)
}

func (a *API) cordonNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	return a.changeNode(ctx, caller, in, actionCordonNodes, a.nodes.Cordon)
}

func (a *API) uncordonNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	return a.changeNode(ctx, caller, in, actionCordonNodes, a.nodes.Uncordon)
}

func (a *API) deleteNode(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	return a.changeNode(ctx, caller, in, actionDeleteNodes, a.nodes.Delete)
}

func (a *API) revokeIdentity(ctx context.Context, caller Caller, in NodeRef) (Node, error) {
	return a.changeNode(ctx, caller, in, actionRevokeIdentity, a.nodes.RevokeIdentity)
}

// changeNode does one thing to one node and shows the node as it is then.
func (a *API) changeNode(
	ctx context.Context, caller Caller, in NodeRef, action string,
	change func(ctx context.Context, actor, tenantID, nodeID string) (store.Node, error),
) (Node, error) {
	if err := a.authorizeNode(ctx, caller, in, action); err != nil {
		return Node{}, err
	}
	if _, err := change(ctx, caller.KeyID, in.TenantID, in.NodeID); err != nil {
		return Node{}, err
	}
	return a.showNode(ctx, in)
}

func (a *API) authorizeNode(ctx context.Context, caller Caller, in NodeRef, action string) error {
	if err := checkID("nodeId", store.PrefixNode, in.NodeID); err != nil {
		return err
	}
	return a.authorize(ctx, caller, in.TenantID, action, resourceNode+in.NodeID)
}

package store

import (
	"cmp"
	"slices"
)

// NodesOfPool lists a pool's nodes in the given states, or in every state where none is given, oldest first, from the one
// after the id on, at most limit.
func (tx *Tx) NodesOfPool(poolID, after string, limit int, states ...NodeState) ([]Node, error) {
	return tx.nodesOf(`pool_id`, poolID, after, limit, states)
}

// NodesOfTenant lists a tenant's nodes in the given states, or in every state where none is given, oldest first, from the
// one after the id on, at most limit.
func (tx *Tx) NodesOfTenant(tenantID, after string, limit int, states ...NodeState) ([]Node, error) {
	return tx.nodesOf(`tenant_id`, tenantID, after, limit, states)
}

// nodesOf asks for one state at a time, each a range of an index: a few nodes of a rare state are found without reading
// the many of another.
func (tx *Tx) nodesOf(column, owner, after string, limit int, states []NodeState) ([]Node, error) {
	if len(states) == 0 {
		states = []NodeState{NodeAdopting, NodeAdopted, NodeRetired}
	}
	var all []Node
	for _, state := range states {
		found, err := many(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes
			WHERE `+column+` = ? AND state = ? AND id > ? ORDER BY id LIMIT ?`, owner, state, after, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b Node) int { return cmp.Compare(a.ID, b.ID) })
	return all[:min(limit, len(all))], nil
}

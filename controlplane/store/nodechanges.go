package store

// CordonNode sets a node aside at the transaction's time. One that is set aside already keeps its time.
func (tx *Tx) CordonNode(id string) error {
	return tx.update("cordon the node", `UPDATE nodes SET cordoned_at = COALESCE(cordoned_at, ?) WHERE id = ?`, millis(tx.now), id)
}

// UncordonNode lets a node take work again.
func (tx *Tx) UncordonNode(id string) error {
	return tx.update("uncordon the node", `UPDATE nodes SET cordoned_at = NULL WHERE id = ?`, id)
}

// DeleteNode makes a node a retired row, which nothing decides by any more: its conditions end, it leaves the queue of
// the controllers and the authorization projection, and what names its machine is freed. Its certificates stay what they
// are. It wakes the node's watchers.
func (tx *Tx) DeleteNode(id string) error {
	if err := tx.SetNodeState(id, NodeRetired); err != nil {
		return err
	}
	if err := tx.update("delete the node", `UPDATE nodes SET deleted_at = COALESCE(deleted_at, ?), conditions = NULL WHERE id = ?`,
		millis(tx.now), id); err != nil {
		return err
	}
	if err := tx.FreeMachine(id); err != nil {
		return err
	}
	if err := tx.insert("forget the node's authorization", `DELETE FROM node_authz WHERE node_id = ?`, id); err != nil {
		return err
	}
	return tx.insert("take the deleted node from the queue", `DELETE FROM controller_queue WHERE node_id = ?`, id)
}

// FreeMachine takes from a node everything that says which machine it is, so that the machine is nobody's: it can join as
// a new node.
func (tx *Tx) FreeMachine(id string) error {
	return tx.update("free the node's machine", `UPDATE nodes SET hardware_key = NULL, hardware_key_trusted = FALSE, ek_sha256 = NULL
		WHERE id = ?`, id)
}

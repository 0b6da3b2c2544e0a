package store

import "time"

// QueueTopic is the [Store.Watch] topic of nodes that wait for their controllers.
const QueueTopic = "queue"

// Queued is a node that waits for its controllers.
type Queued struct {
	NodeID   string
	Reason   string
	QueuedAt time.Time
}

// Enqueue queues a node for its controllers; a node that waits already keeps its place and gets the new reason.
func (tx *Tx) Enqueue(nodeID, reason string) error {
	tx.Notify(QueueTopic)
	return tx.insert("queue the node",
		`INSERT INTO controller_queue (node_id, reason, queued_at) VALUES (?, ?, ?)
		 ON CONFLICT (node_id) DO UPDATE SET reason = excluded.reason`, nodeID, reason, millis(tx.now))
}

// Queue lists the nodes that wait, longest first, at most limit.
func (tx *Tx) Queue(limit int) ([]Queued, error) {
	return many(tx, func(s scanner) (q Queued, err error) {
		err = s.Scan(&q.NodeID, &q.Reason, timeOf{&q.QueuedAt})
		return q, err
	}, `SELECT node_id, reason, queued_at FROM controller_queue ORDER BY queued_at, node_id LIMIT ?`, limit)
}

// Dequeue takes a node from the queue.
func (tx *Tx) Dequeue(nodeID string) error {
	return tx.update("take the node from the queue", `DELETE FROM controller_queue WHERE node_id = ?`, nodeID)
}

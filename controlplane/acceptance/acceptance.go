// Package acceptance takes the nodes that wait for their controllers, runs the acceptance checks of those that are still
// adopting, and adopts the ones that pass.
//
// A node of a pool with acceptance checks comes into the queue with its first Hello, and again after each reclaim; any
// other node is adopted already when it comes. A node that fails stays adopting, with the condition AcceptanceFailed, until
// its cause is gone and an operator adopts it.
//
// The package opens no connection to a node: it judges what the node said of itself. What it judges by is [Checks].
package acceptance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// ConditionFailed is the condition of a node that did not pass.
const ConditionFailed = "AcceptanceFailed"

const (
	// batch is how many nodes are read from the queue at once.
	batch = 100
	// poll is how often the queue is read without being told: another process may have filled it.
	poll = 30 * time.Second
)

// Check is one acceptance check. Its error says to an operator what is wrong with the node.
type Check func(store.Node) error

// Checks are the checks that every node passes.
var Checks = []Check{SameMachine}

// SameMachine checks that the machine that opened the session is the one that joined: that its hardware gives the key that
// the join's claims gave.
func SameMachine(n store.Node) error {
	if !bytes.Equal(n.HelloClaims, n.HardwareKey) {
		return fmt.Errorf("the machine's hardware is not what joined: its key is %x and was %x", n.HelloClaims, n.HardwareKey)
	}
	return nil
}

// Controller works off the queue.
type Controller struct {
	Store store.Store
	// Checks run in their order; the first that fails decides.
	Checks []Check
	Log    *slog.Logger
}

// Run works until ctx ends, and then returns nil. A database that fails is tried again.
func (c *Controller) Run(ctx context.Context) error {
	changed, stop := c.Store.Watch(store.QueueTopic)
	defer stop()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		if err := c.drain(ctx); err != nil && ctx.Err() == nil {
			c.Log.ErrorContext(ctx, "accept nodes", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

// drain works off what is in the queue, each node in a transaction of its own. A node whose transaction fails stays, for
// the next time; those behind it do not wait for it.
func (c *Controller) drain(ctx context.Context) error {
	for {
		var waiting []store.Queued
		err := c.Store.Read(ctx, func(tx *store.Tx) (err error) {
			waiting, err = tx.Queue(batch)
			return err
		})
		if err != nil || len(waiting) == 0 {
			return err
		}
		for _, q := range waiting {
			if e := c.Store.Write(ctx, func(tx *store.Tx) error { return c.accept(tx, q.NodeID) }); e != nil {
				err = errors.Join(err, fmt.Errorf("node %q: %w", q.NodeID, e))
			}
		}
		if err != nil {
			return err
		}
	}
}

func (c *Controller) accept(tx *store.Tx, nodeID string) error {
	err := tx.Dequeue(nodeID)
	if errors.Is(err, store.ErrNotFound) {
		return nil // another process was quicker
	}
	if err != nil {
		return err
	}
	n, err := tx.Node(nodeID)
	if err != nil || n.State != store.NodeAdopting || n.HelloGeneration != n.IdentityGeneration {
		return err // of no use yet: a node that was reclaimed while it waited comes again with the first Hello of its new identity
	}
	if err := tx.Publish(n.TenantID, events.AcceptanceStarted{NodeID: n.ID}); err != nil {
		return err
	}
	others := slices.DeleteFunc(n.Conditions, func(c store.Condition) bool { return c.Type == ConditionFailed })
	for _, check := range c.Checks {
		if failed := check(n); failed != nil {
			return fail(tx, n, others, failed.Error())
		}
	}
	if err := tx.SetNodeConditions(n.ID, others); err != nil {
		return err
	}
	if err := tx.SetNodeState(n.ID, store.NodeAdopted); err != nil {
		return err
	}
	adopted := events.NodeAdopted{NodeID: n.ID}
	if err := tx.Publish(n.TenantID, adopted); err != nil {
		return err
	}
	return tx.Record(n.TenantID, events.ActionNodeAdopted, "acceptance", n.ID, adopted)
}

func fail(tx *store.Tx, n store.Node, others []store.Condition, message string) error {
	failed := store.Condition{Type: ConditionFailed, Message: message, Since: tx.Now()}
	if err := tx.SetNodeConditions(n.ID, append(others, failed)); err != nil {
		return err
	}
	return tx.Publish(n.TenantID, events.NodeAcceptanceFailed{NodeID: n.ID, Message: message})
}

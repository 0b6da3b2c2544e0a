package store

import (
	"errors"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
)

// EventFilter selects events of a stream. The zero value selects all.
type EventFilter struct {
	// After is a sequence number: only later events.
	After int64
	// Type, where it is not empty, is the only type.
	Type events.Type
	// Since, where it is not zero, is the time that the list begins at. Events are in the order of their numbers; where the
	// clock was set back in between, that is not quite the order of their times.
	Since time.Time
}

// EventsMatching lists a tenant's events that the filter selects, oldest first, at most limit.
func (tx *Tx) EventsMatching(tenantID string, f EventFilter, limit int) ([]events.Event, error) {
	after := f.After
	if !f.Since.IsZero() {
		var err error
		if after, err = tx.lastBefore(tenantID, after, f.Since); err != nil {
			return nil, err
		}
	}
	if f.Type == "" {
		return tx.Events(tenantID, after, limit)
	}
	// The numbers come from the index alone: over rows, the planner would read the stream instead.
	return many(tx, scanEvent, `SELECT `+eventColumns+` FROM events WHERE tenant_id = ? AND seq IN
		(SELECT seq FROM events WHERE tenant_id = ? AND type = ? AND seq > ? ORDER BY seq LIMIT ?) ORDER BY seq`,
		tenantID, tenantID, f.Type, after, limit)
}

// lastBefore returns the number of the last event before a time, or after where that is later. It bisects the stream,
// whose times grow with its numbers: an index on the time would cost every event a page.
func (tx *Tx) lastBefore(tenantID string, after int64, at time.Time) (int64, error) {
	last, err := one(tx, scalar[int64], `SELECT last_seq FROM event_streams WHERE tenant_id = ?`, tenantID)
	if errors.Is(err, ErrNotFound) {
		return after, nil
	}
	if err != nil {
		return 0, err
	}
	low, high := after, max(after, last) // the answer is low, high or between them
	for low < high {
		middle := low + (high-low+1)/2
		e, err := one(tx, scanEvent, `SELECT `+eventColumns+` FROM events
			WHERE tenant_id = ? AND seq >= ? ORDER BY seq LIMIT 1`, tenantID, middle)
		if err != nil {
			return 0, err
		}
		if e.At.Before(at) {
			low = max(middle, e.Seq)
		} else {
			high = middle - 1
		}
	}
	return low, nil
}

package store

import (
	"encoding/json"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
)

// EventFilter selects events of a stream. The zero value selects all.
type EventFilter struct {
	// After is a sequence number: only later events.
	After int64
	// Type, where it is not empty, is the only type.
	Type events.Type
	// Since, where it is not zero, is the earliest time.
	Since time.Time
}

// EventsMatching lists a tenant's events that the filter selects, oldest first, at most limit.
func (tx *Tx) EventsMatching(tenantID string, f EventFilter, limit int) ([]events.Event, error) {
	var since int64
	if !f.Since.IsZero() {
		since = millis(f.Since)
	}
	return many(tx, func(s scanner) (e events.Event, err error) {
		var data string
		err = s.Scan(&e.Tenant, &e.Seq, &e.Type, timeOf{&e.At}, &data)
		e.Data = json.RawMessage(data)
		return e, err
	}, `SELECT tenant_id, seq, type, at, data FROM events
		WHERE tenant_id = ? AND seq > ? AND (? = '' OR type = ?) AND at >= ? ORDER BY seq LIMIT ?`,
		tenantID, f.After, f.Type, f.Type, since, limit)
}

package store

import (
	"encoding/json"
	"fmt"

	"github.com/better-compute/bcd/controlplane/events"
)

// EventsTopic is the [Store.Watch] topic of a tenant's new events.
func EventsTopic(tenantID string) string { return "events/" + tenantID }

const eventColumns = `tenant_id, seq, type, at, data`

func scanEvent(s scanner) (e events.Event, err error) {
	var data string
	err = s.Scan(&e.Tenant, &e.Seq, &e.Type, timeOf{&e.At}, &data)
	e.Data = json.RawMessage(data)
	return e, err
}

// Publish appends an event to a tenant's stream, as a part of the transaction.
func (tx *Tx) Publish(tenantID string, p events.Payload) error {
	data, err := jsonText(p)
	if err != nil {
		return err
	}
	if !tx.writable {
		return fmt.Errorf("cannot publish %s: %w", p.EventType(), errReadOnly)
	}
	// The row of the stream is the lock that keeps the order of numbers the order of commits.
	seq, err := one(tx, scalar[int64],
		`INSERT INTO event_streams (tenant_id, last_seq) VALUES (?, 1)
		 ON CONFLICT (tenant_id) DO UPDATE SET last_seq = event_streams.last_seq + 1 RETURNING last_seq`, tenantID)
	if err != nil {
		return fmt.Errorf("cannot publish %s: %w", p.EventType(), err)
	}
	tx.Notify(EventsTopic(tenantID))
	return tx.insert("publish "+string(p.EventType()),
		`INSERT INTO events (tenant_id, seq, type, at, data) VALUES (?, ?, ?, ?, ?)`,
		tenantID, seq, p.EventType(), millis(tx.now), data)
}

// Events lists a tenant's events after a sequence number, oldest first, at most limit.
func (tx *Tx) Events(tenantID string, after int64, limit int) ([]events.Event, error) {
	return many(tx, scanEvent, `SELECT `+eventColumns+` FROM events WHERE tenant_id = ? AND seq > ? ORDER BY seq LIMIT ?`,
		tenantID, after, limit)
}

// Record appends to the audit log, as a part of the transaction.
func (tx *Tx) Record(tenantID string, action events.Action, actor, subject string, p events.Payload) error {
	data, err := jsonText(p)
	if err != nil {
		return err
	}
	return tx.insert("record "+string(action),
		`INSERT INTO audit (id, tenant_id, action, at, actor, subject, data) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		tx.NewID(PrefixAudit), tenantID, action, millis(tx.now), actor, subject, data)
}

// Audit lists a tenant's audit rows after an id, oldest first, at most limit.
func (tx *Tx) Audit(tenantID, after string, limit int) ([]events.Audit, error) {
	return many(tx, func(s scanner) (a events.Audit, err error) {
		var data string
		err = s.Scan(&a.ID, &a.Tenant, &a.Action, timeOf{&a.At}, &a.Actor, &a.Subject, &data)
		a.Data = json.RawMessage(data)
		return a, err
	}, `SELECT id, tenant_id, action, at, actor, subject, data FROM audit WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`,
		tenantID, after, limit)
}

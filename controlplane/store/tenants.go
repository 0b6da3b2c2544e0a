package store

import "time"

// Tenant owns sites and pools and reads its own event stream.
type Tenant struct {
	ID        string
	Name      string
	CreatedAt time.Time
}

const tenantColumns = `id, name, created_at`

func scanTenant(s scanner) (t Tenant, err error) {
	err = s.Scan(&t.ID, &t.Name, timeOf{&t.CreatedAt})
	return t, err
}

// InsertTenant adds a tenant. CreatedAt is the transaction's time.
func (tx *Tx) InsertTenant(t Tenant) error {
	return tx.insert("insert the tenant", `INSERT INTO tenants (id, name, created_at) VALUES (?, ?, ?)`,
		t.ID, t.Name, millis(tx.now))
}

// Tenant returns a tenant or [ErrNotFound].
func (tx *Tx) Tenant(id string) (Tenant, error) {
	return one(tx, scanTenant, `SELECT `+tenantColumns+` FROM tenants WHERE id = ?`, id)
}

// Tenants lists all tenants, oldest first, from the one after the id on, at most limit.
func (tx *Tx) Tenants(after string, limit int) ([]Tenant, error) {
	return many(tx, scanTenant, `SELECT `+tenantColumns+` FROM tenants WHERE id > ? ORDER BY id LIMIT ?`, after, limit)
}

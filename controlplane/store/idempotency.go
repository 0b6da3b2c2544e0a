package store

// IdempotencyKey makes a call repeatable: it is scoped to the tenant, the calling identity and the method.
type IdempotencyKey struct {
	TenantID string
	// Identity is the caller: an API key's id.
	Identity string
	// Method is the API's name of the call, `joinTokens.create` for instance.
	Method string
	Key    string
}

// Idempotent returns the id of what the key made, or [ErrNotFound].
func (tx *Tx) Idempotent(k IdempotencyKey) (resourceID string, err error) {
	return one(tx, scalar[string], `SELECT resource_id FROM idempotency_keys
		WHERE tenant_id = ? AND identity = ? AND method = ? AND key = ?`, k.TenantID, k.Identity, k.Method, k.Key)
}

// InsertIdempotencyKey records what the key made; one that is in use is [ErrDuplicate].
func (tx *Tx) InsertIdempotencyKey(k IdempotencyKey, resourceID string) error {
	return tx.insert("record the idempotency key",
		`INSERT INTO idempotency_keys (tenant_id, identity, method, key, resource_id, created_at) VALUES (?, ?, ?, ?, ?, ?)`,
		k.TenantID, k.Identity, k.Method, k.Key, resourceID, millis(tx.now))
}

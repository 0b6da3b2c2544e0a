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

// Idempotent is what the first call with a key left.
type Idempotent struct {
	// ResourceID is the id of what it made.
	ResourceID string
	// RequestSHA256 is a digest of what it asked for; nil where the caller compares in another way.
	RequestSHA256 []byte
}

// Idempotent returns what the first call with the key left, or [ErrNotFound].
func (tx *Tx) Idempotent(k IdempotencyKey) (Idempotent, error) {
	return one(tx, func(s scanner) (i Idempotent, err error) {
		err = s.Scan(&i.ResourceID, &i.RequestSHA256)
		return i, err
	}, `SELECT resource_id, request_sha256 FROM idempotency_keys
		WHERE tenant_id = ? AND identity = ? AND method = ? AND key = ?`, k.TenantID, k.Identity, k.Method, k.Key)
}

// InsertIdempotencyKey records what the first call with the key leaves; a key that is in use is [ErrDuplicate].
func (tx *Tx) InsertIdempotencyKey(k IdempotencyKey, i Idempotent) error {
	return tx.insert("record the idempotency key",
		`INSERT INTO idempotency_keys (tenant_id, identity, method, key, resource_id, request_sha256, created_at)
		 VALUES (?, ?, ?, ?, ?, ?, ?)`,
		k.TenantID, k.Identity, k.Method, k.Key, i.ResourceID, nullBytes(i.RequestSHA256), millis(tx.now))
}

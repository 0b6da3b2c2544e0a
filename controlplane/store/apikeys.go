package store

import (
	"crypto/sha256"
	"time"
)

// APIKey is a bearer credential of the HTTP API, bound to a tenant and a list of actions. Only its digest is kept.
type APIKey struct {
	ID       string
	TenantID string
	Name     string
	SHA256   [sha256.Size]byte
	// Actions are what the key may do, `compute:join-tokens:create` for instance.
	Actions   []string
	CreatedAt time.Time
	// ExpiresAt is zero for a key that does not expire.
	ExpiresAt time.Time
	RevokedAt time.Time
}

// Good reports whether the key authenticates at the time.
func (k APIKey) Good(now time.Time) bool {
	return k.RevokedAt.IsZero() && (k.ExpiresAt.IsZero() || now.Before(k.ExpiresAt))
}

const apiKeyColumns = `id, tenant_id, name, sha256, actions, created_at, expires_at, revoked_at`

func scanAPIKey(s scanner) (k APIKey, err error) {
	var digest []byte
	err = s.Scan(&k.ID, &k.TenantID, &k.Name, &digest, jsonOf[[]string]{&k.Actions}, timeOf{&k.CreatedAt},
		timeOf{&k.ExpiresAt}, timeOf{&k.RevokedAt})
	if err == nil {
		err = copyDigest(&k.SHA256, digest)
	}
	return k, err
}

// InsertAPIKey adds a key. CreatedAt is the transaction's time.
func (tx *Tx) InsertAPIKey(k APIKey) error {
	actions, err := jsonText(k.Actions)
	if err != nil {
		return err
	}
	return tx.insert("insert the API key",
		`INSERT INTO api_keys (id, tenant_id, name, sha256, actions, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		k.ID, k.TenantID, k.Name, k.SHA256[:], actions, millis(tx.now), nullMillis(k.ExpiresAt))
}

// APIKeyByDigest returns the key with the digest, good or not, or [ErrNotFound].
func (tx *Tx) APIKeyByDigest(digest [sha256.Size]byte) (APIKey, error) {
	return one(tx, scanAPIKey, `SELECT `+apiKeyColumns+` FROM api_keys WHERE sha256 = ?`, digest[:])
}

// APIKey returns a key, good or not, or [ErrNotFound].
func (tx *Tx) APIKey(id string) (APIKey, error) {
	return one(tx, scanAPIKey, `SELECT `+apiKeyColumns+` FROM api_keys WHERE id = ?`, id)
}

// APIKeys lists a tenant's keys, oldest first, from the one after the id on, at most limit. Without inactive ones only
// those that are good at the transaction's time.
func (tx *Tx) APIKeys(tenantID string, inactive bool, after string, limit int) ([]APIKey, error) {
	if inactive {
		return many(tx, scanAPIKey, `SELECT `+apiKeyColumns+` FROM api_keys WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`,
			tenantID, after, limit)
	}
	return many(tx, scanAPIKey, `SELECT `+apiKeyColumns+` FROM api_keys WHERE id IN (
		SELECT id FROM api_keys WHERE tenant_id = ? AND id > ? AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)
		ORDER BY id LIMIT ?) ORDER BY id`,
		tenantID, after, millis(tx.now), limit)
}

// RevokeAPIKey ends a key at the transaction's time. It reports whether the key was not revoked before.
func (tx *Tx) RevokeAPIKey(id string) (bool, error) {
	n, err := tx.exec("revoke the API key", `UPDATE api_keys SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`,
		millis(tx.now), id)
	return n > 0, err
}

package store

import (
	"crypto/sha256"
	"time"
)

// EKAllow is an operator's word that the TPM with an endorsement key may join a pool.
type EKAllow struct {
	ID string
	// TenantID is the tenant that the pool belonged to, and SiteID the pool's site, when the entry was made.
	TenantID, SiteID, PoolID string
	// EKSHA256 is the SHA-256 of the endorsement key's SubjectPublicKeyInfo (DER).
	EKSHA256 [sha256.Size]byte
	// Note is for people, or empty.
	Note      string
	CreatedBy string
	CreatedAt time.Time
	// RemovedAt is zero for an entry that admits.
	RemovedAt time.Time
}

const ekAllowColumns = `id, tenant_id, site_id, pool_id, ek_sha256, note, created_by, created_at, removed_at`

func scanEKAllow(s scanner) (e EKAllow, err error) {
	var digest []byte
	err = s.Scan(&e.ID, &e.TenantID, &e.SiteID, &e.PoolID, &digest, textOf{&e.Note}, &e.CreatedBy, timeOf{&e.CreatedAt},
		timeOf{&e.RemovedAt})
	if err == nil {
		err = copyDigest(&e.EKSHA256, digest)
	}
	return e, err
}

// InsertEKAllow adds an entry. CreatedAt is the transaction's time. An endorsement key that is listed at the site already,
// by whomever, is [ErrDuplicate].
func (tx *Tx) InsertEKAllow(e EKAllow) error {
	return tx.insert("insert the allowed endorsement key",
		`INSERT INTO ek_allow (id, tenant_id, site_id, pool_id, ek_sha256, note, created_by, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		e.ID, e.TenantID, e.SiteID, e.PoolID, e.EKSHA256[:], nullText(e.Note), e.CreatedBy, millis(tx.now))
}

// EKAllow returns an entry, removed or not, or [ErrNotFound].
func (tx *Tx) EKAllow(id string) (EKAllow, error) {
	return one(tx, scanEKAllow, `SELECT `+ekAllowColumns+` FROM ek_allow WHERE id = ?`, id)
}

// EKAllowsOf lists the entries of an endorsement key that admit, one a site, oldest first.
func (tx *Tx) EKAllowsOf(ekSHA256 [sha256.Size]byte) ([]EKAllow, error) {
	return many(tx, scanEKAllow, `SELECT `+ekAllowColumns+` FROM ek_allow WHERE ek_sha256 = ? AND removed_at IS NULL ORDER BY id`,
		ekSHA256[:])
}

// EKAllowsOfPool lists a pool's entries that admit, oldest first, from the one after the id on, at most limit.
func (tx *Tx) EKAllowsOfPool(poolID, after string, limit int) ([]EKAllow, error) {
	return many(tx, scanEKAllow, `SELECT `+ekAllowColumns+` FROM ek_allow WHERE pool_id = ? AND id > ? AND removed_at IS NULL
		ORDER BY id LIMIT ?`, poolID, after, limit)
}

// RemoveEKAllow ends an entry at the transaction's time. It reports whether the entry was not removed before.
func (tx *Tx) RemoveEKAllow(id string) (bool, error) {
	n, err := tx.exec("remove the allowed endorsement key", `UPDATE ek_allow SET removed_at = ? WHERE id = ? AND removed_at IS NULL`,
		millis(tx.now), id)
	return n > 0, err
}

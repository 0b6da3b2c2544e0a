package store

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/better-compute/bcd/hwclaims"
)

// TokenRole decides what kind of agent a join token admits.
type TokenRole string

// The roles of join tokens.
const (
	TokenNode        TokenRole = "node"        // a node into one pool
	TokenSite        TokenRole = "site"        // a site agent into one site
	TokenProvisioned TokenRole = "provisioned" // the operating system that a deploy installed
	TokenDiscovery   TokenRole = "discovery"   // a PXE-booted ramdisk
)

// Token is a join token. Its secret is nowhere: only the digest is kept.
type Token struct {
	ID string
	// TenantID is the tenant that the pool (or the site) belonged to when the token was made.
	TenantID string
	// PoolID is empty for a site token, and for a discovery token that leaves the pool to whoever approves the machine.
	PoolID string
	// SiteID is the pool's site when the token was made.
	SiteID string
	Role   TokenRole
	// SecretSHA256 is the digest of the secret's 32 bytes.
	SecretSHA256 [sha256.Size]byte
	MaxUses      int64
	UsesLeft     int64
	// Expect is nil for a token that is bound to no machine.
	Expect       *hwclaims.Expect
	AllowReclaim bool
	// Hosted is "kubernetes" or empty.
	Hosted string
	// NodeID is the node that a provisioned token is for, or empty.
	NodeID string
	// WorkflowID is the workflow that a discovery token was made for, or empty.
	WorkflowID string
	CreatedBy  string
	CreatedAt  time.Time
	ExpiresAt  time.Time
	// RevokedAt is zero for a token that was not revoked.
	RevokedAt time.Time
}

// Live reports whether the token may still admit a machine at the time.
func (t Token) Live(now time.Time) bool {
	return t.RevokedAt.IsZero() && now.Before(t.ExpiresAt) && t.UsesLeft > 0
}

const tokenColumns = `id, tenant_id, pool_id, site_id, role, secret_sha256, max_uses, uses_left, expect, allow_reclaim,
	hosted, node_id, workflow_id, created_by, created_at, expires_at, revoked_at`

func scanToken(s scanner) (t Token, err error) {
	var digest []byte
	err = s.Scan(&t.ID, &t.TenantID, textOf{&t.PoolID}, &t.SiteID, &t.Role, &digest, &t.MaxUses, &t.UsesLeft,
		jsonOf[*hwclaims.Expect]{&t.Expect}, &t.AllowReclaim, textOf{&t.Hosted}, textOf{&t.NodeID}, textOf{&t.WorkflowID}, &t.CreatedBy,
		timeOf{&t.CreatedAt}, timeOf{&t.ExpiresAt}, timeOf{&t.RevokedAt})
	if err == nil {
		err = copyDigest(&t.SecretSHA256, digest)
	}
	return t, err
}

// InsertToken adds a token with all its uses left. CreatedAt is the transaction's time.
func (tx *Tx) InsertToken(t Token) error {
	var expect any
	if t.Expect != nil {
		text, err := jsonText(t.Expect)
		if err != nil {
			return err
		}
		expect = text
	}
	return tx.insert("insert the token",
		`INSERT INTO join_tokens (id, tenant_id, pool_id, site_id, role, secret_sha256, max_uses, uses_left, expect,
			allow_reclaim, hosted, node_id, workflow_id, created_by, created_at, expires_at, revoked_at)
		 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)`,
		t.ID, t.TenantID, nullText(t.PoolID), t.SiteID, t.Role, t.SecretSHA256[:], t.MaxUses, t.MaxUses, expect,
		t.AllowReclaim, nullText(t.Hosted), nullText(t.NodeID), nullText(t.WorkflowID), t.CreatedBy, millis(tx.now), millis(t.ExpiresAt))
}

// Token returns a token or [ErrNotFound].
func (tx *Tx) Token(id string) (Token, error) {
	return one(tx, scanToken, `SELECT `+tokenColumns+` FROM join_tokens WHERE id = ?`, id)
}

// TokensOfPool lists a pool's tokens, oldest first, from the one after the id on, at most limit. Without inactive ones
// only those that are live at the transaction's time.
func (tx *Tx) TokensOfPool(poolID string, inactive bool, after string, limit int) ([]Token, error) {
	if inactive {
		return many(tx, scanToken, `SELECT `+tokenColumns+` FROM join_tokens WHERE pool_id = ? AND id > ?
			ORDER BY id LIMIT ?`, poolID, after, limit)
	}
	// In two steps, so that the first is answered from the index of live tokens alone.
	return many(tx, scanToken, `SELECT `+tokenColumns+` FROM join_tokens WHERE id IN (
		SELECT id FROM join_tokens WHERE pool_id = ? AND id > ? AND revoked_at IS NULL AND expires_at > ? AND uses_left > 0
		ORDER BY id LIMIT ?) ORDER BY id`,
		poolID, after, millis(tx.now), limit)
}

// TokensOfSite lists the tokens of a site's agents as [Tx.TokensOfPool] does those of a pool.
func (tx *Tx) TokensOfSite(siteID string, inactive bool, after string, limit int) ([]Token, error) {
	if inactive {
		return many(tx, scanToken, `SELECT `+tokenColumns+` FROM join_tokens WHERE site_id = ? AND role = 'site' AND id > ?
			ORDER BY id LIMIT ?`, siteID, after, limit)
	}
	return many(tx, scanToken, `SELECT `+tokenColumns+` FROM join_tokens WHERE id IN (
		SELECT id FROM join_tokens WHERE site_id = ? AND role = 'site' AND id > ? AND revoked_at IS NULL AND expires_at > ?
		AND uses_left > 0 ORDER BY id LIMIT ?) ORDER BY id`,
		siteID, after, millis(tx.now), limit)
}

// SpendToken takes one use of a token that has one; none left is [ErrNotFound].
func (tx *Tx) SpendToken(id string) error {
	return tx.update("spend the token", `UPDATE join_tokens SET uses_left = uses_left - 1 WHERE id = ? AND uses_left > 0`, id)
}

// RevokeToken ends a token at the transaction's time. It reports whether the token was not revoked before.
func (tx *Tx) RevokeToken(id string) (bool, error) {
	n, err := tx.exec("revoke the token", `UPDATE join_tokens SET revoked_at = ? WHERE id = ? AND revoked_at IS NULL`,
		millis(tx.now), id)
	return n > 0, err
}

func copyDigest(to *[sha256.Size]byte, from []byte) error {
	if len(from) != len(to) {
		return fmt.Errorf("a digest has %d bytes", len(from))
	}
	copy(to[:], from)
	return nil
}

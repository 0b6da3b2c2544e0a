package store

import (
	"slices"
	"time"
)

// Agent says what runs on a pool's machines.
type Agent string

// The agents.
const (
	AgentBCD  Agent = "bcd"
	AgentNone Agent = "none"
)

// Pool is a set of machines of one site that one tenant owns.
type Pool struct {
	ID       string
	TenantID string
	SiteID   string
	Name     string
	Agent    Agent
	// Acceptance says that nodes pass acceptance checks before they are adopted.
	Acceptance bool
	Policy     PoolPolicy
	CreatedAt  time.Time
	// ArchivedAt is zero for a pool in use. An archived pool admits no machine.
	ArchivedAt time.Time
}

// PoolPolicy is what a pool's owner decides.
type PoolPolicy struct {
	// JoinAttestors lists the attestors that admit machines into the pool. Nil admits by every configured one, an empty
	// list by none.
	JoinAttestors []string         `json:"joinAttestors,omitzero"`
	Kubernetes    KubernetesPolicy `json:"kubernetes,omitzero"`
}

// KubernetesPolicy is about pools whose nodes are a Kubernetes cluster's.
type KubernetesPolicy struct {
	// PlatformOperated says that the platform, and nobody else, has root on the cluster's machines. It counts only in a
	// pool that the platform owns.
	PlatformOperated bool `json:"platformOperated,omitempty"`
}

// Admits reports whether the policy lets the attestor admit machines.
func (p PoolPolicy) Admits(attestor string) bool {
	return p.JoinAttestors == nil || slices.Contains(p.JoinAttestors, attestor)
}

// PlatformOperated reports whether the platform operates the pool's cluster, at the pool's site: the policy says so, and
// the pool is the platform's, so that it may. A tenant cannot vouch for a cluster of its own.
func (p Pool) PlatformOperated(site Site, rootTenant string) bool {
	return p.Policy.Kubernetes.PlatformOperated && p.TenantID == site.TenantID && !site.Custom && p.TenantID == rootTenant
}

const poolColumns = `id, tenant_id, site_id, name, agent, acceptance, policy, created_at, archived_at`

func scanPool(s scanner) (p Pool, err error) {
	err = s.Scan(&p.ID, &p.TenantID, &p.SiteID, &p.Name, &p.Agent, &p.Acceptance, jsonOf[PoolPolicy]{&p.Policy},
		timeOf{&p.CreatedAt}, timeOf{&p.ArchivedAt})
	return p, err
}

// InsertPool adds a pool. CreatedAt is the transaction's time.
func (tx *Tx) InsertPool(p Pool) error {
	policy, err := jsonText(p.Policy)
	if err != nil {
		return err
	}
	return tx.insert("insert the pool",
		`INSERT INTO pools (id, tenant_id, site_id, name, agent, acceptance, policy, created_at, archived_at)
		 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		p.ID, p.TenantID, p.SiteID, p.Name, p.Agent, p.Acceptance, policy, millis(tx.now), nullMillis(p.ArchivedAt))
}

// UpdatePool replaces everything of a pool but its id and creation.
func (tx *Tx) UpdatePool(p Pool) error {
	policy, err := jsonText(p.Policy)
	if err != nil {
		return err
	}
	return tx.update("update the pool",
		`UPDATE pools SET tenant_id = ?, site_id = ?, name = ?, agent = ?, acceptance = ?, policy = ?, archived_at = ?
		 WHERE id = ?`,
		p.TenantID, p.SiteID, p.Name, p.Agent, p.Acceptance, policy, nullMillis(p.ArchivedAt), p.ID)
}

// Pool returns a pool, archived or not, or [ErrNotFound].
func (tx *Tx) Pool(id string) (Pool, error) {
	return one(tx, scanPool, `SELECT `+poolColumns+` FROM pools WHERE id = ?`, id)
}

// PoolOfTenant is [Tx.Pool] for a caller that acts for a tenant: to it the pools of others do not exist.
func (tx *Tx) PoolOfTenant(tenantID, id string) (Pool, error) {
	p, err := tx.Pool(id)
	if err == nil && p.TenantID != tenantID {
		return Pool{}, ErrNotFound
	}
	return p, err
}

// Pools lists a tenant's pools, oldest first, from the one after the id on, at most limit. Without archived ones only
// those in use.
func (tx *Tx) Pools(tenantID string, archived bool, after string, limit int) ([]Pool, error) {
	if archived {
		return many(tx, scanPool, `SELECT `+poolColumns+` FROM pools WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`,
			tenantID, after, limit)
	}
	return many(tx, scanPool, `SELECT `+poolColumns+` FROM pools WHERE tenant_id = ? AND id > ? AND archived_at IS NULL
		ORDER BY id LIMIT ?`, tenantID, after, limit)
}

package store

import (
	"crypto/sha256"
	"time"

	"github.com/better-compute/bcd/hwclaims"
)

// NodeState is where a node stands.
type NodeState string

// The states of a node.
const (
	NodeAdopting NodeState = "adopting"
	NodeAdopted  NodeState = "adopted"
	NodeRetired  NodeState = "retired"
)

// Trust says who controls a node's machine.
type Trust string

// The levels of trust.
const (
	TrustPlatform         Trust = "platform"
	TrustTenantOwned      Trust = "tenant-owned"
	TrustTenantControlled Trust = "tenant-controlled"
)

// The roles of nodes, as a join asks for them.
const (
	RoleNode    = "node"
	RoleSite    = "site"
	RoleRamdisk = "ramdisk"
)

// Node is a machine that joined.
type Node struct {
	ID       string
	TenantID string
	// PoolID is empty for a site agent.
	PoolID string
	SiteID string
	// Role is [RoleNode], [RoleSite] or [RoleRamdisk].
	Role  string
	State NodeState
	Trust Trust
	// IdentityGeneration starts at 1 and goes up with every reclaim.
	IdentityGeneration int64
	// HardwareKey is nil where the claims give none, and after [Tx.FreeMachine].
	HardwareKey []byte
	// HardwareKeyTrusted says that the key names the machine: then it is unique, and a join with it is a reclaim.
	HardwareKeyTrusted bool
	// EKSHA256 is the digest of the endorsement key of the TPM that the machine joined with. It names the machine and is
	// unique. Nil where the machine showed none, and after [Tx.FreeMachine].
	EKSHA256   []byte
	Claims     hwclaims.Claims
	Conditions []Condition
	JoinedAt   time.Time
	// HelloAt is the first Hello of HelloGeneration; zero before any.
	HelloAt         time.Time
	HelloGeneration int64
	// HelloClaims is the digest of the machine's hardware that this Hello carried; nil where it carried none.
	HelloClaims []byte
	// CordonedAt is when an operator set the node aside; zero for a node that takes work. It outlives a reclaim.
	CordonedAt time.Time
	RetiredAt  time.Time
	DeletedAt  time.Time
}

// Condition is something about a node that an operator should know.
type Condition struct {
	Type    string    `json:"type"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

const nodeColumns = `id, tenant_id, pool_id, site_id, role, state, trust, identity_generation, hardware_key,
	hardware_key_trusted, ek_sha256, claims, conditions, joined_at, hello_at, hello_generation, hello_claims,
	cordoned_at, retired_at, deleted_at`

func scanNode(s scanner) (n Node, err error) {
	err = s.Scan(&n.ID, &n.TenantID, textOf{&n.PoolID}, &n.SiteID, &n.Role, &n.State, &n.Trust, &n.IdentityGeneration,
		&n.HardwareKey, &n.HardwareKeyTrusted, &n.EKSHA256, jsonOf[hwclaims.Claims]{&n.Claims}, jsonOf[[]Condition]{&n.Conditions},
		timeOf{&n.JoinedAt}, timeOf{&n.HelloAt}, &n.HelloGeneration, &n.HelloClaims, timeOf{&n.CordonedAt},
		timeOf{&n.RetiredAt}, timeOf{&n.DeletedAt})
	return n, err
}

// InsertNode adds a node. JoinedAt is the transaction's time. A trusted hardware key or an endorsement key that another
// node has is [ErrDuplicate].
func (tx *Tx) InsertNode(n Node) error {
	claims, err := jsonText(n.Claims)
	if err != nil {
		return err
	}
	return tx.insert("insert the node",
		`INSERT INTO nodes (id, tenant_id, pool_id, site_id, role, state, trust, identity_generation, hardware_key,
			hardware_key_trusted, ek_sha256, claims, joined_at)
		 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		n.ID, n.TenantID, nullText(n.PoolID), n.SiteID, n.Role, n.State, n.Trust, n.IdentityGeneration,
		nullBytes(n.HardwareKey), n.HardwareKeyTrusted, nullBytes(n.EKSHA256), claims, millis(tx.now))
}

// ReclaimNode records that the machine joined again: the node's role, generation, trust, claims, hardware key and state are
// replaced, its conditions end. JoinedAt is the transaction's time. A trusted hardware key that another node has is
// [ErrDuplicate].
func (tx *Tx) ReclaimNode(n Node) error {
	claims, err := jsonText(n.Claims)
	if err != nil {
		return err
	}
	return tx.update("reclaim the node",
		`UPDATE nodes SET role = ?, state = ?, trust = ?, identity_generation = ?, hardware_key = ?, hardware_key_trusted = ?,
			claims = ?, conditions = NULL, joined_at = ?
		 WHERE id = ?`,
		n.Role, n.State, n.Trust, n.IdentityGeneration, nullBytes(n.HardwareKey), n.HardwareKeyTrusted, claims, millis(tx.now), n.ID)
}

// Node returns a node or [ErrNotFound].
func (tx *Tx) Node(id string) (Node, error) {
	return one(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE id = ?`, id)
}

// NodeByHardwareKey returns the node that a trusted hardware key names, or [ErrNotFound].
func (tx *Tx) NodeByHardwareKey(key []byte) (Node, error) {
	return one(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE hardware_key = ? AND hardware_key_trusted`, key)
}

// NodeByEK returns the node that is bound to the endorsement key with the digest, or [ErrNotFound].
func (tx *Tx) NodeByEK(ekSHA256 [sha256.Size]byte) (Node, error) {
	return one(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE ek_sha256 = ?`, ekSHA256[:])
}

// NodeByStatement returns the node that is bound to an endorsement key and that ever had a certificate with exactly this
// statement, or [ErrNotFound].
func (tx *Tx) NodeByStatement(statement string) (Node, error) {
	statements, err := nullJSON([]string{statement})
	if err != nil {
		return Node{}, err
	}
	return one(tx, scanNode, `SELECT `+nodeColumns+` FROM nodes WHERE ek_sha256 IS NOT NULL AND id IN
		(SELECT node_id FROM node_certs WHERE statements = ?) ORDER BY id LIMIT 1`, statements)
}

// SetNodeState moves a node on. It wakes the node's watchers.
func (tx *Tx) SetNodeState(id string, state NodeState) error {
	var retired any
	if state == NodeRetired {
		retired = millis(tx.now)
	}
	tx.Notify(NodeTopic(id))
	return tx.update("set the node's state", `UPDATE nodes SET state = ?, retired_at = COALESCE(retired_at, ?) WHERE id = ?`,
		state, retired, id)
}

// SetNodeConditions replaces a node's conditions.
func (tx *Tx) SetNodeConditions(id string, conditions []Condition) error {
	text, err := nullJSON(conditions)
	if err != nil {
		return err
	}
	return tx.update("set the node's conditions", `UPDATE nodes SET conditions = ? WHERE id = ?`, text, id)
}

// RecordHello records the first Hello of the node's present generation, with the digest of the machine's hardware that it
// carried. It reports whether this was it.
func (tx *Tx) RecordHello(id string, claims []byte) (first bool, err error) {
	n, err := tx.exec("record the hello",
		`UPDATE nodes SET hello_at = ?, hello_generation = identity_generation, hello_claims = ?
		 WHERE id = ? AND hello_generation <> identity_generation`, millis(tx.now), nullBytes(claims), id)
	return n > 0, err
}

// NodeTopic is the [Store.Watch] topic of changes that may end a node's session.
func NodeTopic(id string) string { return "node/" + id }

// PutNodeAuthz writes the node's row of the authorization projection: what decisions about the node are made from,
// without reading the node.
func (tx *Tx) PutNodeAuthz(n Node) error {
	return tx.insert("project the node's authorization",
		`INSERT INTO node_authz (node_id, tenant_id, pool_id, site_id, role, trust, updated_at) VALUES (?, ?, ?, ?, ?, ?, ?)
		 ON CONFLICT (node_id) DO UPDATE SET tenant_id = excluded.tenant_id, pool_id = excluded.pool_id,
			site_id = excluded.site_id, role = excluded.role, trust = excluded.trust, updated_at = excluded.updated_at`,
		n.ID, n.TenantID, nullText(n.PoolID), n.SiteID, n.Role, n.Trust, millis(tx.now))
}

// NodeAuthz is a row of the authorization projection.
type NodeAuthz struct {
	NodeID, TenantID, PoolID, SiteID, Role string
	Trust                                  Trust
}

// NodeAuthz returns a node's row of the authorization projection, or [ErrNotFound].
func (tx *Tx) NodeAuthz(nodeID string) (NodeAuthz, error) {
	return one(tx, func(s scanner) (a NodeAuthz, err error) {
		err = s.Scan(&a.NodeID, &a.TenantID, textOf{&a.PoolID}, &a.SiteID, &a.Role, &a.Trust)
		return a, err
	}, `SELECT node_id, tenant_id, pool_id, site_id, role, trust FROM node_authz WHERE node_id = ?`, nodeID)
}

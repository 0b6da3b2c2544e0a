package joinservice

import (
	"context"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
)

// Attestor is a way for a machine to show that it may join.
//
// A failed check is returned as [Refuse]; any other error is a failure of the control plane.
type Attestor interface {
	// Name is what machines ask for and what policies list.
	Name() string
	// Open checks, outside any transaction, all that needs no database, and returns what the machine presents.
	Open(ctx context.Context, r *Request) (Credential, error)
}

// Credential is what one machine presents in one request. Its methods are called on a snapshot first and then again in the
// admission's transaction; only Spend writes.
type Credential interface {
	// Prove finds out who vouches for the machine. After it succeeded, the grant's tenant may be told of a refusal, and a
	// request that was admitted before gets its answer again.
	Prove(tx *store.Tx) (*Grant, error)
	// Check decides whether the grant admits a machine now. A repeat of an admitted request is not asked.
	Check(tx *store.Tx, g *Grant) error
	// Spend takes what one admission costs.
	Spend(tx *store.Tx, g *Grant) error
}

// Grant is what a credential admits a machine to.
type Grant struct {
	// TokenID is the credential's record, if it has one. A repeat must present the same.
	TokenID string
	// TenantID, SiteID and PoolID are where the machine lands. PoolID is empty for a site agent.
	TenantID, SiteID, PoolID string
	// NodeID is the node that the machine must become again, or empty.
	NodeID string
	// Expect, where it is set, must match the machine's claims.
	Expect *hwclaims.Expect
	// PlaceholderOK admits a machine whose claims do not tell it from others.
	PlaceholderOK bool
	// AllowReclaim lets a machine that is a node become it again with a new key.
	AllowReclaim bool
	// Hosted says that others than the platform have root on the machine.
	Hosted bool
	// NodeKeyInTPM says that the attestor proved where the node key lives. Statements are then the urn:bc: URIs about it.
	NodeKeyInTPM bool
	Statements   []string
	// AllowedKinds restricts the commands that the certificate accepts; nil is all.
	AllowedKinds []string
	// MaxLifetime shortens the certificate's life, and that of its successors; 0 does not.
	MaxLifetime time.Duration
}

// nodeKey says where the node key lives, as events spell it.
func (g *Grant) nodeKey() string {
	if g.NodeKeyInTPM {
		return "tpm"
	}
	return "unattested"
}

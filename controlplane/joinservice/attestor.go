package joinservice

import (
	"context"
	"crypto/sha256"
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
	// Prove finds out who vouches for the machine. After it succeeded, the grant's tenant may be told of a refusal, if the
	// grant does not say otherwise, and a request that was admitted before gets its answer again.
	Prove(tx *store.Tx) (*Grant, error)
	// Check decides whether the grant admits a machine now. A repeat of an admitted request is not asked. What ends with
	// time alone is no reason where [Grant.Remembered] is set.
	Check(tx *store.Tx, g *Grant) error
	// Spend takes what one admission costs.
	Spend(tx *store.Tx, g *Grant) error
}

// Grant is what a credential admits a machine to.
type Grant struct {
	// TokenID is the credential's record, if it has one. A repeat must present the same.
	TokenID string
	// EKSHA256 is the digest of the TPM's endorsement key that the machine proved; nil is none. The machine is then the node
	// that is bound to the key, and a new one is bound to it.
	EKSHA256 *[sha256.Size]byte
	// Stranger says that nobody of the tenant vouched for this very machine: the tenant is told of no refusal.
	Stranger bool
	// TenantID, SiteID and PoolID are where the machine lands. PoolID is empty for a site agent, and where Approval is set
	// and the credential names none: then it is the pool of the node that the machine is, or of the approval.
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
	// Approval says when a person decides about the machine; nil is never.
	Approval *Approval
	// Remembered is set for the Check of a request that a person decides, or has approved: the credential was good when
	// that was recorded.
	Remembered bool
	// Succeeds, where it is set, makes the machine the node that it is, with a certificate that follows the leaf; nothing
	// else of the node changes.
	Succeeds *Succession
	// Proof, where it is set, names evidence that is good for one request, a repeat included.
	Proof *[sha256.Size]byte
}

// Succession is a certificate that another one follows.
type Succession struct {
	Leaf store.Cert
	Node store.Node
}

// tell marks a refusal of the machine as one that the grant's tenant may be told, if it may.
func (g *Grant) tell(err error) error {
	if g.Stranger {
		return err
	}
	return tellTenant(err, g.TenantID)
}

// actor is who acts in an admission, as audit rows say it: the token, or the node itself.
func (g *Grant) actor(nodeID string) string {
	if g.TokenID != "" {
		return g.TokenID
	}
	return nodeID
}

// nodeKey says where the node key lives, as events spell it.
func (g *Grant) nodeKey() string {
	if g.NodeKeyInTPM {
		return "tpm"
	}
	return "unattested"
}

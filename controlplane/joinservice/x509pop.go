package joinservice

import (
	"context"
	"crypto"
	"errors"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

// AttestorX509PoP is the name of [X509PoP].
const AttestorX509PoP = "x509pop"

// rejoinWithin is for how long after its end a certificate lets its machine join again: 7 days, the last instant included.
// The database's times are whole milliseconds.
const rejoinWithin = 7*24*time.Hour + time.Millisecond

// X509PoP admits the holder of a node certificate's key, which may have ended lately, as the node that it is: what a renewal
// would have done. Its checks are a renewal's, but for the connection's certificate.
type X509PoP struct{}

// Name implements [Attestor].
func (X509PoP) Name() string { return AttestorX509PoP }

// Open implements [Attestor].
func (X509PoP) Open(_ context.Context, r *Request) (Credential, error) {
	e := r.Evidence().GetX509Pop()
	return &x509popCredential{
		proof:    newProof(signing.X509PoP, e.GetChain(), r.csrSHA256, e.GetClientTimeUnixMs(), e.GetPopSig()),
		attested: e.GetKeyAttestation(), csrKey: r.csr.PublicKey, role: r.Role(), site: r.body.GetSite(),
	}, nil
}

type x509popCredential struct {
	proof      proof
	attested   *daemonv1.KeyAttestation
	csrKey     crypto.PublicKey
	role, site string
}

// Prove implements [Credential]. The proof is asked of a repeat too: it is good for one request.
func (c *x509popCredential) Prove(tx *store.Tx) (*Grant, error) {
	leaf, node, err := c.proof.find(tx)
	if err == nil {
		err = c.proof.check(tx, node)
	}
	if err != nil {
		return nil, ofX509PoP(err)
	}
	used := c.proof.digest(node.ID)
	return &Grant{
		TenantID: node.TenantID, SiteID: node.SiteID, PoolID: node.PoolID, AllowedKinds: leaf.AllowedKinds,
		Statements: leaf.Statements, MaxLifetime: leaf.MaxLifetime, Succeeds: &Succession{Leaf: leaf, Node: node}, Proof: &used,
	}, nil
}

// Check implements [Credential].
func (c *x509popCredential) Check(tx *store.Tx, g *Grant) error {
	leaf, node := g.Succeeds.Leaf, g.Succeeds.Node
	if err := checkLeafWithin(tx, leaf, node, rejoinWithin); err != nil {
		return ofX509PoP(err)
	}
	// A ramdisk has its token: it keeps no key from one boot to the next.
	if c.role != node.Role || node.Role == store.RoleRamdisk {
		return ofX509PoP(Refuse(reasonIdentity))
	}
	if c.site == "" {
		return Refuse("join:site")
	}
	return ofX509PoP(checkKeyAttestation(leaf, c.attested, c.csrKey, c.proof.csrSHA256))
}

// Spend implements [Credential]. A proof costs nothing: it is recorded as [Grant.Proof].
func (*x509popCredential) Spend(*store.Tx, *Grant) error { return nil }

// ofX509PoP names a refusal of a renewal's checks as this attestor's.
func ofX509PoP(err error) error {
	var r *refusal
	if errors.As(err, &r) {
		r.reason = AttestorX509PoP + ":" + r.reason
	}
	return err
}

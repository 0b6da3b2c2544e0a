package joinservice

import (
	"bytes"
	"errors"
	"slices"

	"github.com/better-compute/bcd/controlplane/store"
)

// replay finds out whether the request was admitted before. If it was, its answer is the recorded certificate, or a
// refusal: a key that ever had a certificate is never admitted afresh, or a captured request would reclaim its node.
// Neither plan nor error means that the request is new.
func (d *decision) replay(tx *store.Tx, g *Grant) (*plan, error) {
	j, err := tx.Join(d.req.csrSHA256)
	if errors.Is(err, store.ErrNotFound) {
		if _, err = tx.CertBySPKI(d.req.spkiSHA256); err == nil {
			return nil, Refuse("join:replayed") // a certified key under another request
		}
		if errors.Is(err, store.ErrNotFound) {
			return nil, nil //nolint:nilnil // new
		}
	}
	if err != nil {
		return nil, err
	}
	cert, err := tx.Cert(j.Serial)
	if err != nil {
		return nil, err
	}
	node, err := tx.Node(j.NodeID)
	if err != nil {
		return nil, err
	}
	asked := d.req.body.GetSite()
	switch {
	case j.Attestor != d.attestor, j.TokenID != g.TokenID, j.Role != d.req.Role(), // another request in truth
		j.PoolID != g.PoolID && (g.PoolID != "" || g.Approval == nil), // without a pool, the admission found one
		g.EKSHA256 != nil && !bytes.Equal(node.EKSHA256, g.EKSHA256[:]),
		g.Succeeds != nil && (node.ID != g.Succeeds.Node.ID || cert.Predecessor != g.Succeeds.Leaf.Serial),
		node.PoolID != j.PoolID, node.SiteID != g.SiteID, asked != "" && asked != node.SiteID,
		d.req.body.GetNodeId() != g.NodeID,
		!node.RetiredAt.IsZero(), !node.DeletedAt.IsZero(), cert.Generation != node.IdentityGeneration,
		!cert.RevokedAt.IsZero(), !tx.Now().Before(cert.NotAfter):
		return nil, Refuse("join:replayed")
	case len(d.req.gatewaySites) > 0 && !slices.Contains(d.req.gatewaySites, node.SiteID):
		return nil, Refuse("join:site")
	}
	return &plan{grant: g, node: node, repeat: &cert}, nil
}

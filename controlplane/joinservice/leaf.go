package joinservice

import (
	"bytes"
	"crypto/x509"
	"errors"

	"github.com/better-compute/bcd/controlplane/store"
)

// The reasons why a certificate is not good. Renewals publish them as they are.
const (
	reasonUnknown    = "unknown-certificate"
	reasonRevoked    = "revoked"
	reasonExpired    = "expired"
	reasonGeneration = "generation"
	reasonRetired    = "retired"
	reasonIdentity   = "identity-mismatch"
)

// findLeaf returns the row of a certificate that is byte for byte one of ours, and its node.
func findLeaf(tx *store.Tx, leaf *x509.Certificate) (store.Cert, store.Node, error) {
	c, err := tx.Cert(serialOf(leaf))
	if errors.Is(err, store.ErrNotFound) || err == nil && !bytes.Equal(c.DER, leaf.Raw) {
		return store.Cert{}, store.Node{}, Refuse(reasonUnknown)
	}
	if err != nil {
		return store.Cert{}, store.Node{}, err
	}
	n, err := tx.Node(c.NodeID)
	return c, n, err
}

// checkLeaf reports why a certificate of the node is no identity at the transaction's time.
func checkLeaf(tx *store.Tx, c store.Cert, n store.Node) error {
	switch {
	case !c.RevokedAt.IsZero():
		return Refuse(reasonRevoked)
	case !tx.Now().Before(c.NotAfter):
		return Refuse(reasonExpired)
	case c.Generation != n.IdentityGeneration:
		return Refuse(reasonGeneration)
	case !n.RetiredAt.IsZero() || !n.DeletedAt.IsZero():
		return Refuse(reasonRetired)
	}
	return nil
}

// markUsed records that the certificate was presented, if it was not before.
func markUsed(tx *store.Tx, c store.Cert) error {
	if !c.FirstUsedAt.IsZero() {
		return nil
	}
	return tx.MarkCertUsed(c.Serial)
}

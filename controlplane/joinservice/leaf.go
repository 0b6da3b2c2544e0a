package joinservice

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
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
func checkLeaf(tx *store.Tx, c store.Cert, n store.Node) error { return checkLeafWithin(tx, c, n, 0) }

// checkLeafWithin is checkLeaf that takes a certificate for some time after its end.
func checkLeafWithin(tx *store.Tx, c store.Cert, n store.Node, after time.Duration) error {
	switch {
	case !c.RevokedAt.IsZero():
		return Refuse(reasonRevoked)
	case !tx.Now().Before(c.NotAfter.Add(after)):
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

// nextCert is the row of the certificate that follows a leaf: it keeps what the leaf says of the machine.
func nextCert(leaf store.Cert, spkiSHA256, csrSHA256 [sha256.Size]byte) store.Cert {
	return store.Cert{
		NodeID: leaf.NodeID, Generation: leaf.Generation, Role: leaf.Role, SPKISHA256: spkiSHA256, CSRSHA256: csrSHA256,
		AllowedKinds: leaf.AllowedKinds, Statements: leaf.Statements, MaxLifetime: leaf.MaxLifetime, Predecessor: leaf.Serial,
	}
}

// successorsOf returns the certificate that followed a leaf for the CSR, and one in use that followed it for another; nil is
// none.
func successorsOf(tx *store.Tx, leaf store.Cert, csrSHA256 [sha256.Size]byte) (same, inUse *store.Cert, err error) {
	all, err := tx.Successors(leaf.Serial)
	if err != nil {
		return nil, nil, err
	}
	for i := range all {
		switch c := &all[i]; {
		case c.CSRSHA256 == csrSHA256:
			same = c
		case !c.FirstUsedAt.IsZero():
			inUse = c
		}
	}
	return same, inUse, nil
}

// tellForked reports that a leaf whose successor is in use got another one.
func tellForked(tx *store.Tx, n store.Node, leaf store.Cert, inUse *store.Cert, forked string) error {
	if inUse == nil {
		return nil
	}
	return tx.Publish(n.TenantID, events.RenewForked{NodeID: n.ID, Serial: leaf.Serial, Successor: inUse.Serial, Forked: forked})
}

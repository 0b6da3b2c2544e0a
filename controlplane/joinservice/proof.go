package joinservice

import (
	"crypto/sha256"
	"crypto/x509"
	"path"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

const (
	// clientTimeWithin is how far a proof's client time may be from ours.
	clientTimeWithin = 60 * time.Second
	// proofsKept is how long a used proof is remembered. It covers the whole span in which client_time is good.
	proofsKept = 120 * time.Second
)

// proof shows that a caller holds the key of one of our certificates: a signature for one CSR and one moment.
type proof struct {
	purpose signing.Purpose
	// leaf is the certificate; nil where what was presented does not parse.
	leaf       *x509.Certificate
	csrSHA256  [sha256.Size]byte
	clientTime time.Time
	// signed says that the leaf's key signed for the node in the leaf's name. It is found out before any transaction: a
	// signature costs more than all that a transaction reads. A leaf that is one of ours says the truth.
	signed bool
}

// newProof reads a proof from a request's fields. The chain is DER, leaf first.
func newProof(p signing.Purpose, chain [][]byte, csrSHA256 [sha256.Size]byte, clientTimeUnixMS int64, sig []byte) proof {
	made := proof{purpose: p, csrSHA256: csrSHA256, clientTime: time.UnixMilli(clientTimeUnixMS)}
	if len(chain) == 0 {
		return made
	}
	made.leaf, _ = x509.ParseCertificate(chain[0]) // nil is no certificate of ours
	if made.leaf != nil && len(made.leaf.URIs) > 0 {
		node := path.Base(made.leaf.URIs[0].Path)
		made.signed = signing.Verify(made.leaf.PublicKey, p, made.payload(node), sig) == nil
	}
	return made
}

// find returns the row of the leaf and its node.
func (p *proof) find(tx *store.Tx) (store.Cert, store.Node, error) {
	if p.leaf == nil {
		return store.Cert{}, store.Node{}, Refuse(reasonUnknown)
	}
	return findLeaf(tx, p.leaf)
}

// payload is what the proof signs, for a node.
func (p *proof) payload(nodeID string) []byte { return signing.PoP(p.csrSHA256, p.clientTime, nodeID) }

// check checks the signature, the time, and that the proof was not used before. Once the signature is good, the node's
// tenant may be told of a refusal.
func (p *proof) check(tx *store.Tx, node store.Node) error {
	if !p.signed {
		return Refuse("pop")
	}
	if tx.Now().Sub(p.clientTime).Abs() > clientTimeWithin {
		return tellTenant(Refuse("client-time"), node.TenantID)
	}
	used, err := tx.ProofUsed(p.digest(node.ID), proofsKept)
	if err == nil && used {
		err = tellTenant(Refuse("replay"), node.TenantID)
	}
	return err
}

// digest names the proof in the record of used ones.
func (p *proof) digest(nodeID string) [sha256.Size]byte { return p.purpose.Digest(p.payload(nodeID)) }

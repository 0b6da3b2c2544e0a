package joinservice

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"strings"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

const (
	// clientTimeWithin is how far a renewal's client time may be from ours.
	clientTimeWithin = 60 * time.Second
	// proofsKept is how long a used proof is remembered. It covers the whole span in which client_time is good.
	proofsKept = 120 * time.Second
)

// statementTPMAK begins the statement that names a TPM's attestation key.
const statementTPMAK = "urn:bc:tpm-ak:"

// renewal is one call of Renew.
type renewal struct {
	peer *x509.Certificate // of the TLS connection; nil is none
	leaf *x509.Certificate // presented; nil where it does not parse
	// csrDER is judged last, after the caller has proved its key.
	csrDER     []byte
	csrSHA256  [sha256.Size]byte
	clientTime time.Time
	popSig     []byte
	attested   *daemonv1.KeyAttestation
	// pop is what popSig signs, once the node is known.
	pop []byte
	csr *x509.CertificateRequest
}

func parseRenewal(in *joinv1.RenewRequest) *renewal {
	req := in.GetRequest()
	r := &renewal{
		csrDER: req.GetCsr(), csrSHA256: digestOf(req.GetCsr()), clientTime: time.UnixMilli(req.GetClientTimeUnixMs()),
		popSig: req.GetPopSig(), attested: req.GetKeyAttestation(),
	}
	if chain := req.GetChain(); len(chain) > 0 {
		r.leaf, _ = x509.ParseCertificate(chain[0]) // nil is no certificate of ours
	}
	r.peer, _ = x509.ParseCertificate(in.GetPeer().GetCertificate())
	return r
}

// Renew implements [joinv1.JoinServiceServer].
func (s *Service) Renew(ctx context.Context, in *joinv1.RenewRequest) (*daemonv1.RenewResponse, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	arrived := s.now()
	r := parseRenewal(in)
	answer, err := s.renew(ctx, r)
	if err == nil {
		return answer, nil
	}
	return nil, s.answer(ctx, arrived, err, errRenewRefused, func(refused *refusal) { s.tellRenew(ctx, r, refused) })
}

// renewed is what the checks of a renewal found.
type renewed struct {
	leaf store.Cert
	node store.Node
	// before is the certificate that this leaf got for this CSR before; nil is none.
	before *store.Cert
	// successor is a certificate in use that this leaf got for another CSR; nil is none.
	successor *store.Cert
}

func (s *Service) renew(ctx context.Context, r *renewal) (*daemonv1.RenewResponse, error) {
	var found *renewed
	err := s.store.Read(ctx, func(tx *store.Tx) (err error) {
		found, err = r.check(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var cert store.Cert
	if found.before != nil {
		cert = *found.before
	} else {
		cert = store.Cert{
			NodeID: found.node.ID, Generation: found.leaf.Generation, Role: found.leaf.Role,
			SPKISHA256: sha256.Sum256(r.csr.RawSubjectPublicKeyInfo), CSRSHA256: r.csrSHA256,
			AllowedKinds: found.leaf.AllowedKinds, Statements: found.leaf.Statements, MaxLifetime: found.leaf.MaxLifetime,
			Predecessor: found.leaf.Serial,
		}
		if err := s.issue(&cert, found.node.SiteID, r.csr); err != nil {
			return nil, err
		}
	}
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		now, err := r.check(tx)
		if err != nil {
			return err
		}
		if (now.before == nil) != (found.before == nil) || now.node.SiteID != found.node.SiteID {
			return errRenewConflict
		}
		return r.record(tx, now, cert)
	})
	if errors.Is(err, store.ErrDuplicate) {
		return nil, errRenewConflict
	}
	if err != nil {
		return nil, err
	}
	return s.signRenew(r.pop, s.admission(found.node, cert))
}

// check runs the checks in their order. It only reads.
func (r *renewal) check(tx *store.Tx) (*renewed, error) {
	if r.leaf == nil {
		return nil, Refuse(reasonUnknown)
	}
	leaf, node, err := findLeaf(tx, r.leaf)
	if err != nil {
		return nil, err
	}
	found, err := r.checkProof(tx, leaf, node)
	var refused *refusal
	if errors.As(err, &refused) {
		refused.node, refused.serial = node.ID, leaf.Serial
		if refused.reason != "pop" {
			refused.tenant = node.TenantID // the caller holds the current key
		}
	}
	return found, err
}

func (r *renewal) checkProof(tx *store.Tx, leaf store.Cert, node store.Node) (*renewed, error) {
	r.pop = signing.PoP(r.csrSHA256, r.clientTime, node.ID)
	if signing.Verify(r.leaf.PublicKey, signing.RenewPoP, r.pop, r.popSig) != nil {
		return nil, Refuse("pop")
	}
	if tx.Now().Sub(r.clientTime).Abs() > clientTimeWithin {
		return nil, Refuse("client-time")
	}
	used, err := tx.ProofUsed(signing.RenewPoP.Digest(r.pop), proofsKept)
	if err != nil {
		return nil, err
	}
	if used {
		return nil, Refuse("replay")
	}
	if err := checkLeaf(tx, leaf, node); err != nil {
		return nil, err
	}
	if err := r.checkPeer(tx, node); err != nil {
		return nil, err
	}
	// The statements come from the leaf, never from the CSR. No attestation can be checked, so none is good enough: the
	// certificate is not renewed without its statement.
	for _, statement := range leaf.Statements {
		if strings.HasPrefix(statement, statementTPMAK) {
			return nil, Refuse("key-attestation-missing")
		}
	}
	return r.checkCSR(tx, leaf, node)
}

// checkPeer checks that the connection's certificate is one of the node's, and good.
func (r *renewal) checkPeer(tx *store.Tx, node store.Node) error {
	if r.peer == nil {
		return Refuse(reasonIdentity)
	}
	c, n, err := findLeaf(tx, r.peer)
	if err == nil && n.ID != node.ID {
		return Refuse(reasonIdentity)
	}
	if err == nil {
		err = checkLeaf(tx, c, n)
	}
	var refused *refusal
	if errors.As(err, &refused) {
		return Refuse(reasonIdentity)
	}
	return err
}

// checkCSR checks the next key, and finds what the leaf was renewed to before.
func (r *renewal) checkCSR(tx *store.Tx, leaf store.Cert, node store.Node) (*renewed, error) {
	csr, err := parseCSR(r.csrDER)
	if err != nil || csr.CheckSignature() != nil {
		return nil, Refuse("csr")
	}
	r.csr = csr
	successors, err := tx.Successors(leaf.Serial)
	if err != nil {
		return nil, err
	}
	found := &renewed{leaf: leaf, node: node}
	for i := range successors {
		switch c := &successors[i]; {
		case c.CSRSHA256 == r.csrSHA256:
			found.before = c
		case !c.FirstUsedAt.IsZero():
			found.successor = c
		}
	}
	if found.before != nil {
		return found, checkLeaf(tx, *found.before, node)
	}
	switch _, err := tx.CertBySPKI(sha256.Sum256(csr.RawSubjectPublicKeyInfo)); {
	case err == nil:
		return nil, Refuse("csr") // a key that has or had a certificate is no next key
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	}
	return found, nil
}

// record writes a renewal. A repeat writes only its proof.
func (r *renewal) record(tx *store.Tx, found *renewed, cert store.Cert) error {
	if err := tx.UseProof(signing.RenewPoP.Digest(r.pop), proofsKept); err != nil {
		return err
	}
	if found.before != nil {
		return nil
	}
	if err := markUsed(tx, found.leaf); err != nil {
		return err
	}
	if err := tx.InsertCert(cert); err != nil {
		return err
	}
	if found.successor == nil {
		return nil
	}
	return tx.Publish(found.node.TenantID, events.RenewForked{
		NodeID: found.node.ID, Serial: found.leaf.Serial, Successor: found.successor.Serial, Forked: cert.Serial,
	})
}

// tellRenew publishes a refused renewal, if its kind is not over its limit.
func (s *Service) tellRenew(ctx context.Context, r *renewal, refused *refusal) {
	k := events.Kind{Tenant: s.receiver(refused), Attestor: "renew", Reason: refused.reason}
	s.publish(ctx, k, func(suppressed int64) events.Payload {
		return events.RenewRefused{
			Reason: refused.reason, NodeID: refused.node, Serial: refused.serial,
			CSRSHA256: digestText(r.csrSHA256), Suppressed: suppressed,
		}
	})
}

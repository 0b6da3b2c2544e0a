package joinservice

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"errors"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

// renewal is one call of Renew.
type renewal struct {
	peer *x509.Certificate // of the TLS connection; nil is none
	// proof is by the key of the certificate that is presented.
	proof proof
	// csrDER is judged last, after the caller has proved its key.
	csrDER   []byte
	attested *daemonv1.KeyAttestation
	csr      *x509.CertificateRequest
}

func parseRenewal(in *joinv1.RenewRequest) *renewal {
	req := in.GetRequest()
	r := &renewal{
		proof:  newProof(signing.RenewPoP, req.GetChain(), digestOf(req.GetCsr()), req.GetClientTimeUnixMs(), req.GetPopSig()),
		csrDER: req.GetCsr(), attested: req.GetKeyAttestation(),
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
		cert = nextCert(found.leaf, sha256.Sum256(r.csr.RawSubjectPublicKeyInfo), r.proof.csrSHA256)
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
	return s.signRenew(r.proof.payload(found.node.ID), s.admission(found.node, cert))
}

// check runs the checks in their order. It only reads.
func (r *renewal) check(tx *store.Tx) (*renewed, error) {
	leaf, node, err := r.proof.find(tx)
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
	if err := r.proof.check(tx, node); err != nil {
		return nil, err
	}
	if err := checkLeaf(tx, leaf, node); err != nil {
		return nil, err
	}
	if err := r.checkPeer(tx, node); err != nil {
		return nil, err
	}
	var next crypto.PublicKey
	csr, err := parseCSR(r.csrDER)
	if err == nil {
		next = csr.PublicKey
	}
	if err := checkKeyAttestation(leaf, r.attested, next, r.proof.csrSHA256); err != nil {
		return nil, err
	}
	if err != nil {
		return nil, Refuse("csr")
	}
	return r.checkCSR(tx, leaf, node, csr)
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
func (r *renewal) checkCSR(tx *store.Tx, leaf store.Cert, node store.Node, csr *x509.CertificateRequest) (_ *renewed, err error) {
	if csr.CheckSignature() != nil {
		return nil, Refuse("csr")
	}
	r.csr = csr
	found := &renewed{leaf: leaf, node: node}
	if found.before, found.successor, err = successorsOf(tx, leaf, r.proof.csrSHA256); err != nil {
		return nil, err
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
	if err := tx.UseProof(r.proof.digest(found.node.ID), proofsKept); err != nil {
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
	return tellForked(tx, found.node, found.leaf, found.successor, cert.Serial)
}

// tellRenew publishes a refused renewal, if its kind is not over its limit.
func (s *Service) tellRenew(ctx context.Context, r *renewal, refused *refusal) {
	k := events.Kind{Tenant: s.receiver(refused), Attestor: "renew", Reason: refused.reason}
	s.publish(ctx, k, func(suppressed int64) events.Payload {
		return events.RenewRefused{
			Reason: refused.reason, NodeID: refused.node, Serial: refused.serial,
			CSRSHA256: digestText(r.proof.csrSHA256), Suppressed: suppressed,
		}
	})
}

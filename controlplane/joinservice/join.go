package joinservice

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
)

// Challenge implements [joinv1.JoinServiceServer]. No attestor that is configured uses it: it is refused like a join by
// one that is not.
func (s *Service) Challenge(ctx context.Context, in *joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	req := &Request{body: &daemonv1.JoinRequestBody{Attestor: "tpm"}}
	copy(req.csrSHA256[:], in.GetRequest().GetCsrSha256())
	return nil, s.answer(ctx, s.now(), Refuse("join:attestor"), errJoinRefused, func(r *refusal) { s.tellJoin(ctx, req, r) })
}

// Join implements [joinv1.JoinServiceServer].
func (s *Service) Join(ctx context.Context, in *joinv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	arrived := s.now()
	req, err := parse(in)
	if err == nil {
		var a *daemonv1.Admission
		if a, err = s.admit(ctx, req); err == nil {
			var answer *daemonv1.JoinResponse
			if answer, err = s.signJoin(req, a); err == nil {
				return answer, nil
			}
		}
	}
	return nil, s.answer(ctx, arrived, err, errJoinRefused, func(r *refusal) { s.tellJoin(ctx, req, r) })
}

// admit decides on a snapshot, issues, and then decides again in the transaction that records the admission. So a refusal
// takes no write lock, and no key is used under it.
func (s *Service) admit(ctx context.Context, req *Request) (*daemonv1.Admission, error) {
	attestor, ok := s.attestors[req.attestor()]
	if !ok {
		return nil, Refuse("join:attestor")
	}
	credential, err := attestor.Open(ctx, req)
	if err != nil {
		return nil, err
	}
	d := &decision{
		req: req, attestor: attestor.Name(), credential: credential, rootTenant: s.rootTenant,
		newNode: store.NewID(store.PrefixNode, s.now()),
	}
	var p *plan
	err = s.store.Read(ctx, func(tx *store.Tx) (err error) {
		p, err = d.decide(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	if p.repeat != nil {
		return s.admission(p.node, *p.repeat), nil
	}
	cert, err := s.issueJoin(req, p)
	if err != nil {
		return nil, err
	}
	err = s.store.Write(ctx, func(tx *store.Tx) error {
		now, err := d.decide(tx)
		if err != nil {
			return err
		}
		if !now.same(p) {
			return errConflict
		}
		return d.record(tx, now, cert)
	})
	if errors.Is(err, store.ErrDuplicate) {
		return nil, errConflict
	}
	if err != nil {
		return nil, err
	}
	return s.admission(p.node, cert), nil
}

// issueJoin makes the certificate of a planned admission. Nothing of it comes from the CSR but the key.
func (s *Service) issueJoin(req *Request, p *plan) (store.Cert, error) {
	cert := store.Cert{
		NodeID: p.node.ID, Generation: p.node.IdentityGeneration, Role: certRole(p.node),
		SPKISHA256: req.spkiSHA256, CSRSHA256: req.csrSHA256, AllowedKinds: p.grant.AllowedKinds,
		Statements: p.grant.Statements, MaxLifetime: p.grant.MaxLifetime,
	}
	return cert, s.issue(&cert, p.node.SiteID, req.csr)
}

// issue completes a certificate's row with the certificate.
func (s *Service) issue(c *store.Cert, site string, csr *x509.CertificateRequest) error {
	lifetime := s.certTTL
	if c.MaxLifetime > 0 {
		lifetime = min(lifetime, c.MaxLifetime)
	}
	leaf, err := s.keys.Issuer.IssueNode(pki.NodeRequest{
		Site: site, Node: c.NodeID, Role: c.Role, Statements: c.Statements, Key: csr.PublicKey, Now: s.now(), Lifetime: lifetime,
	})
	if err != nil {
		return fmt.Errorf("cannot issue: %w", err)
	}
	c.Serial, c.DER = serialOf(leaf), leaf.Raw
	c.NotBefore, c.NotAfter = leaf.NotBefore, leaf.NotAfter
	return nil
}

// serialOf is the serial as rows, events and daemons spell it.
func serialOf(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

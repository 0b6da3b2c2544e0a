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

// Join implements [joinv1.JoinServiceServer].
func (s *Service) Join(ctx context.Context, in *joinv1.JoinRequest) (*daemonv1.JoinResponse, error) {
	if s.keys == nil {
		return nil, errNoKeys
	}
	arrived := s.now()
	req, err := parse(in)
	if err == nil {
		var body *daemonv1.JoinResponseBody
		if body, err = s.admit(ctx, req); err == nil {
			var answer *daemonv1.JoinResponse
			if answer, err = s.signJoin(req, body); err == nil {
				return answer, nil
			}
		}
	}
	return nil, s.answer(ctx, arrived, err, errJoinRefused, func(r *refusal) { s.tellJoin(ctx, req, r) })
}

// admit decides on a snapshot, issues, and then decides again in the transaction that records the admission. So a refusal
// takes no write lock, and no key is used under it. Where a person decides, the machine is told to wait.
func (s *Service) admit(ctx context.Context, req *Request) (*daemonv1.JoinResponseBody, error) {
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
	switch {
	case p.repeat != nil:
		return s.repeat(ctx, d, p)
	case p.deferral != nil:
		return s.wait(ctx, d, p)
	}
	cert, err := s.issueJoin(req, p)
	if err != nil {
		return nil, err
	}
	if err := s.decideAgain(ctx, d, func(tx *store.Tx, now *plan) error {
		if !now.same(p) {
			return errConflict
		}
		return d.record(tx, now, cert)
	}); err != nil {
		return nil, err
	}
	return s.admitted(p.node, cert), nil
}

// decideAgain decides in a transaction, and records with fn.
func (s *Service) decideAgain(ctx context.Context, d *decision, fn func(*store.Tx, *plan) error) error {
	err := s.store.Write(ctx, func(tx *store.Tx) error {
		p, err := d.decide(tx)
		if err != nil {
			return err
		}
		return fn(tx, p)
	})
	if errors.Is(err, store.ErrDuplicate) {
		return errConflict
	}
	return err
}

// repeat answers a request that was admitted before. It writes nothing but that its evidence was used, where it is good for
// one request.
func (s *Service) repeat(ctx context.Context, d *decision, p *plan) (*daemonv1.JoinResponseBody, error) {
	if p.grant.Proof != nil {
		if err := s.decideAgain(ctx, d, func(tx *store.Tx, now *plan) error {
			if now.repeat == nil || now.repeat.Serial != p.repeat.Serial {
				return errConflict
			}
			return tx.UseProof(*now.grant.Proof, proofsKept)
		}); err != nil {
			return nil, err
		}
	}
	return s.admitted(p.node, *p.repeat), nil
}

// wait answers a request that a person decides. It writes nothing where that request waits already.
func (s *Service) wait(ctx context.Context, d *decision, p *plan) (*daemonv1.JoinResponseBody, error) {
	waiting := p.deferral
	if p.ask {
		if err := s.decideAgain(ctx, d, func(tx *store.Tx, now *plan) error {
			if now.deferral == nil {
				return errConflict // decided, or admitted, in between
			}
			waiting = now.deferral
			if !now.ask {
				return nil // the same request, at the same time
			}
			return d.recordRequest(tx, now)
		}); err != nil {
			return nil, err
		}
	}
	return deferralOf(waiting), nil
}

// issueJoin makes the certificate of a planned admission. Nothing of it comes from the CSR but the key.
func (s *Service) issueJoin(req *Request, p *plan) (store.Cert, error) {
	cert := store.Cert{
		NodeID: p.node.ID, Generation: p.node.IdentityGeneration, Role: certRole(p.node),
		SPKISHA256: req.spkiSHA256, CSRSHA256: req.csrSHA256, AllowedKinds: p.grant.AllowedKinds,
		Statements: p.grant.Statements, MaxLifetime: p.grant.MaxLifetime,
	}
	if follows := p.grant.Succeeds; follows != nil {
		cert = nextCert(follows.Leaf, req.spkiSHA256, req.csrSHA256)
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

package joinservice

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// AttestorTPM is the name of [TPM].
const AttestorTPM = "tpm"

// TPM admits a machine by its TPM 2.0, without a token. The TPM proves its endorsement key (EK), its attestation key and, by
// that, where the node's key lives. Who the EK belongs to is said by one of these, in this order: the node that it is bound
// to, an operator's allow-list, the certificate of the TPM's maker, a person.
type TPM struct {
	o         TPMOptions
	challenge *challengeSeal
}

// TPMOptions configure [NewTPM]. The zero value admits by bindings and allow-lists alone.
type TPMOptions struct {
	// Roots are the authorities of TPM makers.
	Roots []*x509.Certificate
	// Pools are, by the id of a site, the pools that take every TPM with a certificate under Roots.
	Pools map[string]string
	// Enrollment asks a person about any other TPM.
	Enrollment bool
	// PendingTTL is how long a request waits for that decision; 0 is [DefaultPendingTTL].
	PendingTTL time.Duration
}

// NewTPM returns the attestor. Every JoinService with the same keys takes the challenges of the others.
func NewTPM(keys *Keys, o TPMOptions) (*TPM, error) {
	sealed, err := newChallengeSeal(keys)
	if err != nil {
		return nil, fmt.Errorf("cannot make the attestor %s: %w", AttestorTPM, err)
	}
	if o.PendingTTL == 0 {
		o.PendingTTL = DefaultPendingTTL
	}
	return &TPM{o: o, challenge: sealed}, nil
}

// Name implements [Attestor].
func (*TPM) Name() string { return AttestorTPM }

// Open implements [Attestor]: it finds the challenge again that the request answers, and checks the answer. The attestation
// of the node's key is checked too, but a refusal for it waits until it is known who may be told.
func (a *TPM) Open(_ context.Context, r *Request) (Credential, error) {
	e := r.Evidence().GetTpm()
	c, err := a.challenge.open(e.GetState())
	if err != nil || c.CSRSHA256 != r.csrSHA256 {
		return nil, Refuse("tpm:challenge")
	}
	if !hmac.Equal(e.GetProof(), attest.Proof(c.Secret, r.csrSHA256)) {
		return nil, Refuse("tpm:activation")
	}
	r.ekSHA256 = digestText(c.EKSHA256)
	made := &tpmCredential{attestor: a, challenge: c, role: r.Role(), site: r.body.GetSite()}
	if err := attest.VerifyCertification(certificationOf(e.GetKeyAttestation()), c.Statement, r.csr.PublicKey, r.csrSHA256); err != nil {
		made.attestation = Refuse(AttestorTPM + ":" + attest.ReasonOf(err))
	}
	return made, nil
}

type tpmCredential struct {
	attestor    *TPM
	challenge   *challenge
	attestation error // nil where the node's key is attested
	role, site  string
}

// Prove implements [Credential].
func (c *tpmCredential) Prove(tx *store.Tx) (*Grant, error) {
	if !tx.Now().Before(c.challenge.ExpiresAt) {
		return nil, Refuse("tpm:challenge")
	}
	g, err := c.vouched(tx)
	if err != nil {
		return nil, err
	}
	g.EKSHA256, g.NodeKeyInTPM, g.Statements = &c.challenge.EKSHA256, true, []string{c.challenge.Statement}
	g.AllowReclaim = true // of the node that is bound to the EK, and of no other
	if c.attestation != nil {
		return nil, g.tell(c.attestation)
	}
	return g, nil
}

// vouched finds who says whose machine the TPM is in.
func (c *tpmCredential) vouched(tx *store.Tx) (*Grant, error) {
	node, err := tx.NodeByEK(c.challenge.EKSHA256)
	if err == nil {
		return &Grant{
			TenantID: node.TenantID, SiteID: node.SiteID, PoolID: node.PoolID, PlaceholderOK: true,
			// Whoever has root on the machine must not get the platform's trust back by joining again.
			Hosted: node.Trust == store.TrustTenantControlled,
		}, nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	listed, err := tx.EKAllowsOf(c.challenge.EKSHA256)
	if err != nil {
		return nil, err
	}
	for _, e := range listed {
		if e.SiteID == c.site {
			return listedGrant(e), nil
		}
	}
	if pool := c.attestor.o.Pools[c.site]; pool != "" && c.challenge.Verified {
		return poolGrant(tx, c.site, pool)
	}
	if c.attestor.o.Enrollment {
		return c.enrollment(tx)
	}
	if len(listed) > 0 { // at another site, where the machine should be
		return listedGrant(listed[0]), nil
	}
	return nil, Refuse("tpm:ek")
}

// listedGrant is the grant of an allow-list entry. Whoever listed the EK knows the machine, whatever its firmware says.
func listedGrant(e store.EKAllow) *Grant {
	return &Grant{TenantID: e.TenantID, SiteID: e.SiteID, PoolID: e.PoolID, PlaceholderOK: true}
}

// poolGrant is the grant of a site's pool for TPMs whose maker is known. Its owner does not know this one.
func poolGrant(tx *store.Tx, site, poolID string) (*Grant, error) {
	pool, err := tx.Pool(poolID)
	if errors.Is(err, store.ErrNotFound) {
		return nil, Refuse("join:pool")
	}
	return &Grant{TenantID: pool.TenantID, SiteID: site, PoolID: poolID, Stranger: true}, err
}

// enrollment is the grant of a TPM that nobody knows: the site's owner decides.
func (c *tpmCredential) enrollment(tx *store.Tx) (*Grant, error) {
	site, err := tx.Site(c.site)
	if errors.Is(err, store.ErrNotFound) {
		return nil, Refuse("join:site")
	}
	return &Grant{
		TenantID: site.TenantID, SiteID: site.ID, Stranger: true,
		Approval: &Approval{
			Rule: ApproveUnknown, PendingTTL: c.attestor.o.PendingTTL,
			EKSHA256: c.challenge.EKSHA256[:], EKUnverified: !c.challenge.Verified,
		},
	}, err
}

// Check implements [Credential].
func (c *tpmCredential) Check(*store.Tx, *Grant) error {
	switch {
	case c.role != store.RoleNode:
		return Refuse("tpm:role-mismatch")
	case c.site == "":
		return Refuse("join:site")
	}
	return nil
}

// Spend implements [Credential]. A TPM costs nothing.
func (*tpmCredential) Spend(*store.Tx, *Grant) error { return nil }

// answerChallenge makes a credential that only the TPM with both keys opens. Nothing is written, and nothing is asked of the
// database: whether an EK is known is told to nobody who has not proved that it is its own.
func (a *TPM) answerChallenge(r *daemonv1.ChallengeRequest, now time.Time) (*daemonv1.ChallengeResponse, error) {
	if len(r.GetCsrSha256()) != sha256.Size || len(r.GetEkChain()) > attest.MaxCertificates {
		return nil, Refuse("tpm:challenge")
	}
	ek := attest.EK{SPKI: r.GetEkSpki(), Template: r.GetEkTemplate()}
	if ek.Check() != nil {
		return nil, Refuse("tpm:ek")
	}
	statement, err := attest.AKStatement(r.GetAkPublic())
	if err != nil {
		return nil, Refuse(AttestorTPM + ":" + attest.ReasonAK)
	}
	c := newChallenge(now)
	c.EKSHA256, c.Statement = ek.Hash(), statement
	copy(c.CSRSHA256[:], r.GetCsrSha256())
	// A chain that does not verify is like none: other things may vouch for the EK.
	c.Verified = len(a.o.Roots) > 0 && attest.VerifyEKChain(ek, r.GetEkChain(), a.o.Roots, now) == nil
	blob, secret, err := attest.MakeCredential(ek, r.GetAkPublic(), c.Secret)
	if err != nil {
		return nil, Refuse("tpm:ek") // a point that no arithmetic works with, say
	}
	state, err := a.challenge.seal(c)
	if err != nil {
		return nil, err
	}
	return &daemonv1.ChallengeResponse{CredentialBlob: blob, EncryptedSecret: secret, State: state}, nil
}

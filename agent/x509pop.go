package agent

import (
	"context"
	"crypto"
	"crypto/sha256"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
)

// x509pop is the attestor x509pop: the key of the machine's certificate, which may have expired lately, proves that it is the
// node that it was.
type x509pop struct {
	*Agent
	id  *identity.Identity
	key crypto.Signer

	corrected bool          // a refused proof was made again with a better time
	offset    time.Duration // of the last proof's time from the machine's clock
}

// newX509PoP returns the attestor of an identity. loading is why there is none.
func newX509PoP(a *Agent, id *identity.Identity, key crypto.Signer, loading error) (*x509pop, error) {
	if loading != nil {
		return nil, fault.New(fault.CodeOf(loading), "join with a token: "+fault.HintJoinAgain, "cannot prove the old certificate's key: %w", loading)
	}
	return &x509pop{Agent: a, id: id, key: key}, nil
}

func (x *x509pop) tokenID() string { return "" }

func (x *x509pop) check(context.Context, *daemonv1.HardwareClaims) error { return nil }

// prove implements attestor.
func (x *x509pop) prove(ctx context.Context, t try) error {
	attestation, err := x.keyAttestation(ctx, x.id.Leaf(), t.key, t.body.GetCsr())
	if err != nil {
		return err
	}
	at := x.clock.Proof(0)
	x.offset = at.Sub(x.clock.Local())
	pop, err := signing.Sign(x.key, signing.X509PoP, signing.PoP(sha256.Sum256(t.body.GetCsr()), at, x.id.NodeID))
	if err != nil {
		return err
	}
	t.body.Attestor = AttestorX509PoP
	t.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_X509Pop{X509Pop: &daemonv1.X509PopEvidence{
		Chain: x.id.Chain.DER(), ClientTimeUnixMs: at.UnixMilli(), PopSig: pop, KeyAttestation: attestation,
	}}}
	return nil
}

// expect implements attestor: the answer must be for the same node.
func (x *x509pop) expect(want *identity.Expectation) { want.Current, want.Rejoins = x.id, true }

func (x *x509pop) admitted() error { return nil }

func (x *x509pop) close() {}

// again reports whether a refusal may be of the proof's time alone: the control plane's clock is known better by now than when
// the proof was made. A gateway that lies about its time gets one more proof, which is good for nothing else.
func (x *x509pop) again() bool {
	better := (x.clock.Proof(0).Sub(x.clock.Local()) - x.offset).Abs() > agreeWithin
	if x.corrected || !better {
		return false
	}
	x.corrected = true
	return true
}

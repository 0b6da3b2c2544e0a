package agent

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"slices"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// hintOtherTPM is what to do where the TPM is another one than the certificate's.
const hintOtherTPM = "put the TPM back that the certificate names; where it was cleared or replaced, run as root: bcd join --reset --yes --attestor tpm"

// tpmAwayError is what keeps a node whose certificate names an attestation key from proving anything with it.
type tpmAwayError struct{ err error }

func (e *tpmAwayError) Error() string {
	return "the TPM is unavailable or names another AK: " + e.err.Error()
}
func (e *tpmAwayError) Unwrap() error { return e.err }

// tpmAway marks a failure of the TPM as one that keeps a node with an attestation key from all else.
func tpmAway(leaf *x509.Certificate, err error) error {
	if away, marked := errors.AsType[*tpmAwayError](err); marked {
		err = away.err
	} else if !isTPMFault(err) || !namesAK(leaf) {
		return err
	}
	if fault.Is(err, fault.TPMKeyLost) {
		err = fault.New(fault.TPMKeyLost, hintOtherTPM, "%w", err)
	}
	return &tpmAwayError{err}
}

// namesAK reports whether only a key that one TPM vouches for may succeed a certificate's.
func namesAK(leaf *x509.Certificate) bool {
	named, err := identity.AttestationKeys(leaf)
	return err != nil || len(named) > 0
}

// checkAK derives the TPM's attestation key and compares it with the one that the certificate names. A certificate that
// names none needs no TPM.
func (a *Agent) checkAK(ctx context.Context, leaf *x509.Certificate) error {
	named, err := identity.AttestationKeys(leaf)
	if err != nil || len(named) == 0 {
		return err
	}
	public, err := a.keys.Attester().AKPublic(ctx)
	if err != nil {
		return &tpmAwayError{err}
	}
	return sameAK(named, public)
}

func sameAK(named []string, public []byte) error {
	got, err := attest.AKStatement(public)
	if err != nil {
		return &tpmAwayError{err}
	}
	if !slices.Equal(named, []string{got}) {
		return &tpmAwayError{fault.New(fault.TPMKeyLost, hintOtherTPM, "the TPM's attestation key is %q, and the certificate names %q", got, named)}
	}
	return nil
}

// keyAttestation has the TPM vouch for the key of a certificate request, where the certificate that the request is to
// succeed names the TPM's attestation key; it is nil where it names none. Without it nothing may be sent: there is no
// weaker way for such a node. A key that this TPM can't load is a [fault.TPMKeyLost] error.
func (a *Agent) keyAttestation(ctx context.Context, leaf *x509.Certificate, key crypto.Signer, csr []byte) (*daemonv1.KeyAttestation, error) {
	named, err := identity.AttestationKeys(leaf)
	if err != nil || len(named) == 0 {
		return nil, err
	}
	certified, err := a.keys.Attester().Certify(ctx, key, sha256.Sum256(csr))
	if err != nil {
		return nil, &tpmAwayError{err}
	}
	if err := sameAK(named, certified.AKPublic); err != nil {
		return nil, err
	}
	return wireAttestation(certified), nil
}

// isTPMFault reports whether the TPM, or the way to it, is why something failed.
func isTPMFault(err error) bool {
	return slices.Contains([]fault.Code{
		fault.TPMUnavailable, fault.TPMUnusable, fault.TPMKeyLost, fault.TPMAuth, fault.TPMLockout,
	}, fault.CodeOf(err))
}

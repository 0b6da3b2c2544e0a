package agent

import (
	"context"
	"crypto/sha256"
	"log/slog"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// tpmAttestor is the attestor tpm: the machine's TPM proves which TPM it is, and that the node's key lives in it.
type tpmAttestor struct {
	attester prover
	log      *slog.Logger

	tpm       tpmkey.Identity // from check
	statement string          // of its AK
}

func (t *tpmAttestor) tokenID() string { return "" }

// check implements attestor. A machine whose TPM can't be used says so before anything else happens.
func (t *tpmAttestor) check(ctx context.Context, _ *daemonv1.HardwareClaims) (err error) {
	if t.tpm, err = t.attester.Identify(ctx); err != nil {
		return withoutTPM(err)
	}
	if t.statement, err = attest.AKStatement(t.tpm.AKPublic); err != nil {
		return err
	}
	for _, note := range t.tpm.Notes {
		t.log.WarnContext(ctx, "pass over endorsement key", "reason", note)
	}
	return nil
}

func withoutTPM(err error) error {
	return fault.New(fault.CodeOf(err), "", "cannot join by the TPM: %w", err)
}

// prove implements attestor. The key is certified before the challenge is asked for, which lives for minutes.
func (t *tpmAttestor) prove(ctx context.Context, try try) error {
	csrSHA256 := sha256.Sum256(try.body.GetCsr())
	certified, err := t.attester.Certify(ctx, try.key, csrSHA256)
	if err != nil {
		return err
	}
	callCtx, called := try.within(ctx)
	defer called()
	challenge, err := try.client.Challenge(callCtx, &daemonv1.ChallengeRequest{
		EkSpki: t.tpm.EK.SPKI, EkTemplate: t.tpm.EK.Template, EkChain: t.tpm.EKCertificates, AkPublic: t.tpm.AKPublic, CsrSha256: csrSHA256[:],
	})
	if err != nil {
		return err
	}
	secret, err := t.attester.ActivateCredential(ctx, challenge.GetCredentialBlob(), challenge.GetEncryptedSecret())
	if err != nil {
		return err
	}
	try.body.Attestor = AttestorTPM
	try.body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Tpm{Tpm: &daemonv1.TpmEvidence{
		Proof: attest.Proof([sha256.Size]byte(secret), csrSHA256), State: challenge.GetState(), KeyAttestation: wireAttestation(certified),
	}}}
	return nil
}

// expect implements attestor.
func (t *tpmAttestor) expect(want *identity.Expectation) { want.AttestationKey = t.statement }

func (t *tpmAttestor) admitted() error { return nil }

func (t *tpmAttestor) close() {}

func wireAttestation(c attest.Certification) *daemonv1.KeyAttestation {
	return &daemonv1.KeyAttestation{CertifyInfo: c.CertifyInfo, Signature: c.Signature, NodePublic: c.NodePublic, AkPublic: c.AKPublic}
}

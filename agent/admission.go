package agent

import (
	"crypto/x509"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/signing"
)

// admissionOf maps the wire's admission, and what stands beside it in the body, to the identity's.
func admissionOf(w *daemonv1.Admission, requestSHA256 []byte, serverTimeMs int64, next *daemonv1.NextPins) identity.Admission {
	return identity.Admission{
		NodeID:       w.GetNodeId(),
		Chain:        w.GetChain(),
		NodeCA:       w.GetNodeCaBundle(),
		CommandTrust: w.GetCommandTrustBundle(),
		CSRSHA256:    w.GetCsrSha256(),
		TrustDomain:  w.GetTrustDomain(),
		Site:         w.GetSite(),
		Role:         w.GetRole(),
		AllowedKinds: w.GetAllowedKinds(),
		Generation:   w.GetIdentityGeneration(),

		RequestSHA256:         requestSHA256,
		ServerTime:            time.UnixMilli(serverTimeMs),
		NextServingCA:         next.GetServingCaSpki(),
		NextJoinSigningKey:    next.GetJoinSigningKey(),
		NextJoinEncryptionKey: next.GetJoinEncryptionKey(),
	}
}

// verifyAnswer checks an answer's signature under the pinned keys. Only then may its body be parsed.
func verifyAnswer(p signing.Purpose, body []byte, sig *daemonv1.Signature, pins pin.Set) error {
	return identity.VerifySignature(p, body, sig.GetSignature(), sig.GetCertificate(), pins)
}

// serialText is a certificate's serial as the control plane's records spell it: lower-case hex without leading zeros.
func serialText(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

package joinservice

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

// admission is what a machine is told of its certificate.
func (s *Service) admission(n store.Node, c store.Cert) *daemonv1.Admission {
	return &daemonv1.Admission{
		NodeId: n.ID, Chain: [][]byte{c.DER}, NodeCaBundle: ders(s.keys.NodeCAs), CommandTrustBundle: ders(s.keys.CommandCAs),
		CsrSha256: c.CSRSHA256[:], TrustDomain: s.keys.TrustDomain, Site: n.SiteID, Role: c.Role,
		AllowedKinds: c.AllowedKinds, IdentityGeneration: uint64(c.Generation), //nolint:gosec // it counts from 1
	}
}

// admitted is the answer that admits.
func (s *Service) admitted(n store.Node, c store.Cert) *daemonv1.JoinResponseBody {
	return &daemonv1.JoinResponseBody{Result: &daemonv1.JoinResponseBody_Admission{Admission: s.admission(n, c)}}
}

func ders(certs []*x509.Certificate) [][]byte {
	out := make([][]byte, 0, len(certs))
	for _, c := range certs {
		out = append(out, c.Raw)
	}
	return out
}

// signJoin completes and signs the answer to a join, an admission or a deferral.
func (s *Service) signJoin(req *Request, answer *daemonv1.JoinResponseBody) (*daemonv1.JoinResponse, error) {
	answer.RequestSha256, answer.ServerTimeUnixMs = req.digest[:], s.now().UnixMilli()
	body, sig, err := s.sign(signing.JoinResponse, answer)
	if err != nil {
		return nil, err
	}
	return &daemonv1.JoinResponse{Body: body, Sig: sig}, nil
}

// signRenew signs the answer to a renewal, which belongs to the request whose pop_sig signs the payload.
func (s *Service) signRenew(pop []byte, a *daemonv1.Admission) (*daemonv1.RenewResponse, error) {
	digest := sha256.Sum256(pop)
	body, sig, err := s.sign(signing.RenewResponse, &daemonv1.RenewResponseBody{
		Admission: a, RequestSha256: digest[:], ServerTimeUnixMs: s.now().UnixMilli(),
	})
	if err != nil {
		return nil, err
	}
	return &daemonv1.RenewResponse{Body: body, Sig: sig}, nil
}

func (s *Service) sign(p signing.Purpose, m proto.Message) ([]byte, *daemonv1.Signature, error) {
	body, err := proto.Marshal(m)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode a %s: %w", p, err)
	}
	sig, err := signing.Sign(s.keys.Signer, p, body)
	if err != nil {
		return nil, nil, err
	}
	return body, &daemonv1.Signature{Signature: sig, Certificate: s.keys.SigningCertificate.Raw}, nil
}

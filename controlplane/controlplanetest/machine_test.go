package controlplanetest_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/seal"
)

// machine speaks the daemon's protocol with nothing but the wire.
type machine struct {
	claims    hwclaims.Claims // made of the first CSR
	t         *testing.T
	cp        *controlplanetest.ControlPlane
	key       *ecdsa.PrivateKey
	csr       []byte
	admission *daemonv1.Admission
}

func newMachine(t *testing.T, cp *controlplanetest.ControlPlane) *machine {
	t.Helper()
	key, csr := newCSR(t)
	return &machine{t: t, cp: cp, key: key, csr: csr}
}

// newCSR asks for names that nobody gets.
func newCSR(t *testing.T) (*ecdsa.PrivateKey, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "admin", OrganizationalUnit: []string{"bc-role:site"}},
		DNSNames: []string{"evil.example.com"},
		URIs:     []*url.URL{{Scheme: "spiffe", Host: "evil", Path: "/x"}, {Scheme: "urn", Opaque: "bc:tpm-ak:sha256:00"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return key, csr
}

// dial connects to a gateway with the machine's certificate, if it has one.
func (m *machine) dial(gateway string, withCertificate bool) daemonv1.NodeGatewayClient {
	m.t.Helper()
	if withCertificate {
		return m.dialWith(gateway, m.key)
	}
	return m.dialWith(gateway, nil)
}

// dialWith connects with the machine's certificate, of a key that may be elsewhere, or without one where the key is nil.
func (m *machine) dialWith(gateway string, key crypto.PrivateKey) daemonv1.NodeGatewayClient {
	m.t.Helper()
	roots := x509.NewCertPool()
	roots.AddCert(m.cp.Bundle.Public().ServingCA())
	c := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots, Time: m.cp.Clock.Now}
	if key != nil {
		certificate := tls.Certificate{Certificate: m.admission.GetChain(), PrivateKey: key}
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &certificate, nil }
	}
	conn, err := grpc.NewClient(strings.TrimPrefix(gateway, "https://"), grpc.WithTransportCredentials(credentials.NewTLS(c)), grpc.WithNoProxy())
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = conn.Close() })
	return daemonv1.NewNodeGatewayClient(conn)
}

func (m *machine) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	m.t.Cleanup(cancel)
	return ctx
}

func (m *machine) joinRequest(token string) *daemonv1.JoinRequest {
	m.t.Helper()
	to, err := seal.NewKey(m.cp.Bundle.Public().JoinEncryptionKey())
	if err != nil {
		m.t.Fatal(err)
	}
	sealed, err := seal.Seal(to, []byte(token), m.csr, m.cp.Clock.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	if id := fmt.Sprintf("%x", sha256.Sum256(m.csr)); m.claims.ProductUUID == "" {
		m.claims = hwclaims.Claims{
			ProductUUID:   fmt.Sprintf("4c4c4544-%s-%s-%s-%s", id[:4], id[4:8], id[8:12], id[12:24]),
			ProductSerial: "SN" + strings.ToUpper(id[24:34]),
		}
	}
	body, err := proto.Marshal(&daemonv1.JoinRequestBody{
		Csr: m.csr, SealedToken: sealed, Role: "node", Site: m.cp.Site, Protocol: 1, AgentVersion: "0.1.0",
		Claims: &daemonv1.HardwareClaims{ProductUuid: m.claims.ProductUUID, ProductSerial: m.claims.ProductSerial},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	sig, err := signing.Sign(m.key, signing.JoinRequest, body)
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.JoinRequest{Body: body, Sig: sig}
}

// join joins through a gateway and keeps what it was admitted to.
func (m *machine) join(gateway, token string) error {
	m.t.Helper()
	resp, err := m.dial(gateway, false).Join(m.ctx(), m.joinRequest(token))
	if err != nil {
		return err
	}
	m.verify(signing.JoinResponse, resp.GetBody(), resp.GetSig())
	var body daemonv1.JoinResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
		m.t.Fatal(err)
	}
	m.admission = body.GetAdmission()
	return nil
}

func (m *machine) mustJoin() *machine {
	m.t.Helper()
	if err := m.join(m.cp.GatewayURL, m.cp.NewToken(m.t, noLimits)); err != nil {
		m.t.Fatal(err)
	}
	return m
}

func (m *machine) renewRequest(csr []byte) *daemonv1.RenewRequest {
	m.t.Helper()
	at := m.cp.Clock.Now()
	pop, err := signing.Sign(m.key, signing.RenewPoP, signing.PoP(sha256.Sum256(csr), at, m.admission.GetNodeId()))
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.RenewRequest{Csr: csr, Chain: m.admission.GetChain(), ClientTimeUnixMs: at.UnixMilli(), PopSig: pop, AgentVersion: "0.1.0"}
}

// renew renews with a new key.
func (m *machine) renew(gateway string) error {
	m.t.Helper()
	key, csr := newCSR(m.t)
	return m.renewWith(gateway, key, csr)
}

func (m *machine) renewWith(gateway string, key *ecdsa.PrivateKey, csr []byte) error {
	m.t.Helper()
	resp, err := m.dial(gateway, true).Renew(m.ctx(), m.renewRequest(csr))
	if err != nil {
		return err
	}
	m.verify(signing.RenewResponse, resp.GetBody(), resp.GetSig())
	var body daemonv1.RenewResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
		m.t.Fatal(err)
	}
	m.key, m.csr, m.admission = key, csr, body.GetAdmission()
	return nil
}

func (m *machine) verify(p signing.Purpose, body []byte, sig *daemonv1.Signature) {
	m.t.Helper()
	c, err := x509.ParseCertificate(sig.GetCertificate())
	if err != nil {
		m.t.Fatal(err)
	}
	if err := signing.Verify(c.PublicKey, p, body, sig.GetSignature()); err != nil {
		m.t.Error(err)
	}
}

func (m *machine) leaf() *x509.Certificate {
	m.t.Helper()
	c, err := x509.ParseCertificate(m.admission.GetChain()[0])
	if err != nil {
		m.t.Fatal(err)
	}
	return c
}

// open opens a session and returns it after its Welcome.
func (m *machine) open(gateway string) (grpc.BidiStreamingClient[daemonv1.AgentFrame, daemonv1.GatewayFrame], error) {
	m.t.Helper()
	s, err := m.dial(gateway, true).Session(m.ctx())
	if err != nil {
		return nil, err
	}
	hello := &daemonv1.Hello{
		NodeId: m.admission.GetNodeId(), ProtocolMin: 1, ProtocolMax: 1, BootId: "2f0f9b1c-3d7e-4b0a-8f43-6d1a5f6f0b11",
		CertificateSerial: m.leaf().SerialNumber.Text(16), AgentVersion: "0.1.0",
		ClaimsDigest: hwclaims.Assess(m.claims).HardwareKey,
	}
	if err := s.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: hello}}); err != nil {
		return nil, err
	}
	f, err := s.Recv()
	if err != nil {
		return nil, err
	}
	if f.GetWelcome().GetSessionId() == "" {
		return nil, fmt.Errorf("first frame is %v", f)
	}
	return s, nil
}

func codeOf(err error) fault.Code {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return fault.Code(info.GetReason())
		}
	}
	return ""
}

package joinservice

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/signing"
)

// Limits of what a machine sends, in bytes.
const (
	maxBody = 64 << 10
	maxCSR  = 4 << 10
	maxText = 128
)

// protocol is the only version of the protocol.
const protocol = 1

// Request is a join request whose signature, CSR and claims are good.
type Request struct {
	body *daemonv1.JoinRequestBody
	// digest is the SHA-256 of the body as it was sent.
	digest [sha256.Size]byte
	csr    *x509.CertificateRequest
	// csrSHA256 is zero where the request holds no CSR.
	csrSHA256  [sha256.Size]byte
	spkiSHA256 [sha256.Size]byte
	claims     hwclaims.Claims
	hardware   hwclaims.Assessment
	// ekSHA256 is the digest of the endorsement key that the machine proved, as events spell it; empty is none.
	ekSHA256 string
	// address is the caller's, as the gateway saw it.
	address string
	// gatewaySites are the sites that the gateway serves; none is every site.
	gatewaySites []string
}

// Role is the role that the machine asks for. It may be any text.
func (r *Request) Role() string { return r.body.GetRole() }

// CSR is the machine's certificate request. Its signature was checked, and its key is ECDSA P-256.
func (r *Request) CSR() *x509.CertificateRequest { return r.csr }

// CSRSHA256 is the digest of the request's DER.
func (r *Request) CSRSHA256() [sha256.Size]byte { return r.csrSHA256 }

// Evidence is what attestors other than the join token ask for.
func (r *Request) Evidence() *daemonv1.Evidence { return r.body.GetEvidence() }

// attestor is the attestor that the machine asks for. It may be any text.
func (r *Request) attestor() string {
	if a := r.body.GetAttestor(); a != "" {
		return a
	}
	return AttestorJoinToken
}

// parse reads a request and verifies all that needs neither attestor nor database. The request is returned with an error
// too, as far as it was read: the event of a refusal says what is known.
func parse(req *joinv1.JoinRequest) (*Request, error) {
	r := &Request{body: &daemonv1.JoinRequestBody{}, address: req.GetPeer().GetAddress(), gatewaySites: req.GetPeer().GetGatewaySites()}
	raw := req.GetRequest().GetBody()
	r.digest = sha256.Sum256(raw)
	if len(raw) > maxBody || proto.Unmarshal(raw, r.body) != nil {
		r.body = &daemonv1.JoinRequestBody{}
		return r, Refuse("join:request")
	}
	r.csrSHA256 = digestOf(r.body.GetCsr())
	for _, text := range []string{
		r.body.GetAttestor(), r.body.GetRole(), r.body.GetSite(), r.body.GetNodeId(), r.body.GetAgentVersion(),
	} {
		if len(text) > maxText {
			return r, Refuse("join:request")
		}
	}
	if r.body.GetProtocol() != protocol {
		return r, Refuse("join:request")
	}
	csr, err := parseCSR(r.body.GetCsr())
	if err != nil {
		return r, Refuse("join:csr")
	}
	// The machine itself asked, for exactly this: a gateway that changes a byte, or puts the CSR beside a token of its own,
	// fails here.
	if signing.Verify(csr.PublicKey, signing.JoinRequest, raw, req.GetRequest().GetSig()) != nil {
		return r, Refuse("join:request")
	}
	if csr.CheckSignature() != nil {
		return r, Refuse("join:csr")
	}
	r.csr, r.spkiSHA256 = csr, sha256.Sum256(csr.RawSubjectPublicKeyInfo)
	r.claims = claimsOf(r.body.GetClaims())
	if r.claims.Validate() != nil {
		return r, Refuse("join:claims")
	}
	r.hardware = hwclaims.Assess(r.claims)
	return r, nil
}

// digestOf is the SHA-256 of a CSR, and zero for none.
func digestOf(csr []byte) (digest [sha256.Size]byte) {
	if len(csr) > 0 {
		digest = sha256.Sum256(csr)
	}
	return digest
}

// parseCSR reads a request for a P-256 key that is signed over SHA-2. It does not check the signature. Bytes behind the
// request are refused.
func parseCSR(der []byte) (*x509.CertificateRequest, error) {
	if len(der) > maxCSR {
		return nil, errors.New("the CSR is too large")
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, err
	}
	if k, ok := csr.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, errors.New("the CSR's key is not ECDSA P-256")
	}
	if csr.SignatureAlgorithm == x509.ECDSAWithSHA1 { // crypto/x509 still takes it in requests
		return nil, errors.New("the CSR is signed over SHA-1")
	}
	return csr, nil
}

func claimsOf(c *daemonv1.HardwareClaims) hwclaims.Claims {
	return hwclaims.Claims{
		ProductUUID: c.GetProductUuid(), ProductSerial: c.GetProductSerial(), BoardSerial: c.GetBoardSerial(),
		ChassisSerial: c.GetChassisSerial(), DeviceTreeSerial: c.GetDevicetreeSerial(), MACs: c.GetMacs(),
		GPUUUIDs: c.GetGpuUuids(), Hostname: c.GetHostname(), Vendor: c.GetVendor(), ProductName: c.GetProductName(),
	}
}

// hardwareKey is the key as events spell it.
func (r *Request) hardwareKey() string { return hex.EncodeToString(r.hardware.HardwareKey) }

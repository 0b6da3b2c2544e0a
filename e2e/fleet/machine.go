package fleet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/gofrs/uuid/v5"
	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/seal"
)

// Hardware is what tells one machine from another.
type Hardware struct {
	UUID, Serial, MAC string
}

// NewHardware makes up a machine. Its values look like a maker's: values that look like filler are no identity.
func NewHardware() (Hardware, error) {
	id, err := uuid.NewV4()
	if err != nil {
		return Hardware{}, err
	}
	var tail [3]byte
	_, _ = rand.Read(tail[:]) // never fails, see crypto/rand
	mac := "3c:ec:ef" + fmt.Sprintf(":%02x:%02x:%02x", tail[0], tail[1], tail[2])
	return Hardware{UUID: id.String(), Serial: "7Q" + rand.Text()[:8] + strings.ToUpper(hex.EncodeToString(tail[:])), MAC: mac}, nil
}

// Machine is a machine that joins: its hardware, and the key and request that every try of its join has.
type Machine struct {
	Hardware Hardware
	key      *ecdsa.PrivateKey
	csr      []byte
}

// NewMachine makes a machine, with a new key.
func NewMachine() (*Machine, error) {
	hw, err := NewHardware()
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	return &Machine{Hardware: hw, key: key, csr: csr}, err
}

// Answer is an answer to a join.
type Answer struct {
	Node string
	// Took is the time from the request, on a connection that was open, to its answer.
	Took time.Duration
}

// Join joins the machine: the token sealed to its request, the request signed, a TLS connection of its own that
// authenticates the gateway by its pin. change, which may be nil, changes the request before it is signed. The time is
// told with a refusal too.
func (p *Plane) Join(ctx context.Context, m *Machine, token string, change func(*daemonv1.JoinRequestBody) error) (Answer, error) {
	request, err := p.request(m, token, change)
	if err != nil {
		return Answer{}, err
	}
	conn, err := session.Dial(ctx, p.Gateway(), nil)
	if err != nil {
		return Answer{}, err
	}
	defer conn.Close()
	sent := time.Now()
	response, err := conn.Join(ctx, request)
	answer := Answer{Took: time.Since(sent)}
	if err != nil {
		return answer, err
	}
	var body daemonv1.JoinResponseBody
	if err := proto.Unmarshal(response.GetBody(), &body); err != nil {
		return answer, fmt.Errorf("cannot read the answer: %w", err)
	}
	answer.Node = body.GetAdmission().GetNodeId()
	return answer, nil
}

func (p *Plane) request(m *Machine, token string, change func(*daemonv1.JoinRequestBody) error) (*daemonv1.JoinRequest, error) {
	sealed, err := seal.Seal(p.JoinKey, []byte(token), m.csr, time.Now())
	if err != nil {
		return nil, err
	}
	body := &daemonv1.JoinRequestBody{
		Csr: m.csr, SealedToken: sealed, Role: "node", Site: p.Daemon.Site, Protocol: session.Protocol, AgentVersion: "fleet",
		Claims: &daemonv1.HardwareClaims{
			ProductUuid: m.Hardware.UUID, ProductSerial: m.Hardware.Serial, Macs: []string{m.Hardware.MAC}, Hostname: "fleet",
		},
	}
	if change != nil {
		if err := change(body); err != nil {
			return nil, err
		}
	}
	raw, err := proto.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a request: %w", err)
	}
	sig, err := signing.Sign(m.key, signing.JoinRequest, raw)
	if err != nil {
		return nil, err
	}
	return &daemonv1.JoinRequest{Body: raw, Sig: sig}, nil
}

package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/seal"
)

// ask is what a machine asks for. Its zero value beside a token is a good request of a new machine.
type ask struct {
	token string
	// change changes the request before it is signed; nil changes nothing.
	change func(*daemonv1.JoinRequestBody) error
}

// join joins a machine that exists only here, as bcd does: a new key and CSR, the token sealed to it, the request signed,
// a TLS connection of its own that authenticates the gateway by its pin. What it leaves out is the disk: nothing is kept.
// It returns how long the answer took, or the refusal, from the request on the open connection.
func (c *controlPlane) join(ctx context.Context, a ask) (answered time.Duration, err error) {
	request, err := c.request(a)
	if err != nil {
		return 0, err
	}
	conn, err := session.Dial(ctx, c.gateway(), nil)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	sent := time.Now()
	_, err = conn.Join(ctx, request)
	return time.Since(sent), err
}

func (c *controlPlane) request(a ask) (*daemonv1.JoinRequest, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, err
	}
	sealed, err := seal.Seal(c.joinKey, []byte(a.token), csr, time.Now())
	if err != nil {
		return nil, err
	}
	hw, err := newHardware()
	if err != nil {
		return nil, err
	}
	body := &daemonv1.JoinRequestBody{
		Csr: csr, SealedToken: sealed, Role: "node", Site: c.daemon.Site, Protocol: session.Protocol, AgentVersion: "bench",
		Claims: &daemonv1.HardwareClaims{ProductUuid: hw.uuid, ProductSerial: hw.serial, Macs: []string{hw.mac}, Hostname: "bench"},
	}
	if a.change != nil {
		if err := a.change(body); err != nil {
			return nil, err
		}
	}
	raw, err := proto.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a request: %w", err)
	}
	sig, err := signing.Sign(key, signing.JoinRequest, raw)
	if err != nil {
		return nil, err
	}
	return &daemonv1.JoinRequest{Body: raw, Sig: sig}, nil
}

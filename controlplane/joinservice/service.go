package joinservice

import (
	"context"
	"crypto"
	"crypto/ecdh"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"time"

	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Defaults and bounds of [Options].
const (
	// MaxCertTTL is the longest life of a node certificate, and the default.
	MaxCertTTL = pki.MaxNodeLifetime
	// DefaultHeartbeat is the heartbeat interval of a session.
	DefaultHeartbeat = 25 * time.Second
	minHeartbeat     = 5 * time.Second
	maxHeartbeat     = 60 * time.Second
	// DefaultPoll is how often a session looks at its certificate without being told of a change: another process may
	// have made it, and clocks may jump.
	DefaultPoll = 30 * time.Second
)

// Issuer issues node certificates. *[pki.Bundle] is one.
type Issuer interface {
	// IssueNode returns the leaf that says what r says.
	IssueNode(r pki.NodeRequest) (*x509.Certificate, error)
}

// Keys are what JoinService signs and opens with, and the authorities that it tells machines of.
type Keys struct {
	TrustDomain string
	Issuer      Issuer
	// NodeCAs are the authorities of node certificates, CommandCAs those of command-signing certificates.
	NodeCAs, CommandCAs []*x509.Certificate
	// Signer signs answers. SigningCertificate carries its public key, which machines pin.
	Signer             crypto.Signer
	SigningCertificate *x509.Certificate
	// Decryption are the keys that open sealed tokens: the current one, then the one before it during a rotation.
	Decryption []ecdh.KeyExchanger
	// DeriveKey derives a key for a use, which info names, from a secret that all replicas share: see [pki.Bundle.DeriveKey].
	DeriveKey func(info string, size int) ([]byte, error)
}

// KeysOf returns the keys of a bundle.
func KeysOf(b *pki.Bundle) *Keys {
	public := b.Public()
	return &Keys{
		TrustDomain:        public.TrustDomain(),
		Issuer:             b,
		NodeCAs:            []*x509.Certificate{public.NodeCA()},
		CommandCAs:         []*x509.Certificate{public.CommandCA()},
		Signer:             b.JoinSigner(),
		SigningCertificate: public.JoinSigningCertificate(),
		Decryption:         []ecdh.KeyExchanger{b.JoinEncryption()},
		DeriveKey:          b.DeriveKey,
	}
}

// Options configure [New].
type Options struct {
	// Store is the database. Required.
	Store store.Store
	// Keys may be nil: then every call ends with INVALID_CONFIG.
	Keys *Keys
	// RootTenant receives what no other tenant may be told. Required.
	RootTenant string
	// Attestors are the ways to join. Nil is the join token alone.
	Attestors []Attestor
	// CertTTL is the life of a node certificate, in whole seconds; 0 is [MaxCertTTL], which is also the most.
	CertTTL time.Duration
	// Heartbeat is the heartbeat interval that sessions are told, between 5 and 60 s; 0 is [DefaultHeartbeat].
	Heartbeat time.Duration
	// Poll is how often a session looks at its certificate; 0 is [DefaultPoll].
	Poll time.Duration
	// Now is the control plane's clock. Required, and the store's.
	Now func() time.Time
	// Sleep waits; nil waits in real time. It returns early with the context's error.
	Sleep func(ctx context.Context, d time.Duration) error
	// Log may be nil.
	Log *slog.Logger
}

// Service implements [joinv1.JoinServiceServer].
type Service struct {
	joinv1.UnimplementedJoinServiceServer

	store      store.Store
	keys       *Keys
	rootTenant string
	attestors  map[string]Attestor
	certTTL    time.Duration
	heartbeat  time.Duration
	poll       time.Duration
	now        func() time.Time
	sleep      func(context.Context, time.Duration) error
	log        *slog.Logger

	refusals events.Limiter
	sessions registry
}

// New returns a service. It starts nothing.
func New(o Options) (*Service, error) {
	s := &Service{
		store: o.Store, keys: o.Keys, rootTenant: o.RootTenant, attestors: make(map[string]Attestor),
		certTTL: o.CertTTL, heartbeat: o.Heartbeat, poll: o.Poll, now: o.Now, sleep: o.Sleep, log: o.Log,
	}
	if s.store == nil || s.now == nil || s.rootTenant == "" {
		return nil, errors.New("cannot make a JoinService: store, clock and root tenant are required")
	}
	if s.certTTL == 0 {
		s.certTTL = MaxCertTTL
	}
	if s.certTTL < time.Second || s.certTTL > MaxCertTTL || s.certTTL%time.Second != 0 {
		return nil, fault.New(fault.Config, fmt.Sprintf("set cert_ttl_seconds to a number from 1 to %d", MaxCertTTL/time.Second),
			"certificate lifetime %v is not allowed", s.certTTL)
	}
	if s.heartbeat == 0 {
		s.heartbeat = DefaultHeartbeat
	}
	s.heartbeat = min(max(s.heartbeat, minHeartbeat), maxHeartbeat)
	if s.poll == 0 {
		s.poll = DefaultPoll
	}
	if s.sleep == nil {
		s.sleep = sleep
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	attestors := o.Attestors
	if attestors == nil && s.keys != nil {
		attestors = []Attestor{JoinToken{Keys: s.keys.Decryption}}
	}
	for _, a := range attestors {
		if _, twice := s.attestors[a.Name()]; twice {
			return nil, fmt.Errorf("cannot make a JoinService: attestor %q is there twice", a.Name())
		}
		s.attestors[a.Name()] = a
	}
	return s, nil
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

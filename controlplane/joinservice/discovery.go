package joinservice

import (
	"context"
	"crypto/ecdh"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
)

// AttestorDiscovery is the name of [Discovery].
const AttestorDiscovery = "discovery"

// Discovery admits a ramdisk that a machine booted from the network: the bearer of a discovery token, which is for one MAC,
// on the machine with that MAC. A person may decide beside it.
type Discovery struct {
	// Keys open the seal.
	Keys []ecdh.KeyExchanger
	// Approval is the rule; empty is [ApproveUnknown].
	Approval ApprovalRule
	// PendingTTL is how long a request waits for a decision; 0 is [DefaultPendingTTL].
	PendingTTL time.Duration
}

// Name implements [Attestor].
func (Discovery) Name() string { return AttestorDiscovery }

// Open implements [Attestor]: it opens the seal.
func (a Discovery) Open(_ context.Context, r *Request) (Credential, error) {
	c, err := openToken(AttestorDiscovery, a.Keys, r)
	if err != nil {
		return nil, err
	}
	approval := Approval{Rule: a.Approval, PendingTTL: a.PendingTTL}
	if approval.Rule == "" {
		approval.Rule = ApproveUnknown
	}
	if approval.PendingTTL == 0 {
		approval.PendingTTL = DefaultPendingTTL
	}
	return &discoveryCredential{tokenCredential: c, approval: approval, evidence: r.Evidence().GetDiscovery(), claims: r.claims}, nil
}

type discoveryCredential struct {
	*tokenCredential

	approval Approval // without what the token says
	evidence *daemonv1.DiscoveryEvidence
	claims   hwclaims.Claims
}

// Prove implements [Credential].
func (c *discoveryCredential) Prove(tx *store.Tx) (*Grant, error) {
	g, err := c.tokenCredential.Prove(tx)
	if err != nil {
		return nil, err
	}
	approval := c.approval
	approval.WorkflowID, approval.BootLeaseEpoch = c.token.WorkflowID, c.evidence.GetBootLeaseEpoch()
	if c.token.Expect != nil {
		approval.MAC, _ = hwclaims.NormalizeMAC(c.token.Expect.MAC)
	}
	g.Approval = &approval
	// The token names the MAC, but only a person can know a machine whose claims do not tell it from others.
	g.PlaceholderOK = false
	// A ramdisk keeps no key from one boot to the next.
	g.AllowReclaim = true
	return g, nil
}

// Check implements [Credential].
func (c *discoveryCredential) Check(tx *store.Tx, g *Grant) error {
	if err := c.tokenCredential.Check(tx, g); err != nil {
		return err
	}
	booted, ok := hwclaims.NormalizeMAC(c.evidence.GetBootMac())
	if !ok || booted != g.Approval.MAC || !(hwclaims.Expect{MAC: booted}).Match(c.claims) {
		return c.refuse("mac")
	}
	return nil
}

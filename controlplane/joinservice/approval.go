package joinservice

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"net/netip"
	"slices"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// ApprovalRule says about which machines a person decides.
type ApprovalRule string

// The rules.
const (
	// ApproveNever admits by the credential alone.
	ApproveNever ApprovalRule = "never"
	// ApproveUnknown asks a person about machines that are not a node which the join would reclaim.
	ApproveUnknown ApprovalRule = "unknown-machines"
	// ApproveAlways asks a person about every join.
	ApproveAlways ApprovalRule = "always"
)

// ApprovalRules are the rules.
var ApprovalRules = []ApprovalRule{ApproveNever, ApproveUnknown, ApproveAlways}

// Bounds of how long a join request waits for a decision.
const (
	MinPendingTTL     = time.Minute
	MaxPendingTTL     = 7 * 24 * time.Hour
	DefaultPendingTTL = 24 * time.Hour
)

const (
	// maxPendingRequests is how many requests of one site may wait at a time, maxNewRequests how many may be made within
	// newRequestsWithin: so that nobody hides a machine among many, or fills the database.
	maxPendingRequests = 1000
	maxNewRequests     = 20
	newRequestsWithin  = time.Minute
	// retryAfterSeconds is when a machine that waits asks again.
	retryAfterSeconds = 30
	// vouchedFor is how old a site agent's vouch may be when a request relies on it.
	vouchedFor = 24 * time.Hour
)

// Approval says when a person decides about a machine, and what the person is shown beside its claims.
type Approval struct {
	Rule ApprovalRule
	// PendingTTL is how long a request waits for the decision.
	PendingTTL time.Duration
	// EKSHA256 is the digest of the TPM's endorsement key that the machine proved, or nil. A request that was made with
	// another one is not this machine's.
	EKSHA256 []byte
	// EKUnverified says that no maker's certificate vouches for that key.
	EKUnverified bool
	// MAC is the NIC that the machine booted from, normalised, or empty. A machine without a trusted hardware key needs
	// EKSHA256 or MAC, or its requests cannot be told apart.
	MAC string
	// BootLeaseEpoch is the boot lease that the machine claims; 0 is none.
	BootLeaseEpoch uint64
	// WorkflowID is the workflow that the credential was made for, or empty.
	WorkflowID string
}

// asks reports whether a person decides about a machine that is, or is not, a node that the join reclaims.
func (a *Approval) asks(known bool) bool {
	return a != nil && (a.Rule == ApproveAlways || a.Rule == ApproveUnknown && !known)
}

// met returns the join request that this very request meets: one that was rejected, else one that admits it or waits. Nil is
// none.
func (d *decision) met(tx *store.Tx, g *Grant) (*store.JoinRequest, error) {
	if g.Approval == nil {
		return nil, nil //nolint:nilnil // nobody decides
	}
	all, err := tx.JoinRequestsOfCSR(g.TenantID, d.req.csrSHA256)
	if err != nil {
		return nil, err
	}
	for _, state := range []store.JoinRequestState{store.JoinRequestRejected, store.JoinRequestApproved, store.JoinRequestPending} {
		i := slices.IndexFunc(all, func(r store.JoinRequest) bool {
			return r.State == state && (state == store.JoinRequestRejected || r.SiteID == g.SiteID && r.Attestor == d.attestor &&
				r.Role == d.req.Role() && r.TokenID == g.TokenID && bytes.Equal(r.EKSHA256, g.Approval.EKSHA256))
		})
		if i >= 0 {
			return &all[i], nil
		}
	}
	return nil, nil //nolint:nilnil // none
}

// waits reports whether a request was verified before and is not at its end.
func waits(r *store.JoinRequest) bool { return r != nil && r.State != store.JoinRequestRejected }

// approved reports whether a request admits the machine.
func approved(r *store.JoinRequest) bool { return r != nil && r.State == store.JoinRequestApproved }

// ask completes a plan with what a person decided, or must decide.
func (d *decision) ask(tx *store.Tx, g *Grant, p *plan, met *store.JoinRequest) error {
	switch {
	case met != nil && met.State == store.JoinRequestRejected:
		return Refuse(d.attestor + ":rejected")
	case approved(met):
		p.approval = met
		return nil
	case !g.Approval.asks(p.machine != nil):
		return nil
	case met != nil:
		p.deferral = met
		return nil
	}
	made, err := d.joinRequest(tx, g)
	if err != nil {
		return err
	}
	switch before, err := tx.PendingJoinRequest(g.TenantID, g.SiteID, made.MachineKey); {
	case err == nil:
		made.ID = before.ID
	case !errors.Is(err, store.ErrNotFound):
		return err
	default:
		pending, fresh, err := tx.CountJoinRequests(g.SiteID, newRequestsWithin)
		if err != nil {
			return err
		}
		if pending >= maxPendingRequests || fresh >= maxNewRequests {
			return Refuse("join:requests")
		}
	}
	p.deferral, p.ask = made, true
	return nil
}

// joinRequest is the request that a person decides, without its id.
func (d *decision) joinRequest(tx *store.Tx, g *Grant) (*store.JoinRequest, error) {
	a := g.Approval
	r := &store.JoinRequest{
		TenantID: g.TenantID, SiteID: g.SiteID, PoolID: g.PoolID, Attestor: d.attestor, Role: d.req.Role(),
		State: store.JoinRequestPending, Claims: d.req.claims, HardwareKey: d.req.hardware.HardwareKey, EKSHA256: a.EKSHA256,
		EKUnverified: a.EKUnverified, MAC: a.MAC, WorkflowID: a.WorkflowID, CSRSHA256: d.req.csrSHA256, TokenID: g.TokenID, ExpiresAt: tx.Now().Add(a.PendingTTL),
	}
	switch {
	case len(a.EKSHA256) > 0: // proved, where the rest is claimed
		r.MachineKey = "ek:" + hex.EncodeToString(a.EKSHA256)
	case d.req.hardware.Trusted:
		r.MachineKey = "hw:" + hex.EncodeToString(r.HardwareKey)
	case a.MAC != "":
		r.MachineKey = "mac:" + a.MAC
	default:
		return nil, errors.New("cannot make a join request: the attestor does not say which machine it is")
	}
	if ip, err := netip.ParseAddr(d.req.address); err == nil {
		r.IP = ip.Unmap().String()
	}
	if a.BootLeaseEpoch <= math.MaxInt64 { // a vouch has no larger one
		r.ClaimedEpoch = int64(a.BootLeaseEpoch)
	}
	return r, vouchFor(tx, r)
}

// vouchFor puts the site agent into a request that saw this very boot.
func vouchFor(tx *store.Tx, r *store.JoinRequest) error {
	if r.MAC == "" || r.ClaimedEpoch == 0 {
		return nil
	}
	v, err := tx.Vouch(r.SiteID, r.MAC)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil && v.BootLeaseEpoch == r.ClaimedEpoch && tx.Now().Sub(v.VouchedAt) <= vouchedFor {
		r.VouchedBy = v.NodeID
	}
	return err
}

// recordRequest writes the request of a plan that asks: a new one, or what the machine says now into the one that waits.
func (d *decision) recordRequest(tx *store.Tx, p *plan) error {
	r := p.deferral
	if r.ID != "" {
		return tx.RefreshJoinRequest(*r)
	}
	r.ID = tx.NewID(store.PrefixJoinRequest)
	if err := tx.InsertJoinRequest(*r); err != nil {
		return err
	}
	return tx.Publish(r.TenantID, events.JoinRequestCreated{
		RequestID: r.ID, PoolID: r.PoolID, SiteID: r.SiteID, Attestor: r.Attestor, Role: r.Role, TokenID: r.TokenID,
		CSRSHA256: digestText(r.CSRSHA256), HardwareKey: d.req.hardwareKey(), EKSHA256: hex.EncodeToString(r.EKSHA256),
		EKUnverified: r.EKUnverified,
	})
}

// deferralOf is what a machine is told whose join a person decides.
func deferralOf(r *store.JoinRequest) *daemonv1.JoinResponseBody {
	return &daemonv1.JoinResponseBody{Result: &daemonv1.JoinResponseBody_Deferral{Deferral: &daemonv1.Deferral{
		CsrSha256: r.CSRSHA256[:], RequestId: r.ID, RetryAfterSeconds: retryAfterSeconds,
	}}}
}

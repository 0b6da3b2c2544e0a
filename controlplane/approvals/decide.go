package approvals

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// ApproveRequest is what joinRequests.approve takes.
type ApproveRequest struct {
	TenantID string
	// PoolID is the pool that the machine joins.
	PoolID    string
	RequestID string
	// TTL is whole seconds between [MinTTL] and [MaxTTL]; 0 is [DefaultTTL].
	TTL time.Duration
	// Reason is at most [MaxReason] bytes of printable text, or empty.
	Reason string
	// CSRSHA256, where it is set, is the digest of the CSR that the caller saw: a request that was refreshed with another
	// one since is not approved.
	CSRSHA256 *[sha256.Size]byte
}

// Approve lets the machine of a request join the pool, once, on behalf of the identity decidedBy. Approving an approved
// request again changes nothing and returns the approval.
func (s *Service) Approve(ctx context.Context, decidedBy string, r ApproveRequest) (store.JoinRequest, error) {
	ttl := r.TTL
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < MinTTL || ttl > MaxTTL || ttl%time.Second != 0 {
		return store.JoinRequest{}, invalid("ttlSeconds must be a whole number from %d to %d", MinTTL/time.Second, MaxTTL/time.Second)
	}
	if err := checkReason(r.Reason); err != nil {
		return store.JoinRequest{}, err
	}
	return s.change(ctx, r.TenantID, r.PoolID, r.RequestID, "approve the join request",
		func(tx *store.Tx, pool store.Pool, req *store.JoinRequest) error {
			state := req.StateAt(tx.Now())
			if state != store.JoinRequestPending && state != store.JoinRequestApproved {
				return decided(*req, state)
			}
			if r.CSRSHA256 != nil && *r.CSRSHA256 != req.CSRSHA256 {
				return fault.New(fault.Conflict, "list the join requests again, and decide on what the machine says now",
					"join request %q is now for another CSR, with SHA-256 %x", req.ID, req.CSRSHA256)
			}
			if state == store.JoinRequestApproved {
				return nil
			}
			if err := usable(pool, req.Attestor); err != nil {
				return err
			}
			req.State, req.PoolID, req.ExpiresAt = store.JoinRequestApproved, pool.ID, tx.Now().Add(ttl)
			req.DecidedAt, req.DecidedBy, req.Reason = tx.Now(), decidedBy, r.Reason
			if err := tx.DecideJoinRequest(*req); err != nil {
				return err
			}
			event := events.JoinRequestApproved{
				RequestID: req.ID, PoolID: req.PoolID, SiteID: req.SiteID, Attestor: req.Attestor,
				CSRSHA256: hex.EncodeToString(req.CSRSHA256[:]), ExpiresAt: req.ExpiresAt, ApprovedBy: decidedBy, Reason: r.Reason,
			}
			if err := tx.Publish(req.TenantID, event); err != nil {
				return err
			}
			return tx.Record(req.TenantID, events.ActionJoinRequestApproved, decidedBy, req.ID, event)
		})
}

// usable checks that the pool takes machines of the attestor: an approval that no join can use is not given.
func usable(p store.Pool, attestor string) error {
	switch {
	case p.Agent != store.AgentBCD:
		return fault.New(fault.InvalidState, "", "pool %q has agent %q: its machines run no daemon", p.ID, p.Agent)
	case !p.ArchivedAt.IsZero():
		return fault.New(fault.InvalidState, "", "pool %q is archived", p.ID)
	case !p.Policy.Admits(attestor):
		return fault.New(fault.InvalidState, "", "the policy of pool %q does not admit attestor %q", p.ID, attestor)
	}
	return nil
}

// RejectRequest is what joinRequests.reject takes.
type RejectRequest struct {
	TenantID, PoolID, RequestID string
	// Reason is at most [MaxReason] bytes of printable text, or empty.
	Reason string
}

// Reject refuses the machine of a request for good, on behalf of the identity decidedBy; an approval that was not used yet
// is withdrawn. Rejecting a rejected request again changes nothing and returns the rejection.
func (s *Service) Reject(ctx context.Context, decidedBy string, r RejectRequest) (store.JoinRequest, error) {
	if err := checkReason(r.Reason); err != nil {
		return store.JoinRequest{}, err
	}
	return s.change(ctx, r.TenantID, r.PoolID, r.RequestID, "reject the join request",
		func(tx *store.Tx, _ store.Pool, req *store.JoinRequest) error {
			switch state := req.StateAt(tx.Now()); state {
			case store.JoinRequestRejected:
				return nil
			case store.JoinRequestExpired, store.JoinRequestConsumed:
				return decided(*req, state)
			case store.JoinRequestPending, store.JoinRequestApproved:
			}
			req.State, req.DecidedAt, req.DecidedBy, req.Reason = store.JoinRequestRejected, tx.Now(), decidedBy, r.Reason
			if err := tx.DecideJoinRequest(*req); err != nil {
				return err
			}
			event := events.JoinRequestRejected{
				RequestID: req.ID, PoolID: req.PoolID, SiteID: req.SiteID, Attestor: req.Attestor,
				CSRSHA256: hex.EncodeToString(req.CSRSHA256[:]), RejectedBy: decidedBy, Reason: r.Reason,
			}
			if err := tx.Publish(req.TenantID, event); err != nil {
				return err
			}
			return tx.Record(req.TenantID, events.ActionJoinRequestRejected, decidedBy, req.ID, event)
		})
}

func checkReason(reason string) error {
	if len(reason) > MaxReason {
		return invalid("reason has %d bytes, at most %d are allowed", len(reason), MaxReason)
	}
	if !oneline.Printable(reason) {
		return invalid("reason holds a character that cannot be printed")
	}
	return nil
}

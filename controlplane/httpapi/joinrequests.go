package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/store"
)

func (a *API) listJoinRequests(ctx context.Context, caller Caller, in ListJoinRequests) (List[JoinRequest], error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionReadTokens); err != nil {
		return List[JoinRequest]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixJoinRequest)
	if err != nil {
		return List[JoinRequest]{}, err
	}
	request := approvals.ListRequest{TenantID: in.TenantID, PoolID: in.PoolID, Cursor: in.Cursor, Limit: limit}
	if in.State != nil {
		if request.State = *in.State; request.State == "" {
			return List[JoinRequest]{}, invalid(`field "state" is empty`)
		}
	}
	page, err := a.approvals.List(ctx, request)
	list := List[JoinRequest]{Items: []JoinRequest{}, NextCursor: page.NextCursor}
	for _, r := range page.Requests {
		list.Items = append(list.Items, joinRequestOf(r))
	}
	return list, err
}

func (a *API) approveJoinRequest(ctx context.Context, caller Caller, in ApproveJoinRequest) (JoinRequest, error) {
	if err := a.authorizeDecision(ctx, caller, in.TenantID, in.PoolID, in.RequestID); err != nil {
		return JoinRequest{}, err
	}
	request := approvals.ApproveRequest{TenantID: in.TenantID, PoolID: in.PoolID, RequestID: in.RequestID, Reason: in.Reason}
	if in.TTLSeconds != nil {
		// A number of seconds that a duration cannot hold must not wrap round to one that is allowed.
		if *in.TTLSeconds < int64(approvals.MinTTL/time.Second) || *in.TTLSeconds > int64(approvals.MaxTTL/time.Second) {
			return JoinRequest{}, invalid(`field "ttlSeconds" must be from %d to %d`, approvals.MinTTL/time.Second, approvals.MaxTTL/time.Second)
		}
		request.TTL = time.Duration(*in.TTLSeconds) * time.Second
	}
	if in.CSRSHA256 != nil {
		digest, err := hex.DecodeString(*in.CSRSHA256)
		if err != nil || len(digest) != sha256.Size {
			return JoinRequest{}, invalid(`field "csrSha256" must be %d hex digits`, 2*sha256.Size)
		}
		request.CSRSHA256 = (*[sha256.Size]byte)(digest)
	}
	approved, err := a.approvals.Approve(ctx, caller.KeyID, request)
	return a.joinRequestNow(ctx, approved, err)
}

func (a *API) rejectJoinRequest(ctx context.Context, caller Caller, in RejectJoinRequest) (JoinRequest, error) {
	if err := a.authorizeDecision(ctx, caller, in.TenantID, in.PoolID, in.RequestID); err != nil {
		return JoinRequest{}, err
	}
	rejected, err := a.approvals.Reject(ctx, caller.KeyID, approvals.RejectRequest{
		TenantID: in.TenantID, PoolID: in.PoolID, RequestID: in.RequestID, Reason: in.Reason,
	})
	return a.joinRequestNow(ctx, rejected, err)
}

// authorizeDecision decides a call that decides a request. Who may let machines in by tokens may let them in by decisions.
func (a *API) authorizeDecision(ctx context.Context, caller Caller, tenantID, poolID, requestID string) error {
	if err := checkID("requestId", store.PrefixJoinRequest, requestID); err != nil {
		return err
	}
	return a.authorizePool(ctx, caller, tenantID, poolID, actionCreateTokens)
}

// joinRequestNow shows a request that was decided, in the state that it is in now.
func (a *API) joinRequestNow(ctx context.Context, r store.JoinRequest, err error) (JoinRequest, error) {
	if err != nil {
		return JoinRequest{}, err
	}
	now, err := a.now(ctx)
	r.State = r.StateAt(now)
	return joinRequestOf(r), err
}

func joinRequestOf(r store.JoinRequest) JoinRequest {
	view := JoinRequest{
		ID:          r.ID,
		State:       string(r.State),
		SiteID:      r.SiteID,
		PoolID:      textOrNull(r.PoolID),
		Attestor:    r.Attestor,
		Role:        r.Role,
		Claims:      claimsOf(r.Claims),
		HardwareKey: textOrNull(hex.EncodeToString(r.HardwareKey)),
		EKSHA256:    hex.EncodeToString(r.EKSHA256),
		MAC:         textOrNull(r.MAC),
		IP:          textOrNull(r.IP),
		WorkflowID:  textOrNull(r.WorkflowID),
		VouchedBy:   textOrNull(r.VouchedBy),
		CSRSHA256:   hex.EncodeToString(r.CSRSHA256[:]),
		CreatedAt:   r.CreatedAt,
		ExpiresAt:   r.ExpiresAt,
		DecidedAt:   timeOrNull(r.DecidedAt),
		DecidedBy:   textOrNull(r.DecidedBy),
		Reason:      textOrNull(r.Reason),
		ConsumedAt:  timeOrNull(r.ConsumedAt),
	}
	if len(r.EKSHA256) > 0 {
		view.EKUnverified = &r.EKUnverified
	}
	if r.VouchedBy != "" {
		view.BootLeaseEpoch = &r.BootLeaseEpoch
	}
	return view
}

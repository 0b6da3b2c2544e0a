// Package approvals is what a person decides about join requests: it lists, approves and rejects them, the rules of
// joinRequests.list, approve and reject.
//
// A request is decided in a pool, as join tokens are made in one: the pool's own requests, and those of its tenant at its
// site that no pool claimed yet. Who may call is the caller's to have decided: httpapi authorizes before it calls.
//
// The package writes no request and admits no machine: joinservice makes requests, and consumes an approval in the join
// that it admits.
package approvals

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Bounds of a decision.
const (
	// MinTTL, MaxTTL and DefaultTTL are how long an approval admits the machine.
	MinTTL     = time.Minute
	MaxTTL     = 24 * time.Hour
	DefaultTTL = time.Hour
	// MaxReason is the length of a reason, in bytes.
	MaxReason = 1024
)

// Service decides join requests. All methods are safe for concurrent use.
type Service struct {
	Store store.Store
}

// change runs a decision in a transaction, on a request that the pool's operators may see, and returns the request as it is
// afterwards.
func (s *Service) change(
	ctx context.Context, tenantID, poolID, requestID, what string,
	fn func(*store.Tx, store.Pool, *store.JoinRequest) error,
) (store.JoinRequest, error) {
	var r store.JoinRequest
	err := s.Store.Write(ctx, func(tx *store.Tx) error {
		pool, err := poolOf(tx, tenantID, poolID)
		if err != nil {
			return err
		}
		if r, err = requestOf(tx, pool, requestID); err != nil {
			return err
		}
		return fn(tx, pool, &r)
	})
	if err != nil {
		return store.JoinRequest{}, fmt.Errorf("cannot %s: %w", what, err)
	}
	return r, nil
}

// poolOf returns the pool if the tenant owns it. To any other tenant it does not exist.
func poolOf(tx *store.Tx, tenantID, poolID string) (store.Pool, error) {
	pool, err := tx.PoolOfTenant(tenantID, poolID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Pool{}, fault.New(fault.NotFound, "", "pool %q does not exist", poolID)
	}
	return pool, err
}

// requestOf returns the request if it is the pool's, or its site's and no pool's. For any other pool it does not exist.
func requestOf(tx *store.Tx, pool store.Pool, id string) (store.JoinRequest, error) {
	r, err := tx.JoinRequest(id)
	if errors.Is(err, store.ErrNotFound) || err == nil && (r.TenantID != pool.TenantID ||
		r.PoolID != pool.ID && (r.PoolID != "" || r.SiteID != pool.SiteID)) {
		return store.JoinRequest{}, fault.New(fault.NotFound, "", "join request %q does not exist in pool %q or at its site", id, pool.ID)
	}
	return r, err
}

// decided is the error for a request that can no longer be decided so.
func decided(r store.JoinRequest, state store.JoinRequestState) error {
	hint := ""
	if state == store.JoinRequestExpired {
		hint = "let the machine join again, and decide its new request"
	}
	return fault.New(fault.InvalidState, hint, "join request %q is %s", r.ID, state)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "", format, args...)
}

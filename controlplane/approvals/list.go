package approvals

import (
	"context"
	"fmt"
	"slices"

	"github.com/better-compute/bcd/controlplane/store"
)

// Sizes of a page.
const (
	DefaultPage = 100
	MaxPage     = 200
)

// StateAll is the state of [ListRequest] that lists every state.
const StateAll = "all"

// ListRequest is what joinRequests.list takes.
type ListRequest struct {
	TenantID string
	PoolID   string
	// State is one of [store.JoinRequestStates] or [StateAll]; empty is pending.
	State string
	// Cursor is the NextCursor of the page before, or empty.
	Cursor string
	// Limit is 1 to [MaxPage]; 0 is [DefaultPage].
	Limit int
}

// Page is a part of a pool's join requests, oldest first, each in the state that it is in at the time of the call.
type Page struct {
	Requests []store.JoinRequest
	// NextCursor is empty on the last page.
	NextCursor string
}

// List returns a page of the join requests that are decided in a pool of the tenant: the pool's, and its site's that no
// pool claimed yet.
func (s *Service) List(ctx context.Context, r ListRequest) (Page, error) {
	limit := r.Limit
	if limit == 0 {
		limit = DefaultPage
	}
	if limit < 1 || limit > MaxPage {
		return Page{}, invalid("limit must be a whole number from 1 to %d", MaxPage)
	}
	if r.Cursor != "" {
		if err := store.CheckID(store.PrefixJoinRequest, r.Cursor); err != nil {
			return Page{}, invalid("cursor is not one that a list returned")
		}
	}
	state := store.JoinRequestState(r.State)
	switch {
	case r.State == "":
		state = store.JoinRequestPending
	case r.State == StateAll:
		state = ""
	case !slices.Contains(store.JoinRequestStates, state):
		return Page{}, invalid("state %q is not one of pending, approved, rejected, expired, consumed or all", r.State)
	}
	var page Page
	err := s.Store.Read(ctx, func(tx *store.Tx) error {
		pool, err := poolOf(tx, r.TenantID, r.PoolID)
		if err != nil {
			return err
		}
		// One more than asked for tells whether there is a next page.
		page.Requests, err = tx.JoinRequestsOfPool(pool, state, r.Cursor, limit+1)
		for i := range page.Requests {
			page.Requests[i].State = page.Requests[i].StateAt(tx.Now())
		}
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("cannot list join requests: %w", err)
	}
	if len(page.Requests) > limit {
		page.Requests = page.Requests[:limit]
		page.NextCursor = page.Requests[limit-1].ID
	}
	return page, nil
}

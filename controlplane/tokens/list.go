package tokens

import (
	"context"
	"fmt"

	"github.com/better-compute/bcd/controlplane/store"
)

// Sizes of a page.
const (
	DefaultPage = 100
	MaxPage     = 200
)

// ListRequest is what joinTokens.list and siteTokens.list take.
type ListRequest struct {
	TenantID string
	// PoolID is the pool whose tokens are listed. Without it they are those of SiteID's agents.
	PoolID string
	SiteID string
	// IncludeInactive adds revoked, expired and used-up tokens.
	IncludeInactive bool
	// Cursor is the NextCursor of the page before, or empty.
	Cursor string
	// Limit is 1 to [MaxPage]; 0 is [DefaultPage].
	Limit int
}

// Page is a part of a list of tokens, oldest first.
type Page struct {
	Tokens []store.Token
	// NextCursor is empty on the last page.
	NextCursor string
}

// List returns a page of the tokens of a pool, or of a site's agents, of the tenant.
func (s *Service) List(ctx context.Context, r ListRequest) (Page, error) {
	limit := r.Limit
	if limit == 0 {
		limit = DefaultPage
	}
	if limit < 1 || limit > MaxPage {
		return Page{}, invalid("limit must be a whole number from 1 to %d", MaxPage)
	}
	if r.Cursor != "" {
		if err := store.CheckID(store.PrefixToken, r.Cursor); err != nil {
			return Page{}, invalid("cursor is not one that a list returned")
		}
	}
	var page Page
	err := s.Store.Read(ctx, func(tx *store.Tx) (err error) {
		owner, tokens := r.PoolID, tx.TokensOfPool
		if owner == "" {
			owner, tokens = r.SiteID, tx.TokensOfSite
			err = siteOf(tx, r.TenantID, r.SiteID)
		} else {
			_, err = poolOf(tx, r.TenantID, r.PoolID)
		}
		if err != nil {
			return err
		}
		// One more than asked for tells whether there is a next page.
		page.Tokens, err = tokens(owner, r.IncludeInactive, r.Cursor, limit+1)
		return err
	})
	if err != nil {
		return Page{}, fmt.Errorf("cannot list join tokens: %w", err)
	}
	if len(page.Tokens) > limit {
		page.Tokens = page.Tokens[:limit]
		page.NextCursor = page.Tokens[limit-1].ID
	}
	return page, nil
}

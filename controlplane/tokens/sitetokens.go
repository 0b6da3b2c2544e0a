package tokens

import (
	"context"
	"errors"
	"time"

	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
)

// CreateSiteRequest is what siteTokens.create takes.
type CreateSiteRequest struct {
	TenantID string
	SiteID   string
	// TTL is whole seconds between [MinTTL] and [MaxTTL].
	TTL time.Duration
	// MaxUses is 1 to [MaxSiteUses]; nil is 1.
	MaxUses *int64
	// IdempotencyKey makes the call repeatable by the same caller. Required.
	IdempotencyKey string
}

// CreateSite makes a token for agents of a site of the tenant, on behalf of the identity. It repeats as [Service.Create]
// does.
func (s *Service) CreateSite(ctx context.Context, identity string, r CreateSiteRequest) (store.Token, bearer.Token, error) {
	issued := IssueRequest{Role: store.TokenSite, SiteID: r.SiteID, TTL: r.TTL, IssuedBy: identity}
	if r.MaxUses != nil {
		if *r.MaxUses < 1 || *r.MaxUses > MaxSiteUses {
			return store.Token{}, bearer.Token{}, invalid("maxUses must be a whole number from 1 to %d", MaxSiteUses)
		}
		issued.MaxUses = *r.MaxUses
	}
	if err := issued.check(); err != nil {
		return store.Token{}, bearer.Token{}, err
	}
	if err := idempotency.CheckKey(r.IdempotencyKey); err != nil {
		return store.Token{}, bearer.Token{}, err
	}
	key := store.IdempotencyKey{TenantID: r.TenantID, Identity: identity, Method: methodCreateSite, Key: r.IdempotencyKey}
	check := func(tx *store.Tx) error { return siteOf(tx, r.TenantID, r.SiteID) }
	return s.once(ctx, key, r.SiteID, check, func(tx *store.Tx, secret bearer.Secret) (store.Token, error) {
		return issue(tx, secret, issued)
	})
}

// siteOf checks that the tenant owns the site. To any other tenant it does not exist.
func siteOf(tx *store.Tx, tenantID, siteID string) error {
	_, err := tx.SiteOfTenant(tenantID, siteID)
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.NotFound, "", "site %q does not exist", siteID)
	}
	return err
}

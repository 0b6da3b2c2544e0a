package tokens

import (
	"context"
	"errors"
	"fmt"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Revoke ends a token of a pool of the tenant at once, on behalf of the identity, and returns its record. Revoking
// twice is not an error and is told once.
func (s *Service) Revoke(ctx context.Context, identity, tenantID, poolID, tokenID string) (store.Token, error) {
	return s.revoke(ctx, identity, tenantID, func(tx *store.Tx) (store.Token, error) {
		if _, err := poolOf(tx, tenantID, poolID); err != nil {
			return store.Token{}, err
		}
		t, err := tx.Token(tokenID)
		if errors.Is(err, store.ErrNotFound) || err == nil && t.PoolID != poolID {
			return store.Token{}, fault.New(fault.NotFound, "", "join token %q does not exist in pool %q", tokenID, poolID)
		}
		return t, err
	})
}

// RevokeSite is [Service.Revoke] for a token of a site's agents.
func (s *Service) RevokeSite(ctx context.Context, identity, tenantID, siteID, tokenID string) (store.Token, error) {
	return s.revoke(ctx, identity, tenantID, func(tx *store.Tx) (store.Token, error) {
		if err := siteOf(tx, tenantID, siteID); err != nil {
			return store.Token{}, err
		}
		t, err := tx.Token(tokenID)
		if errors.Is(err, store.ErrNotFound) || err == nil && (t.SiteID != siteID || t.Role != store.TokenSite) {
			return store.Token{}, fault.New(fault.NotFound, "", "site token %q does not exist at site %q", tokenID, siteID)
		}
		return t, err
	})
}

// revoke ends the token that find returns.
func (s *Service) revoke(
	ctx context.Context, identity, tenantID string, find func(*store.Tx) (store.Token, error),
) (store.Token, error) {
	var t store.Token
	err := s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if t, err = find(tx); err != nil {
			return err
		}
		ended, err := tx.RevokeToken(t.ID)
		if err != nil || !ended {
			return err
		}
		t.RevokedAt = tx.Now()
		event := events.JoinTokenRevoked{TokenID: t.ID, PoolID: t.PoolID, RevokedBy: identity}
		if t.PoolID == "" {
			event.SiteID = t.SiteID
		}
		if err := tx.Publish(tenantID, event); err != nil {
			return err
		}
		return tx.Record(tenantID, events.ActionJoinTokenRevoked, identity, t.ID, event)
	})
	if err != nil {
		return store.Token{}, fmt.Errorf("cannot revoke the join token: %w", err)
	}
	return t, nil
}

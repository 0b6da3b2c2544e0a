package httpapi

import (
	"context"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// CreateSiteToken is the request of siteTokens.create. Its answer is a [CreatedSiteToken].
type CreateSiteToken struct {
	TenantID   string `json:"tenantId"`
	SiteID     string `json:"siteId"`
	TTLSeconds int64  `json:"ttlSeconds"`
	// MaxUses is 1 to 16.
	MaxUses        *int64 `json:"maxUses,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// SiteToken is the record of a token for a site's agents. It never holds the secret.
type SiteToken struct {
	ID        string    `json:"id"`
	SiteID    string    `json:"siteId"`
	Role      string    `json:"role"`
	UsesLeft  int64     `json:"usesLeft"`
	ExpiresAt time.Time `json:"expiresAt"`
}

// CreatedSiteToken is the answer of siteTokens.create.
type CreatedSiteToken struct {
	SiteToken
	// Token is the bearer form. It is absent from the answer to a repeated idempotency key.
	Token string `json:"token,omitempty"`
}

// ListSiteTokens is the request of siteTokens.list.
type ListSiteTokens struct {
	TenantID        string `json:"tenantId"`
	SiteID          string `json:"siteId"`
	IncludeInactive bool   `json:"includeInactive,omitempty"`
	Limit           *int   `json:"limit,omitempty"`
	Cursor          string `json:"cursor,omitempty"`
}

// ListedSiteToken is a site token in a list.
type ListedSiteToken struct {
	SiteToken
	// State is live, revoked, expired or used-up.
	State string `json:"state"`
}

// RevokeSiteToken is the request of siteTokens.revoke. Its answer is a [ListedSiteToken].
type RevokeSiteToken struct {
	TenantID string `json:"tenantId"`
	SiteID   string `json:"siteId"`
	TokenID  string `json:"tokenId"`
}

func (a *API) createSiteToken(ctx context.Context, caller Caller, in CreateSiteToken) (CreatedSiteToken, error) {
	if err := a.authorizeSite(ctx, caller, in.TenantID, in.SiteID); err != nil {
		return CreatedSiteToken{}, err
	}
	ttl, err := tokenTTL(in.TTLSeconds)
	if err != nil {
		return CreatedSiteToken{}, err
	}
	made, text, err := a.tokens.CreateSite(ctx, caller.KeyID, tokens.CreateSiteRequest{
		TenantID: in.TenantID, SiteID: in.SiteID, TTL: ttl, MaxUses: in.MaxUses, IdempotencyKey: in.IdempotencyKey,
	})
	if err != nil {
		return CreatedSiteToken{}, err
	}
	return CreatedSiteToken{SiteToken: siteTokenOf(made), Token: string(text.Bytes())}, nil
}

func (a *API) listSiteTokens(ctx context.Context, caller Caller, in ListSiteTokens) (List[ListedSiteToken], error) {
	if err := a.authorizeSite(ctx, caller, in.TenantID, in.SiteID); err != nil {
		return List[ListedSiteToken]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixToken)
	if err != nil {
		return List[ListedSiteToken]{}, err
	}
	page, err := a.tokens.List(ctx, tokens.ListRequest{
		TenantID: in.TenantID, SiteID: in.SiteID, IncludeInactive: in.IncludeInactive, Cursor: in.Cursor, Limit: limit,
	})
	if err != nil {
		return List[ListedSiteToken]{}, err
	}
	now, err := a.now(ctx)
	list := List[ListedSiteToken]{Items: []ListedSiteToken{}, NextCursor: page.NextCursor}
	for _, t := range page.Tokens {
		list.Items = append(list.Items, ListedSiteToken{SiteToken: siteTokenOf(t), State: tokenState(t, now)})
	}
	return list, err
}

func (a *API) revokeSiteToken(ctx context.Context, caller Caller, in RevokeSiteToken) (ListedSiteToken, error) {
	if err := a.authorizeSite(ctx, caller, in.TenantID, in.SiteID); err != nil {
		return ListedSiteToken{}, err
	}
	if err := checkTokenID(in.TokenID); err != nil {
		return ListedSiteToken{}, err
	}
	t, err := a.tokens.RevokeSite(ctx, caller.KeyID, in.TenantID, in.SiteID, in.TokenID)
	if err != nil {
		return ListedSiteToken{}, err
	}
	now, err := a.now(ctx)
	return ListedSiteToken{SiteToken: siteTokenOf(t), State: tokenState(t, now)}, err
}

func siteTokenOf(t store.Token) SiteToken {
	return SiteToken{ID: t.ID, SiteID: t.SiteID, Role: string(t.Role), UsesLeft: t.UsesLeft, ExpiresAt: t.ExpiresAt}
}

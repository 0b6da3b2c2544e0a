package httpapi

import (
	"context"
	"slices"
	"time"

	"github.com/better-compute/bcd/controlplane/apikeys"
	"github.com/better-compute/bcd/controlplane/store"
)

// The states of an API key in a list; revoked and expired are named as those of tokens are.
const keyGood = "active"

// CreateAPIKey is the request of apiKeys.create. Its answer is a [CreatedAPIKey].
type CreateAPIKey struct {
	// TenantID is the tenant that the new key acts for. Only a key of the root tenant makes keys for another than its own.
	TenantID string `json:"tenantId"`
	Name     string `json:"name"`
	// Actions are what it may do, each an action or a prefix of some that ends in ":*"; no more than the caller's key may.
	Actions []string `json:"actions"`
	// TTLSeconds is how long it is good, no longer than the caller's key is. Without it, until it is revoked.
	TTLSeconds     *int64 `json:"ttlSeconds,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// ListAPIKeys is the request of apiKeys.list.
type ListAPIKeys struct {
	TenantID string `json:"tenantId"`
	// IncludeInactive adds revoked and expired keys.
	IncludeInactive bool   `json:"includeInactive,omitempty"`
	Limit           *int   `json:"limit,omitempty"`
	Cursor          string `json:"cursor,omitempty"`
}

// RevokeAPIKey is the request of apiKeys.revoke. Its answer is an [APIKey].
type RevokeAPIKey struct {
	TenantID string `json:"tenantId"`
	KeyID    string `json:"keyId"`
}

// APIKey is an API key's record. It never holds the key.
type APIKey struct {
	ID       string   `json:"id"`
	TenantID string   `json:"tenantId"`
	Name     string   `json:"name"`
	Actions  []string `json:"actions"`
	// State is active, revoked or expired.
	State     string    `json:"state"`
	CreatedAt time.Time `json:"createdAt"`
	// ExpiresAt is null for a key that does not expire.
	ExpiresAt *time.Time `json:"expiresAt"`
}

// CreatedAPIKey is the answer of apiKeys.create.
type CreatedAPIKey struct {
	APIKey
	// Key is the bearer form. It is absent from the answer to a repeated idempotency key.
	Key string `json:"key,omitempty"`
}

func (a *API) createAPIKey(ctx context.Context, caller Caller, in CreateAPIKey) (CreatedAPIKey, error) {
	if err := a.authorizeKeys(ctx, caller, in.TenantID, actionCreateKeys, resourceTenant+in.TenantID); err != nil {
		return CreatedAPIKey{}, err
	}
	request := apikeys.CreateRequest{TenantID: in.TenantID, Name: in.Name, Actions: in.Actions, IdempotencyKey: in.IdempotencyKey}
	if in.TTLSeconds != nil {
		// A number of seconds that a duration cannot hold must not wrap round to one that is allowed.
		if *in.TTLSeconds < int64(apikeys.MinTTL/time.Second) || *in.TTLSeconds > int64(apikeys.MaxTTL/time.Second) {
			return CreatedAPIKey{}, invalid(`field "ttlSeconds" must be from %d to %d`, apikeys.MinTTL/time.Second, apikeys.MaxTTL/time.Second)
		}
		request.TTL = time.Duration(*in.TTLSeconds) * time.Second
	}
	made, text, err := a.keys.Create(ctx, caller.holder(), request)
	if err != nil {
		return CreatedAPIKey{}, err
	}
	now, err := a.now(ctx)
	return CreatedAPIKey{APIKey: apiKeyOf(made, now), Key: text}, err
}

func (a *API) listAPIKeys(ctx context.Context, caller Caller, in ListAPIKeys) (List[APIKey], error) {
	if err := a.authorizeKeys(ctx, caller, in.TenantID, actionReadKeys, resourceTenant+in.TenantID); err != nil {
		return List[APIKey]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixKey)
	if err != nil {
		return List[APIKey]{}, err
	}
	keys, now, err := a.keys.List(ctx, caller.holder(), in.TenantID, in.IncludeInactive, in.Cursor, limit+1)
	return listOf(keys, limit, func(k store.APIKey) string { return k.ID }, func(k store.APIKey) APIKey { return apiKeyOf(k, now) }), err
}

func (a *API) revokeAPIKey(ctx context.Context, caller Caller, in RevokeAPIKey) (APIKey, error) {
	if err := checkID("keyId", store.PrefixKey, in.KeyID); err != nil {
		return APIKey{}, err
	}
	if err := a.authorizeKeys(ctx, caller, in.TenantID, actionRevokeKeys, resourceKey+in.KeyID); err != nil {
		return APIKey{}, err
	}
	k, err := a.keys.Revoke(ctx, caller.holder(), in.TenantID, in.KeyID)
	if err != nil {
		return APIKey{}, err
	}
	now, err := a.now(ctx)
	return apiKeyOf(k, now), err
}

// authorizeKeys checks that the caller may do the action. Unlike [API.authorize] it leaves it to package apikeys whose
// keys the caller may handle: those of the root tenant handle everybody's.
func (a *API) authorizeKeys(ctx context.Context, caller Caller, tenantID, action, resource string) error {
	if err := checkID("tenantId", store.PrefixTenant, tenantID); err != nil {
		return err
	}
	return a.authorizer.Authorize(ctx, caller, action, resource)
}

// holder is the caller as package apikeys knows it.
func (c Caller) holder() apikeys.Holder {
	return apikeys.Holder{Actor: c.actor(), Actions: c.Actions, ExpiresAt: c.ExpiresAt}
}

func apiKeyOf(k store.APIKey, now time.Time) APIKey {
	state := keyGood
	switch {
	case !k.RevokedAt.IsZero():
		state = tokenRevoked
	case !k.Good(now):
		state = tokenExpired
	}
	return APIKey{
		ID: k.ID, TenantID: k.TenantID, Name: k.Name, Actions: slices.Clone(k.Actions), State: state,
		CreatedAt: k.CreatedAt, ExpiresAt: timeOrNull(k.ExpiresAt),
	}
}

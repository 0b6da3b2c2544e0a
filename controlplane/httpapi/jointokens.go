package httpapi

import (
	"context"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/hwclaims"
)

// The states of a token in a list.
const (
	tokenLive    = "live"
	tokenRevoked = "revoked"
	tokenExpired = "expired"
	tokenUsedUp  = "used-up"
)

func (a *API) createJoinToken(ctx context.Context, caller Caller, in CreateJoinToken) (CreatedJoinToken, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionCreateTokens); err != nil {
		return CreatedJoinToken{}, err
	}
	ttl, err := tokenTTL(in.TTLSeconds)
	if err != nil {
		return CreatedJoinToken{}, err
	}
	request := tokens.CreateRequest{
		TenantID:       in.TenantID,
		PoolID:         in.PoolID,
		TTL:            ttl,
		MaxUses:        in.MaxUses,
		AllowReclaim:   in.AllowReclaim,
		IdempotencyKey: in.IdempotencyKey,
	}
	if request.Expect, err = expectGiven(in.Expect); err != nil {
		return CreatedJoinToken{}, err
	}
	if in.Hosted != nil {
		if *in.Hosted != tokens.HostedKubernetes {
			return CreatedJoinToken{}, invalid(`field "hosted" must be %q`, tokens.HostedKubernetes)
		}
		request.Hosted = *in.Hosted
	}
	made, text, err := a.tokens.Create(ctx, caller.KeyID, request)
	if err != nil {
		return CreatedJoinToken{}, err
	}
	return CreatedJoinToken{JoinToken: joinTokenOf(made), Token: string(text.Bytes())}, nil
}

func (a *API) listJoinTokens(ctx context.Context, caller Caller, in ListJoinTokens) (List[ListedJoinToken], error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionReadTokens); err != nil {
		return List[ListedJoinToken]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixToken)
	if err != nil {
		return List[ListedJoinToken]{}, err
	}
	page, err := a.tokens.List(ctx, tokens.ListRequest{
		TenantID: in.TenantID, PoolID: in.PoolID, IncludeInactive: in.IncludeInactive, Cursor: in.Cursor, Limit: limit,
	})
	if err != nil {
		return List[ListedJoinToken]{}, err
	}
	now, err := a.now(ctx)
	list := List[ListedJoinToken]{Items: []ListedJoinToken{}, NextCursor: page.NextCursor}
	for _, t := range page.Tokens {
		list.Items = append(list.Items, listedJoinToken(t, now))
	}
	return list, err
}

func (a *API) revokeJoinToken(ctx context.Context, caller Caller, in RevokeJoinToken) (ListedJoinToken, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionRevokeTokens); err != nil {
		return ListedJoinToken{}, err
	}
	if err := checkTokenID(in.TokenID); err != nil {
		return ListedJoinToken{}, err
	}
	t, err := a.tokens.Revoke(ctx, caller.KeyID, in.TenantID, in.PoolID, in.TokenID)
	if err != nil {
		return ListedJoinToken{}, err
	}
	now, err := a.now(ctx)
	return listedJoinToken(t, now), err
}

// tokenTTL reads the lifetime of a token.
func tokenTTL(seconds int64) (time.Duration, error) {
	// A number of seconds that a duration cannot hold must not wrap round to one that is allowed.
	if seconds < int64(tokens.MinTTL/time.Second) || seconds > int64(tokens.MaxTTL/time.Second) {
		return 0, invalid(`field "ttlSeconds" must be from %d to %d`, tokens.MinTTL/time.Second, tokens.MaxTTL/time.Second)
	}
	return time.Duration(seconds) * time.Second, nil
}

func checkTokenID(id string) error {
	if store.CheckID(store.PrefixToken, id) != nil {
		// The text is not repeated: it may be a token, pasted whole.
		return invalid(`field "tokenId" is not the id of a join token, jt_…`)
	}
	return nil
}

// authorizePool decides a call about a pool.
func (a *API) authorizePool(ctx context.Context, caller Caller, tenantID, poolID, action string) error {
	if err := checkID("poolId", store.PrefixPool, poolID); err != nil {
		return err
	}
	return a.authorize(ctx, caller, tenantID, action, resourcePool+poolID)
}

// now is the time of the control plane.
func (a *API) now(ctx context.Context) (now time.Time, err error) {
	err = a.store.Read(ctx, func(tx *store.Tx) error {
		now = tx.Now()
		return nil
	})
	return now, err
}

// expectGiven reads a binding. An identifier that is given and empty is a mistake of the caller, an unset variable for
// instance: to take it as not given would bind the token to less than was meant.
func expectGiven(e *Expect) (*hwclaims.Expect, error) {
	if e == nil {
		return nil, nil //nolint:nilnil // no binding
	}
	var to hwclaims.Expect
	for _, f := range []struct {
		name string
		from *string
		to   *string
	}{
		{"productUuid", e.ProductUUID, &to.ProductUUID},
		{"serial", e.Serial, &to.Serial},
		{"mac", e.MAC, &to.MAC},
		{"gpuUuid", e.GPUUUID, &to.GPUUUID},
	} {
		if f.from == nil {
			continue
		}
		if *f.from == "" {
			return nil, invalid(`field "expect.%s" is empty`, f.name)
		}
		*f.to = *f.from
	}
	return &to, nil
}

func joinTokenOf(t store.Token) JoinToken {
	return JoinToken{
		ID:           t.ID,
		PoolID:       t.PoolID,
		SiteID:       t.SiteID,
		Role:         string(t.Role),
		UsesLeft:     t.UsesLeft,
		Expect:       expectOf(t.Expect),
		AllowReclaim: t.AllowReclaim,
		Hosted:       textOrNull(t.Hosted),
		ExpiresAt:    t.ExpiresAt,
	}
}

func listedJoinToken(t store.Token, now time.Time) ListedJoinToken {
	return ListedJoinToken{JoinToken: joinTokenOf(t), State: tokenState(t, now)}
}

func tokenState(t store.Token, now time.Time) string {
	switch {
	case !t.RevokedAt.IsZero():
		return tokenRevoked
	case t.UsesLeft == 0:
		return tokenUsedUp
	case !now.Before(t.ExpiresAt):
		return tokenExpired
	default:
		return tokenLive
	}
}

func expectOf(e *hwclaims.Expect) *Expect {
	if e == nil {
		return nil
	}
	return &Expect{
		ProductUUID: textOrNull(e.ProductUUID),
		Serial:      textOrNull(e.Serial),
		MAC:         textOrNull(e.MAC),
		GPUUUID:     textOrNull(e.GPUUUID),
	}
}

func textOrNull(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

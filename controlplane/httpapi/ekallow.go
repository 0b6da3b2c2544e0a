package httpapi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"time"

	"github.com/better-compute/bcd/controlplane/ekallow"
	"github.com/better-compute/bcd/controlplane/store"
)

// AddEKAllow is the request of ekAllow.add. It names the endorsement key by ekSha256, by ekPublic, or by both, which must
// then agree. Its answer is an [EKAllow].
type AddEKAllow struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	// EKSHA256 is the SHA-256 of the key's SubjectPublicKeyInfo in DER, as "bcd tpm identify" prints it.
	EKSHA256 *string `json:"ekSha256,omitempty"`
	// EKPublic is the key itself: PEM, PUBLIC KEY.
	EKPublic *string `json:"ekPublic,omitempty"`
	// Note is for people: which machine it is.
	Note           string `json:"note,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// EKAllow is an endorsement key whose machine may join a pool without a token.
type EKAllow struct {
	ID     string `json:"id"`
	PoolID string `json:"poolId"`
	SiteID string `json:"siteId"`
	// EKSHA256 is lower-case hex.
	EKSHA256 string  `json:"ekSha256"`
	Note     *string `json:"note"`
	// CreatedBy is the id of an API key.
	CreatedBy string    `json:"createdBy"`
	CreatedAt time.Time `json:"createdAt"`
	// RemovedAt is when the entry ended; null while it admits.
	RemovedAt *time.Time `json:"removedAt"`
}

// ListEKAllow is the request of ekAllow.list: the entries of a pool that admit.
type ListEKAllow struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	Limit    *int   `json:"limit,omitempty"`
	Cursor   string `json:"cursor,omitempty"`
}

// RemoveEKAllow is the request of ekAllow.remove. Its answer is the [EKAllow] as it is afterwards.
type RemoveEKAllow struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
	EntryID  string `json:"entryId"`
}

func (a *API) addEKAllow(ctx context.Context, caller Caller, in AddEKAllow) (EKAllow, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionCreateEKAllow); err != nil {
		return EKAllow{}, err
	}
	digest, err := ekGiven(in)
	if err != nil {
		return EKAllow{}, err
	}
	made, err := a.ekAllow.Add(ctx, caller.KeyID, ekallow.AddRequest{
		TenantID: in.TenantID, PoolID: in.PoolID, EKSHA256: digest, Note: in.Note, IdempotencyKey: in.IdempotencyKey,
	})
	if err != nil {
		return EKAllow{}, err
	}
	return ekAllowOf(made), nil
}

// ekGiven is the endorsement key that a request names.
func ekGiven(in AddEKAllow) (digest [sha256.Size]byte, err error) {
	if in.EKSHA256 == nil && in.EKPublic == nil {
		return digest, invalid(`one of the fields "ekSha256" and "ekPublic" is required`)
	}
	if in.EKSHA256 != nil {
		if digest, err = ekallow.ParseHash(*in.EKSHA256); err != nil {
			return digest, invalid(`field "ekSha256": %w`, err)
		}
	}
	if in.EKPublic == nil {
		return digest, nil
	}
	of, err := ekallow.HashOfPublic(*in.EKPublic)
	switch {
	case err != nil:
		return digest, invalid(`field "ekPublic": %w`, err)
	case in.EKSHA256 != nil && of != digest:
		return digest, invalid(`field "ekPublic" is another key than "ekSha256" names: its SHA-256 is %x`, of)
	}
	return of, nil
}

func (a *API) listEKAllow(ctx context.Context, caller Caller, in ListEKAllow) (List[EKAllow], error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionReadEKAllow); err != nil {
		return List[EKAllow]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixEKAllow)
	if err != nil {
		return List[EKAllow]{}, err
	}
	rows, err := a.ekAllow.List(ctx, in.TenantID, in.PoolID, in.Cursor, limit+1)
	if err != nil {
		return List[EKAllow]{}, err
	}
	return listOf(rows, limit, func(e store.EKAllow) string { return e.ID }, ekAllowOf), nil
}

func (a *API) removeEKAllow(ctx context.Context, caller Caller, in RemoveEKAllow) (EKAllow, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionDeleteEKAllow); err != nil {
		return EKAllow{}, err
	}
	if err := checkID("entryId", store.PrefixEKAllow, in.EntryID); err != nil {
		return EKAllow{}, err
	}
	removed, err := a.ekAllow.Remove(ctx, caller.KeyID, in.TenantID, in.PoolID, in.EntryID)
	if err != nil {
		return EKAllow{}, err
	}
	return ekAllowOf(removed), nil
}

func ekAllowOf(e store.EKAllow) EKAllow {
	return EKAllow{
		ID: e.ID, PoolID: e.PoolID, SiteID: e.SiteID, EKSHA256: hex.EncodeToString(e.EKSHA256[:]), Note: textOrNull(e.Note),
		CreatedBy: e.CreatedBy, CreatedAt: e.CreatedAt, RemovedAt: timeOrNull(e.RemovedAt),
	}
}

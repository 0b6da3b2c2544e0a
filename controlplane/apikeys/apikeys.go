// Package apikeys makes, lists and ends the API keys of the HTTP API: their text, what they may do, and who may give that
// to whom.
//
// A key acts for one tenant and may do what its list of actions says. The bearer text leaves in the answer that made the
// key; its digest is all that is kept. A key can only make keys that may do no more than itself and end no later, and only
// the root tenant's make keys for another tenant. Whether the caller may make keys at all is the caller's to have decided:
// httpapi authenticates and authorizes.
package apikeys

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
	"github.com/better-compute/bcd/internal/fault"
)

// Bounds of a key's life that is bounded.
const (
	MinTTL = time.Minute
	MaxTTL = 10 * 366 * 24 * time.Hour
)

// methodCreate scopes the idempotency keys.
const methodCreate = "apiKeys.create"

// Service makes, lists and ends API keys. All methods are safe for concurrent use.
type Service struct {
	Store store.Store
	// RootTenant is the id of the tenant that the platform itself is.
	RootTenant string
	// Actions are all that there are.
	Actions []string
}

// Holder is the key on whose behalf something is done.
type Holder struct {
	tenancy.Actor
	// Actions are what the key may do.
	Actions []string
	// ExpiresAt is when the key ends; the zero time is never.
	ExpiresAt time.Time
}

// CreateRequest is what apiKeys.create takes.
type CreateRequest struct {
	// TenantID is the tenant that the new key acts for.
	TenantID string   `json:"-"`
	Name     string   `json:"name"`
	Actions  []string `json:"actions"`
	// TTL is whole seconds from [MinTTL] to [MaxTTL], or 0 for a key that does not expire.
	TTL            time.Duration `json:"ttl"`
	IdempotencyKey string        `json:"-"`
}

func (s *Service) check(by Holder, r CreateRequest) error {
	if err := tenancy.CheckName(r.Name); err != nil {
		return err
	}
	if r.TTL != 0 && (r.TTL < MinTTL || r.TTL > MaxTTL || r.TTL%time.Second != 0) {
		return invalid("ttlSeconds must be a whole number from %d to %d", MinTTL/time.Second, MaxTTL/time.Second)
	}
	if err := checkActions(r.Actions, s.Actions); err != nil {
		return err
	}
	if err := idempotency.CheckKey(r.IdempotencyKey); err != nil {
		return err
	}
	for _, a := range r.Actions {
		if !Covers(by.Actions, a) {
			return fault.New(fault.AccessDenied, "a key gives only what it has: leave that action out, or use a key that has it",
				"the API key may not give %q", a)
		}
	}
	return nil
}

// checkEnd refuses a key that would end later than the one that gives it: what was lent for a time would be kept.
func (h Holder) checkEnd(k store.APIKey) error {
	if h.ExpiresAt.IsZero() || !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(h.ExpiresAt) {
		return nil
	}
	return fault.New(fault.AccessDenied, "give ttlSeconds, of less than is left, or use a key that does not end",
		"the API key ends at %s and may not give a key that ends later", h.ExpiresAt.UTC().Format(time.RFC3339))
}

// Create makes a key, on behalf of another. A repeat with the same idempotency key returns the record and no bearer text:
// that is shown once.
func (s *Service) Create(ctx context.Context, by Holder, r CreateRequest) (made store.APIKey, bearer string, err error) {
	if err := s.check(by, r); err != nil {
		return store.APIKey{}, "", err
	}
	text, digest := New()
	key := store.IdempotencyKey{TenantID: r.TenantID, Identity: by.KeyID, Method: methodCreate, Key: r.IdempotencyKey}
	var replayed bool
	err = s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if err := s.reaches(tx, by, r.TenantID); err != nil {
			return err
		}
		made, replayed, err = idempotency.Once(tx, key, r, tx.APIKey, func() (store.APIKey, string, error) {
			k := store.APIKey{
				ID: tx.NewID(store.PrefixKey), TenantID: r.TenantID, Name: r.Name, SHA256: digest, Actions: r.Actions, CreatedAt: tx.Now(),
			}
			if r.TTL != 0 {
				k.ExpiresAt = tx.Now().Add(r.TTL)
			}
			if err := by.checkEnd(k); err != nil {
				return k, "", err
			}
			if err := tx.InsertAPIKey(k); err != nil {
				return k, "", err
			}
			event := events.APIKeyCreated{KeyID: k.ID, Name: k.Name, Actions: k.Actions, ExpiresAt: k.ExpiresAt, CreatedBy: by.KeyID}
			if err := tx.Publish(k.TenantID, event); err != nil {
				return k, "", err
			}
			return k, k.ID, tx.Record(k.TenantID, events.ActionAPIKeyCreated, by.KeyID, k.ID, event)
		})
		return err
	})
	if err != nil {
		return store.APIKey{}, "", fmt.Errorf("cannot create an API key: %w", err)
	}
	if replayed {
		text = ""
	}
	return made, text, nil
}

// List lists the keys of a tenant, good ones or all, as [store.Tx.APIKeys] does, and returns the time that their state is
// of.
func (s *Service) List(
	ctx context.Context, by Holder, tenantID string, inactive bool, after string, limit int,
) (keys []store.APIKey, now time.Time, err error) {
	err = s.Store.Read(ctx, func(tx *store.Tx) (err error) {
		if err := s.reaches(tx, by, tenantID); err != nil {
			return err
		}
		now = tx.Now()
		keys, err = tx.APIKeys(tenantID, inactive, after, limit)
		return err
	})
	if err != nil {
		return nil, now, fmt.Errorf("cannot list the API keys: %w", err)
	}
	return keys, now, nil
}

// Revoke ends a key of a tenant at once, its own too. Revoking twice is not an error and is told once.
func (s *Service) Revoke(ctx context.Context, by Holder, tenantID, keyID string) (store.APIKey, error) {
	var k store.APIKey
	err := s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if err := s.reaches(tx, by, tenantID); err != nil {
			return err
		}
		k, err = tx.APIKey(keyID)
		if errors.Is(err, store.ErrNotFound) || err == nil && k.TenantID != tenantID {
			return fault.New(fault.NotFound, "", "API key %q does not exist", keyID)
		}
		if err != nil {
			return err
		}
		ended, err := tx.RevokeAPIKey(k.ID)
		if err != nil || !ended {
			return err
		}
		k.RevokedAt = tx.Now()
		event := events.APIKeyRevoked{KeyID: k.ID, RevokedBy: by.KeyID}
		if err := tx.Publish(tenantID, event); err != nil {
			return err
		}
		return tx.Record(tenantID, events.ActionAPIKeyRevoked, by.KeyID, k.ID, event)
	})
	if err != nil {
		return store.APIKey{}, fmt.Errorf("cannot revoke the API key: %w", err)
	}
	return k, nil
}

// reaches refuses a tenant whose keys are not the holder's to handle: any but its own, where the holder is not the root
// tenant's. Such a tenant does not exist for it.
func (s *Service) reaches(tx *store.Tx, by Holder, tenantID string) error {
	if tenantID == by.TenantID {
		return nil
	}
	_, err := tx.Tenant(tenantID)
	if errors.Is(err, store.ErrNotFound) || err == nil && by.TenantID != s.RootTenant {
		return fault.New(fault.NotFound, "", "tenant %q does not exist", tenantID)
	}
	return err
}

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "", format, args...)
}

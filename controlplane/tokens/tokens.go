// Package tokens makes, lists and ends join tokens: the rules of joinTokens.create, list and revoke, of siteTokens.create,
// and of the tokens that modules issue.
//
// It decides what a token may say. Who may call is the caller's to have decided: httpapi authorizes before it calls. What
// a token admits is decided when it is presented, by joinservice. The secret leaves in the answer that made the token and
// is kept nowhere.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
)

// Bounds of a token.
const (
	MinTTL = time.Minute
	MaxTTL = 24 * time.Hour
	// MaxWorkflowID is the length of a workflow's id, in bytes.
	MaxWorkflowID = 128
	// MaxUses is the most machines that a node token admits, MaxSiteUses that a site token does.
	MaxUses     = 10_000
	MaxSiteUses = 16
)

// HostedKubernetes is the only value of a token's `hosted`.
const HostedKubernetes = "kubernetes"

// The scopes of idempotency keys: the names of the API's methods.
const (
	methodCreate     = "joinTokens.create"
	methodCreateSite = "siteTokens.create"
)

// Service makes, lists and ends tokens. All methods are safe for concurrent use.
type Service struct {
	Store store.Store
}

// CreateRequest is what joinTokens.create takes.
type CreateRequest struct {
	TenantID string
	PoolID   string
	// TTL is whole seconds between [MinTTL] and [MaxTTL].
	TTL time.Duration
	// MaxUses is 1 to [MaxUses]; nil is 1.
	MaxUses *int64
	// Expect is nil for a token that is bound to no machine.
	Expect       *hwclaims.Expect
	AllowReclaim bool
	// Hosted is empty or [HostedKubernetes].
	Hosted string
	// IdempotencyKey makes the call repeatable by the same caller. Required.
	IdempotencyKey string
}

func (r CreateRequest) check() error {
	if r.TTL < MinTTL || r.TTL > MaxTTL || r.TTL%time.Second != 0 {
		return invalid("ttlSeconds must be a whole number from %d to %d", MinTTL/time.Second, MaxTTL/time.Second)
	}
	if r.MaxUses != nil && (*r.MaxUses < 1 || *r.MaxUses > MaxUses) {
		return invalid("maxUses must be a whole number from 1 to %d", MaxUses)
	}
	if r.Expect != nil {
		if err := hwclaims.ValidateExpect(*r.Expect); err != nil {
			return invalid("%w", err)
		}
	}
	if r.Hosted != "" && r.Hosted != HostedKubernetes {
		return invalid("hosted must be %q", HostedKubernetes)
	}
	return idempotency.CheckKey(r.IdempotencyKey)
}

// Create makes a node token for a pool of the tenant, on behalf of the identity. A repeat with the same idempotency key
// returns the record and no bearer: the secret is shown once.
func (s *Service) Create(ctx context.Context, identity string, r CreateRequest) (store.Token, bearer.Token, error) {
	if err := r.check(); err != nil {
		return store.Token{}, bearer.Token{}, err
	}
	key := store.IdempotencyKey{TenantID: r.TenantID, Identity: identity, Method: methodCreate, Key: r.IdempotencyKey}
	// The lifetime and the uses are not compared: they say how much is granted, not what.
	asked := CreateRequest{PoolID: r.PoolID, Expect: r.Expect, AllowReclaim: r.AllowReclaim, Hosted: r.Hosted}
	var pool store.Pool
	check := func(tx *store.Tx) (err error) {
		pool, err = poolOf(tx, r.TenantID, r.PoolID)
		return err
	}
	return s.once(ctx, key, asked, check, func(tx *store.Tx, secret bearer.Secret) (store.Token, error) {
		if err := usable(pool); err != nil {
			return store.Token{}, err
		}
		made := store.Token{
			ID: tx.NewID(store.PrefixToken), TenantID: r.TenantID, PoolID: pool.ID, SiteID: pool.SiteID,
			Role: store.TokenNode, SecretSHA256: secret.Digest(), MaxUses: 1, Expect: r.Expect,
			AllowReclaim: r.AllowReclaim, Hosted: r.Hosted, CreatedBy: identity, ExpiresAt: tx.Now().Add(r.TTL),
		}
		if r.MaxUses != nil {
			made.MaxUses = *r.MaxUses
		}
		return made, insert(tx, &made)
	})
}

// once checks what every call must find, the repeated ones too, and makes a token where the key was not used before.
func (s *Service) once(
	ctx context.Context, key store.IdempotencyKey, asked any,
	check func(*store.Tx) error, create func(*store.Tx, bearer.Secret) (store.Token, error),
) (made store.Token, _ bearer.Token, err error) {
	secret := bearer.NewSecret()
	var replayed bool
	err = s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if err := check(tx); err != nil {
			return err
		}
		made, replayed, err = idempotency.Once(tx, key, asked, tx.Token, func() (store.Token, string, error) {
			t, err := create(tx, secret)
			return t, t.ID, err
		})
		return err
	})
	if err != nil {
		return store.Token{}, bearer.Token{}, fmt.Errorf("cannot create a join token: %w", err)
	}
	if replayed {
		return made, bearer.Token{}, nil
	}
	text, err := secret.Token(made.ID)
	return made, text, err
}

// insert writes the token, its event and its audit row, and completes the record with what the database decides.
func insert(tx *store.Tx, t *store.Token) error {
	t.UsesLeft, t.CreatedAt = t.MaxUses, tx.Now()
	if err := tx.InsertToken(*t); err != nil {
		return err
	}
	event := events.JoinTokenCreated{
		TokenID: t.ID, PoolID: t.PoolID, SiteID: t.SiteID, Role: string(t.Role), CreatedBy: t.CreatedBy,
		Pinned: t.Expect != nil, Hosted: t.Hosted,
	}
	if err := tx.Publish(t.TenantID, event); err != nil {
		return err
	}
	return tx.Record(t.TenantID, events.ActionJoinTokenCreated, t.CreatedBy, t.ID, event)
}

// poolOf returns the pool if the tenant owns it. To any other tenant it does not exist.
func poolOf(tx *store.Tx, tenantID, poolID string) (store.Pool, error) {
	pool, err := tx.PoolOfTenant(tenantID, poolID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Pool{}, fault.New(fault.NotFound, "", "pool %q does not exist", poolID)
	}
	return pool, err
}

func usable(p store.Pool) error {
	if p.Agent != store.AgentBCD {
		return fault.New(fault.InvalidState, "", "pool %q has agent %q: its machines run no daemon", p.ID, p.Agent)
	}
	if !p.ArchivedAt.IsZero() {
		return fault.New(fault.InvalidState, "", "pool %q is archived", p.ID)
	}
	return nil
}

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "", format, args...)
}

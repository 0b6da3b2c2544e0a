// Package tenancy makes and changes what operators set up before machines join: tenants, their sites and their pools.
//
// It decides what a tenant, a site or a pool may be: whose site is the platform's, which site a pool may stand at, what a
// name looks like. Each change is one transaction with its event and its audit row. Who may call is the caller's to have
// decided: httpapi authorizes before it calls. What a pool's policy does to a join is decided by joinservice.
package tenancy

import (
	"context"
	"errors"
	"fmt"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// The scopes of idempotency keys: the names of the API's methods.
const (
	methodCreateTenant = "tenants.create"
	methodCreateSite   = "sites.create"
	methodCreatePool   = "pools.create"
)

// Service makes and changes tenants, sites and pools. All methods are safe for concurrent use.
type Service struct {
	Store store.Store
	// RootTenant is the id of the tenant that the platform itself is.
	RootTenant string
}

// Actor is on whose behalf something is done.
type Actor struct {
	// KeyID is the id of the API key.
	KeyID string
	// TenantID is the tenant that the key acts for.
	TenantID string
}

// CreateTenant makes a tenant. Only the root tenant does. A repeat with the same idempotency key returns the first one's
// record.
func (s *Service) CreateTenant(ctx context.Context, by Actor, name, idempotencyKey string) (store.Tenant, error) {
	if by.TenantID != s.RootTenant {
		return store.Tenant{}, fault.New(fault.AccessDenied, "use an API key of the root tenant",
			"only API keys of the root tenant may create tenants")
	}
	if err := CheckName(name); err != nil {
		return store.Tenant{}, err
	}
	made, err := once(ctx, s.Store, scope{by.KeyID, by.TenantID, methodCreateTenant, idempotencyKey}, name,
		(*store.Tx).Tenant, func(tx *store.Tx) (store.Tenant, string, error) {
			t := store.Tenant{ID: tx.NewID(store.PrefixTenant), Name: name, CreatedAt: tx.Now()}
			if err := tx.InsertTenant(t); err != nil {
				return t, "", err
			}
			return t, t.ID, tell(tx, by.TenantID, events.ActionTenantCreated, by.KeyID, t.ID,
				events.TenantCreated{TenantID: t.ID, Name: t.Name, CreatedBy: by.KeyID})
		})
	if err != nil {
		return store.Tenant{}, fmt.Errorf("cannot create the tenant: %w", err)
	}
	return made, nil
}

// scope is an idempotency key's.
type scope struct{ identity, tenantID, method, key string }

// once makes something in a transaction of its own, or returns what the key made before.
func once[T any](
	ctx context.Context, db store.Store, key scope, request any,
	load func(*store.Tx, string) (T, error), create func(*store.Tx) (T, string, error),
) (T, error) {
	var made T
	if err := idempotency.CheckKey(key.key); err != nil {
		return made, err
	}
	err := db.Write(ctx, func(tx *store.Tx) (err error) {
		made, _, err = idempotency.Once(tx,
			store.IdempotencyKey{TenantID: key.tenantID, Identity: key.identity, Method: key.method, Key: key.key}, request,
			func(id string) (T, error) { return load(tx, id) },
			func() (T, string, error) { return create(tx) })
		return err
	})
	return made, err
}

// tell writes the event and the audit row of a change.
func tell(tx *store.Tx, tenantID string, action events.Action, actor, subject string, p events.Payload) error {
	if err := tx.Publish(tenantID, p); err != nil {
		return err
	}
	return tx.Record(tenantID, action, actor, subject, p)
}

// siteOf returns the site if the tenant owns it. To any other tenant it does not exist.
func siteOf(tx *store.Tx, tenantID, siteID string) (store.Site, error) {
	site, err := tx.SiteOfTenant(tenantID, siteID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Site{}, notFound("site", siteID)
	}
	return site, err
}

func notFound(what, id string) error {
	return fault.New(fault.NotFound, "", "%s %q does not exist", what, id)
}

func invalid(hint, format string, args ...any) error {
	return fault.New(fault.InvalidArgument, hint, "%w", fmt.Errorf(format, args...))
}

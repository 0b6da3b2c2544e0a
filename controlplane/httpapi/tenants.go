package httpapi

import (
	"context"
	"errors"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
)

// CreateTenant is the request of tenants.create. Its answer is a [Tenant].
type CreateTenant struct {
	Name           string `json:"name"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// ListTenants is the request of tenants.list: all tenants for an API key of the root tenant, its own for any other.
type ListTenants struct {
	// Own leaves all but the API key's own tenant out.
	Own    bool   `json:"own,omitempty"`
	Limit  *int   `json:"limit,omitempty"`
	Cursor string `json:"cursor,omitempty"`
}

// Tenant owns sites, pools and nodes.
type Tenant struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Root says that it is the platform itself.
	Root      bool      `json:"root"`
	CreatedAt time.Time `json:"createdAt"`
}

func (a *API) createTenant(ctx context.Context, caller Caller, in CreateTenant) (Tenant, error) {
	if err := a.authorize(ctx, caller, caller.TenantID, actionCreateTenants, resourceTenant+caller.TenantID); err != nil {
		return Tenant{}, err
	}
	made, err := a.tenancy.CreateTenant(ctx, caller.actor(), in.Name, in.IdempotencyKey)
	return a.tenantOf(made), err
}

func (a *API) listTenants(ctx context.Context, caller Caller, in ListTenants) (List[Tenant], error) {
	if err := a.authorize(ctx, caller, caller.TenantID, actionReadTenants, resourceTenant+caller.TenantID); err != nil {
		return List[Tenant]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixTenant)
	if err != nil {
		return List[Tenant]{}, err
	}
	var tenants []store.Tenant
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		if caller.TenantID == a.rootTenant && !in.Own {
			tenants, err = tx.Tenants(in.Cursor, limit+1)
			return err
		}
		own, err := tx.Tenant(caller.TenantID)
		if errors.Is(err, store.ErrNotFound) {
			return notFound("tenant", caller.TenantID)
		}
		if own.ID > in.Cursor {
			tenants = []store.Tenant{own}
		}
		return err
	})
	return listOf(tenants, limit, func(t store.Tenant) string { return t.ID }, a.tenantOf), err
}

func (a *API) tenantOf(t store.Tenant) Tenant {
	return Tenant{ID: t.ID, Name: t.Name, Root: t.ID == a.rootTenant, CreatedAt: t.CreatedAt}
}

// actor is the caller as the packages below know it.
func (c Caller) actor() tenancy.Actor { return tenancy.Actor{KeyID: c.KeyID, TenantID: c.TenantID} }

package httpapi

import (
	"context"
	"slices"

	"github.com/better-compute/bcd/controlplane/store"
)

// listTenants lists what the caller may act for: the tenant of its key.
func (a *API) listTenants(ctx context.Context, caller Caller, _ ListTenants) (List[Tenant], error) {
	if err := a.authorize(ctx, caller, caller.TenantID, actionReadTenants, resourceTenant+caller.TenantID); err != nil {
		return List[Tenant]{}, err
	}
	list := List[Tenant]{Items: []Tenant{}}
	err := a.store.Read(ctx, func(tx *store.Tx) error {
		t, err := tx.Tenant(caller.TenantID)
		list.Items = append(list.Items, Tenant{ID: t.ID, Name: t.Name})
		return err
	})
	return list, err
}

func (a *API) listSites(ctx context.Context, caller Caller, in ListInTenant) (List[Site], error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionReadSites, resourceTenant+in.TenantID); err != nil {
		return List[Site]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixSite)
	if err != nil {
		return List[Site]{}, err
	}
	var sites []store.Site
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		sites, err = tx.Sites(in.TenantID, "", 1<<30)
		return err
	})
	id := func(s store.Site) string { return s.ID }
	return listOf(after(sites, in.Cursor, id), limit, id, func(s store.Site) Site {
		return Site{ID: s.ID, Name: s.Name, Custom: s.Custom}
	}), err
}

// listPools lists the pools in use; archived ones are left out.
func (a *API) listPools(ctx context.Context, caller Caller, in ListInTenant) (List[Pool], error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionReadPools, resourceTenant+in.TenantID); err != nil {
		return List[Pool]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixPool)
	if err != nil {
		return List[Pool]{}, err
	}
	var pools []store.Pool
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		pools, err = tx.Pools(in.TenantID, true, "", 1<<30)
		return err
	})
	pools = slices.DeleteFunc(pools, func(p store.Pool) bool { return !p.ArchivedAt.IsZero() })
	id := func(p store.Pool) string { return p.ID }
	return listOf(after(pools, in.Cursor, id), limit, id, func(p store.Pool) Pool {
		return Pool{ID: p.ID, Name: p.Name, SiteID: p.SiteID, Agent: string(p.Agent)}
	}), err
}

package httpapi

import (
	"context"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
)

// CreateSite is the request of sites.create. Its answer is a [Site].
type CreateSite struct {
	TenantID string `json:"tenantId"`
	Name     string `json:"name"`
	// Custom says that the machines are the tenant's own. It must be true for every tenant but the root tenant.
	Custom         bool   `json:"custom,omitempty"`
	IdempotencyKey string `json:"idempotencyKey"`
}

// UpdateSite is the request of sites.update. What is not given stays as it is. Its answer is a [Site].
type UpdateSite struct {
	TenantID string  `json:"tenantId"`
	SiteID   string  `json:"siteId"`
	Name     *string `json:"name,omitempty"`
	Custom   *bool   `json:"custom,omitempty"`
}

// ListSites is the request of sites.list.
type ListSites struct {
	TenantID string `json:"tenantId"`
	Limit    *int   `json:"limit,omitempty"`
	Cursor   string `json:"cursor,omitempty"`
}

// Site is a place with machines.
type Site struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	Custom    bool      `json:"custom"`
	CreatedAt time.Time `json:"createdAt"`
}

func (a *API) createSite(ctx context.Context, caller Caller, in CreateSite) (Site, error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionManageSites, resourceTenant+in.TenantID); err != nil {
		return Site{}, err
	}
	made, err := a.tenancy.CreateSite(ctx, caller.actor(), tenancy.CreateSite{
		TenantID: in.TenantID, Name: in.Name, Custom: in.Custom, IdempotencyKey: in.IdempotencyKey,
	})
	return siteOf(made), err
}

func (a *API) updateSite(ctx context.Context, caller Caller, in UpdateSite) (Site, error) {
	if err := a.authorizeSite(ctx, caller, in.TenantID, in.SiteID); err != nil {
		return Site{}, err
	}
	site, err := a.tenancy.UpdateSite(ctx, caller.actor(), tenancy.UpdateSite{
		TenantID: in.TenantID, SiteID: in.SiteID, Name: in.Name, Custom: in.Custom,
	})
	return siteOf(site), err
}

func (a *API) listSites(ctx context.Context, caller Caller, in ListSites) (List[Site], error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionReadSites, resourceTenant+in.TenantID); err != nil {
		return List[Site]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixSite)
	if err != nil {
		return List[Site]{}, err
	}
	var sites []store.Site
	err = a.store.Read(ctx, func(tx *store.Tx) (err error) {
		sites, err = tx.Sites(in.TenantID, in.Cursor, limit+1)
		return err
	})
	return listOf(sites, limit, func(s store.Site) string { return s.ID }, siteOf), err
}

// authorizeSite checks that the caller may manage the site. Whose it is, the packages below check.
func (a *API) authorizeSite(ctx context.Context, caller Caller, tenantID, siteID string) error {
	if err := checkID("siteId", store.PrefixSite, siteID); err != nil {
		return err
	}
	return a.authorize(ctx, caller, tenantID, actionManageSites, resourceSite+siteID)
}

func siteOf(s store.Site) Site {
	return Site{ID: s.ID, Name: s.Name, Custom: s.Custom, CreatedAt: s.CreatedAt}
}

package tenancy

import (
	"context"
	"fmt"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// CreateSite is what sites.create takes.
type CreateSite struct {
	TenantID string `json:"-"`
	Name     string `json:"name"`
	// Custom says that the machines there are the tenant's own. Every site of a tenant that is not the root tenant is.
	Custom         bool   `json:"custom"`
	IdempotencyKey string `json:"-"`
}

// CreateSite makes a site of the tenant. A repeat with the same idempotency key returns the first one's record, as it is
// now.
func (s *Service) CreateSite(ctx context.Context, by Actor, r CreateSite) (store.Site, error) {
	if err := CheckName(r.Name); err != nil {
		return store.Site{}, err
	}
	if err := s.checkCustom(r.TenantID, r.Custom); err != nil {
		return store.Site{}, err
	}
	made, err := once(ctx, s.Store, scope{by.KeyID, r.TenantID, methodCreateSite, r.IdempotencyKey}, r,
		(*store.Tx).Site, func(tx *store.Tx) (store.Site, string, error) {
			site := store.Site{
				ID: tx.NewID(store.PrefixSite), TenantID: r.TenantID, Name: r.Name, Custom: r.Custom, CreatedAt: tx.Now(),
			}
			if err := tx.InsertSite(site); err != nil {
				return site, "", err
			}
			return site, site.ID, tell(tx, site.TenantID, events.ActionSiteCreated, by.KeyID, site.ID,
				events.SiteCreated{SiteID: site.ID, Name: site.Name, Custom: site.Custom, CreatedBy: by.KeyID})
		})
	if err != nil {
		return store.Site{}, fmt.Errorf("cannot create the site: %w", err)
	}
	return made, nil
}

// UpdateSite is what sites.update takes. What is nil stays as it is.
type UpdateSite struct {
	TenantID, SiteID string
	Name             *string
	Custom           *bool
}

// UpdateSite changes a site of the tenant. A change to what it is already is no change and not told.
func (s *Service) UpdateSite(ctx context.Context, by Actor, r UpdateSite) (store.Site, error) {
	if r.Name == nil && r.Custom == nil {
		return store.Site{}, invalid("", "nothing to change: give name or custom")
	}
	if r.Name != nil {
		if err := CheckName(*r.Name); err != nil {
			return store.Site{}, err
		}
	}
	if r.Custom != nil {
		if err := s.checkCustom(r.TenantID, *r.Custom); err != nil {
			return store.Site{}, err
		}
	}
	var site store.Site
	err := s.Store.Write(ctx, func(tx *store.Tx) error {
		before, err := siteOf(tx, r.TenantID, r.SiteID)
		if err != nil {
			return err
		}
		site = before
		if r.Name != nil {
			site.Name = *r.Name
		}
		if r.Custom != nil {
			site.Custom = *r.Custom
		}
		if site == before {
			return nil
		}
		if site.Custom && !before.Custom {
			shared, err := tx.SiteIsShared(site)
			if err != nil {
				return err
			}
			if shared {
				return fault.New(fault.InvalidState, "archive those pools first",
					"site %q has pools of other tenants: it cannot become custom", site.ID)
			}
		}
		if err := tx.UpdateSite(site); err != nil {
			return err
		}
		return tell(tx, site.TenantID, events.ActionSiteUpdated, by.KeyID, site.ID,
			events.SiteUpdated{SiteID: site.ID, Name: site.Name, Custom: site.Custom, UpdatedBy: by.KeyID})
	})
	if err != nil {
		return store.Site{}, fmt.Errorf("cannot update the site: %w", err)
	}
	return site, nil
}

// checkCustom refuses a tenant's site that would be taken for the platform's: nodes there would be trusted as such.
func (s *Service) checkCustom(tenantID string, custom bool) error {
	if !custom && tenantID != s.RootTenant {
		return invalid("set custom to true",
			"only the root tenant has sites that are not custom: a site of tenant %q is its own", tenantID)
	}
	return nil
}

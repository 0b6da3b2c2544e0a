package store

import (
	"errors"
	"time"
)

// Site is a place with machines and a gateway.
type Site struct {
	ID string
	// TenantID is the owner.
	TenantID string
	Name     string
	// Custom says that a tenant brought the site: its machines are not the platform's.
	Custom    bool
	CreatedAt time.Time
}

const siteColumns = `id, tenant_id, name, custom, created_at`

func scanSite(s scanner) (v Site, err error) {
	err = s.Scan(&v.ID, &v.TenantID, &v.Name, &v.Custom, timeOf{&v.CreatedAt})
	return v, err
}

// InsertSite adds a site. CreatedAt is the transaction's time.
func (tx *Tx) InsertSite(s Site) error {
	return tx.insert("insert the site",
		`INSERT INTO sites (id, tenant_id, name, custom, created_at) VALUES (?, ?, ?, ?, ?)`,
		s.ID, s.TenantID, s.Name, s.Custom, millis(tx.now))
}

// UpdateSite replaces the owner, the name and the custom flag of a site.
func (tx *Tx) UpdateSite(s Site) error {
	return tx.update("update the site", `UPDATE sites SET tenant_id = ?, name = ?, custom = ? WHERE id = ?`,
		s.TenantID, s.Name, s.Custom, s.ID)
}

// Site returns a site or [ErrNotFound].
func (tx *Tx) Site(id string) (Site, error) {
	return one(tx, scanSite, `SELECT `+siteColumns+` FROM sites WHERE id = ?`, id)
}

// SiteOfTenant is [Tx.Site] for a caller that acts for a tenant: to it the sites of others do not exist.
func (tx *Tx) SiteOfTenant(tenantID, id string) (Site, error) {
	site, err := tx.Site(id)
	if err == nil && site.TenantID != tenantID {
		return Site{}, ErrNotFound
	}
	return site, err
}

// SiteIsShared reports whether a pool in use at the site is of another tenant than the site.
func (tx *Tx) SiteIsShared(s Site) (bool, error) {
	_, err := one(tx, scalar[string], `SELECT id FROM pools WHERE site_id = ? AND tenant_id <> ? AND archived_at IS NULL LIMIT 1`,
		s.ID, s.TenantID)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Sites lists a tenant's sites, oldest first, from the one after the id on, at most limit.
func (tx *Tx) Sites(tenantID, after string, limit int) ([]Site, error) {
	return many(tx, scanSite, `SELECT `+siteColumns+` FROM sites WHERE tenant_id = ? AND id > ? ORDER BY id LIMIT ?`,
		tenantID, after, limit)
}

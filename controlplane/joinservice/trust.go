package joinservice

import (
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
)

// trustOf says who controls a machine that joins. The site decides; a hosted grant only lowers the platform's trust, and
// does not where the platform itself operates the cluster. The machine's claims have no say.
func trustOf(g *Grant, at place, rootTenant string) store.Trust {
	if at.site.Custom && at.site.TenantID != rootTenant {
		return store.TrustTenantOwned
	}
	if g.Hosted && (at.pool == nil || !at.pool.PlatformOperated(at.site, rootTenant)) {
		return store.TrustTenantControlled
	}
	return store.TrustPlatform
}

// certRole is the role in a node's certificate: a machine that its tenant controls never gets the platform's secrets.
func certRole(n store.Node) string {
	if n.Role == store.RoleNode && n.Trust == store.TrustTenantControlled {
		return pki.RoleNodeTenant
	}
	return n.Role
}

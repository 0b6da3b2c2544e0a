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
	if g.Hosted && !platformOperated(at, rootTenant) {
		return store.TrustTenantControlled
	}
	return store.TrustPlatform
}

// platformOperated reports whether the pool's policy says that the platform operates the cluster, and whether the pool is
// the platform's, so that its policy may say so: a tenant must not vouch for a cluster of its own.
func platformOperated(at place, rootTenant string) bool {
	return at.pool != nil && at.pool.Policy.Kubernetes.PlatformOperated && at.pool.TenantID == at.site.TenantID &&
		!at.site.Custom && at.pool.TenantID == rootTenant
}

// certRole is the role in a node's certificate: a machine that its tenant controls never gets the platform's secrets.
func certRole(n store.Node) string {
	if n.Role == store.RoleNode && n.Trust == store.TrustTenantControlled {
		return pki.RoleNodeTenant
	}
	return n.Role
}

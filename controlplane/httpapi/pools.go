package httpapi

import (
	"context"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tenancy"
)

// Attestors are the names that a pool's policy may list.
var Attestors = tenancy.Attestors

// PoolPolicy is what a pool's owner decides. It is given as a whole: what is left out is the default.
type PoolPolicy struct {
	// JoinAttestors lists the attestors that admit machines into the pool. Without it every configured one does, with an
	// empty list none.
	JoinAttestors []string          `json:"joinAttestors,omitempty"`
	Kubernetes    *KubernetesPolicy `json:"kubernetes,omitempty"`
}

// KubernetesPolicy is about pools whose nodes are a Kubernetes cluster's.
type KubernetesPolicy struct {
	// PlatformOperated says that the platform, and nobody else, has root on the cluster's machines. It changes nothing in
	// a pool that the root tenant does not own, or at a custom site.
	PlatformOperated bool `json:"platformOperated,omitempty"`
}

// CreatePool is the request of pools.create. Its answer is a [Pool].
type CreatePool struct {
	TenantID string `json:"tenantId"`
	// SiteID is a site of the tenant, or one of the root tenant that is not custom.
	SiteID string `json:"siteId"`
	Name   string `json:"name"`
	// Agent is what the pool's machines run: bcd, or none for machines that are reached through a provider's API.
	Agent          *string     `json:"agent,omitempty"`
	Acceptance     bool        `json:"acceptance,omitempty"`
	Policy         *PoolPolicy `json:"policy,omitempty"`
	IdempotencyKey string      `json:"idempotencyKey"`
}

// UpdatePool is the request of pools.update. What is not given stays as it is; a policy is replaced as a whole. Its answer
// is a [Pool].
type UpdatePool struct {
	TenantID   string      `json:"tenantId"`
	PoolID     string      `json:"poolId"`
	Name       *string     `json:"name,omitempty"`
	Agent      *string     `json:"agent,omitempty"`
	Acceptance *bool       `json:"acceptance,omitempty"`
	Policy     *PoolPolicy `json:"policy,omitempty"`
}

// PoolRef is the request of pools.archive. Its answer is a [Pool].
type PoolRef struct {
	TenantID string `json:"tenantId"`
	PoolID   string `json:"poolId"`
}

// ListPools is the request of pools.list.
type ListPools struct {
	TenantID        string `json:"tenantId"`
	IncludeArchived bool   `json:"includeArchived,omitempty"`
	Limit           *int   `json:"limit,omitempty"`
	Cursor          string `json:"cursor,omitempty"`
}

// Pool is a set of machines at one site.
type Pool struct {
	ID     string `json:"id"`
	Name   string `json:"name"`
	SiteID string `json:"siteId"`
	// Agent is what its machines run: bcd or none.
	Agent      string      `json:"agent"`
	Acceptance bool        `json:"acceptance"`
	Policy     PolicyInUse `json:"policy"`
	CreatedAt  time.Time   `json:"createdAt"`
	// ArchivedAt is null for a pool in use.
	ArchivedAt *time.Time `json:"archivedAt"`
}

// PolicyInUse is a pool's policy, and what it comes to.
type PolicyInUse struct {
	// JoinAttestors is null where every configured attestor admits machines.
	JoinAttestors []string        `json:"joinAttestors"`
	Kubernetes    KubernetesInUse `json:"kubernetes"`
}

// KubernetesInUse is what the policy says of a Kubernetes cluster, and what it comes to.
type KubernetesInUse struct {
	PlatformOperated bool `json:"platformOperated"`
	// InEffect says whether platformOperated changes anything: it does in a pool of the root tenant, at a site of its own
	// that is not custom, and in no other.
	InEffect bool `json:"inEffect"`
}

func (a *API) createPool(ctx context.Context, caller Caller, in CreatePool) (Pool, error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionManagePools, resourceTenant+in.TenantID); err != nil {
		return Pool{}, err
	}
	if err := checkID("siteId", store.PrefixSite, in.SiteID); err != nil {
		return Pool{}, err
	}
	request := tenancy.CreatePool{
		TenantID: in.TenantID, SiteID: in.SiteID, Name: in.Name, Agent: store.AgentBCD, Acceptance: in.Acceptance,
		IdempotencyKey: in.IdempotencyKey,
	}
	if in.Agent != nil {
		request.Agent = store.Agent(*in.Agent)
	}
	if in.Policy != nil {
		request.Policy = in.Policy.given()
	}
	made, err := a.tenancy.CreatePool(ctx, caller.actor(), request)
	return poolOf(made), err
}

func (a *API) updatePool(ctx context.Context, caller Caller, in UpdatePool) (Pool, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionManagePools); err != nil {
		return Pool{}, err
	}
	request := tenancy.UpdatePool{
		TenantID: in.TenantID, PoolID: in.PoolID, Name: in.Name, Agent: (*store.Agent)(in.Agent), Acceptance: in.Acceptance,
	}
	if in.Policy != nil {
		policy := in.Policy.given()
		request.Policy = &policy
	}
	pool, err := a.tenancy.UpdatePool(ctx, caller.actor(), request)
	return poolOf(pool), err
}

func (a *API) archivePool(ctx context.Context, caller Caller, in PoolRef) (Pool, error) {
	if err := a.authorizePool(ctx, caller, in.TenantID, in.PoolID, actionManagePools); err != nil {
		return Pool{}, err
	}
	pool, err := a.tenancy.ArchivePool(ctx, caller.actor(), in.TenantID, in.PoolID)
	return poolOf(pool), err
}

func (a *API) listPools(ctx context.Context, caller Caller, in ListPools) (List[Pool], error) {
	if err := a.authorize(ctx, caller, in.TenantID, actionReadPools, resourceTenant+in.TenantID); err != nil {
		return List[Pool]{}, err
	}
	limit, err := pageOf(in.Limit, in.Cursor, store.PrefixPool)
	if err != nil {
		return List[Pool]{}, err
	}
	pools, err := a.tenancy.Pools(ctx, in.TenantID, in.IncludeArchived, in.Cursor, limit+1)
	return listOf(pools, limit, func(p tenancy.Pool) string { return p.ID }, poolOf), err
}

func (p PoolPolicy) given() store.PoolPolicy {
	policy := store.PoolPolicy{JoinAttestors: p.JoinAttestors}
	if p.Kubernetes != nil {
		policy.Kubernetes.PlatformOperated = p.Kubernetes.PlatformOperated
	}
	return policy
}

func poolOf(p tenancy.Pool) Pool {
	return Pool{
		ID: p.ID, Name: p.Name, SiteID: p.SiteID, Agent: string(p.Agent), Acceptance: p.Acceptance,
		Policy: PolicyInUse{
			JoinAttestors: p.Policy.JoinAttestors,
			Kubernetes:    KubernetesInUse{PlatformOperated: p.Policy.Kubernetes.PlatformOperated, InEffect: p.PlatformOperated},
		},
		CreatedAt: p.CreatedAt, ArchivedAt: timeOrNull(p.ArchivedAt),
	}
}

package tenancy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

// Attestors are the names that a pool's policy may list, whether the server has them configured or not.
var Attestors = []string{"discovery", "join-token", "tpm", "x509pop"}

// CreatePool is what pools.create takes.
type CreatePool struct {
	TenantID string `json:"-"`
	// SiteID is a site of the tenant, or one of the root tenant that is not custom.
	SiteID         string           `json:"siteId"`
	Name           string           `json:"name"`
	Agent          store.Agent      `json:"agent"`
	Acceptance     bool             `json:"acceptance"`
	Policy         store.PoolPolicy `json:"policy"`
	IdempotencyKey string           `json:"-"`
}

// CreatePool makes a pool of the tenant. A repeat with the same idempotency key returns the first one's record, as it is
// now.
func (s *Service) CreatePool(ctx context.Context, by Actor, r CreatePool) (Pool, error) {
	if err := cmp.Or(CheckName(r.Name), checkAgent(r.Agent), checkPolicy(r.Policy)); err != nil {
		return Pool{}, err
	}
	made, err := once(ctx, s.Store, scope{by.KeyID, r.TenantID, methodCreatePool, r.IdempotencyKey}, r,
		s.pool, func(tx *store.Tx) (Pool, string, error) {
			site, err := s.siteForPool(tx, r.TenantID, r.SiteID)
			if err != nil {
				return Pool{}, "", err
			}
			p := store.Pool{
				ID: tx.NewID(store.PrefixPool), TenantID: r.TenantID, SiteID: site.ID, Name: r.Name, Agent: r.Agent,
				Acceptance: r.Acceptance, Policy: r.Policy, CreatedAt: tx.Now(),
			}
			if err := tx.InsertPool(p); err != nil {
				return Pool{}, "", err
			}
			return s.withSite(p, site), p.ID, tell(tx, p.TenantID, events.ActionPoolCreated, by.KeyID, p.ID,
				events.PoolCreated{Pool: eventOf(p), CreatedBy: by.KeyID})
		})
	if err != nil {
		return Pool{}, fmt.Errorf("cannot create the pool: %w", err)
	}
	return made, nil
}

// UpdatePool is what pools.update takes. What is nil stays as it is; a policy is replaced as a whole.
type UpdatePool struct {
	TenantID, PoolID string
	Name             *string
	Agent            *store.Agent
	Acceptance       *bool
	Policy           *store.PoolPolicy
}

func (r UpdatePool) check() error {
	if r.Name == nil && r.Agent == nil && r.Acceptance == nil && r.Policy == nil {
		return invalid("", "nothing to change: give name, agent, acceptance or policy")
	}
	var err error
	if r.Name != nil {
		err = CheckName(*r.Name)
	}
	if err == nil && r.Agent != nil {
		err = checkAgent(*r.Agent)
	}
	if err == nil && r.Policy != nil {
		err = checkPolicy(*r.Policy)
	}
	return err
}

// UpdatePool changes a pool of the tenant that is in use. A change to what it is already is no change and not told.
func (s *Service) UpdatePool(ctx context.Context, by Actor, r UpdatePool) (Pool, error) {
	if err := r.check(); err != nil {
		return Pool{}, err
	}
	return s.change(ctx, r.TenantID, r.PoolID, "update", func(tx *store.Tx, p store.Pool) error {
		if !p.ArchivedAt.IsZero() {
			return fault.New(fault.InvalidState, "create another pool", "pool %q is archived", p.ID)
		}
		before := p
		if r.Name != nil {
			p.Name = *r.Name
		}
		if r.Agent != nil {
			p.Agent = *r.Agent
		}
		if r.Acceptance != nil {
			p.Acceptance = *r.Acceptance
		}
		if r.Policy != nil {
			p.Policy = *r.Policy
		}
		if reflect.DeepEqual(p, before) {
			return nil
		}
		if err := tx.UpdatePool(p); err != nil {
			return err
		}
		return tell(tx, p.TenantID, events.ActionPoolUpdated, by.KeyID, p.ID,
			events.PoolUpdated{Pool: eventOf(p), UpdatedBy: by.KeyID})
	})
}

// ArchivePool ends a pool of the tenant: it admits no machine any more. Its nodes stay. Archiving twice is not an error and
// is told once.
func (s *Service) ArchivePool(ctx context.Context, by Actor, tenantID, poolID string) (Pool, error) {
	return s.change(ctx, tenantID, poolID, "archive", func(tx *store.Tx, p store.Pool) error {
		if !p.ArchivedAt.IsZero() {
			return nil
		}
		p.ArchivedAt = tx.Now()
		if err := tx.UpdatePool(p); err != nil {
			return err
		}
		return tell(tx, p.TenantID, events.ActionPoolArchived, by.KeyID, p.ID,
			events.PoolArchived{PoolID: p.ID, ArchivedBy: by.KeyID})
	})
}

// change runs fn on a pool of the tenant in one transaction, and returns the pool as it is afterwards.
func (s *Service) change(
	ctx context.Context, tenantID, poolID, what string, fn func(*store.Tx, store.Pool) error,
) (Pool, error) {
	var after Pool
	err := s.Store.Write(ctx, func(tx *store.Tx) error {
		p, err := tx.PoolOfTenant(tenantID, poolID)
		if errors.Is(err, store.ErrNotFound) {
			return notFound("pool", poolID)
		}
		if err != nil {
			return err
		}
		if err := fn(tx, p); err != nil {
			return err
		}
		after, err = s.pool(tx, poolID)
		return err
	})
	if err != nil {
		return Pool{}, fmt.Errorf("cannot %s the pool: %w", what, err)
	}
	return after, nil
}

// Pool is a pool, and what its policy comes to at its site.
type Pool struct {
	store.Pool
	// PlatformOperated says whether the policy's platformOperated is in effect: it is said of a pool that the platform
	// owns, at a site of the platform. Any other pool may say it too, and it changes nothing.
	PlatformOperated bool
}

// Pools lists a tenant's pools as [store.Tx.Pools] does.
func (s *Service) Pools(ctx context.Context, tenantID string, archived bool, after string, limit int) ([]Pool, error) {
	var list []Pool
	err := s.Store.Read(ctx, func(tx *store.Tx) error {
		pools, err := tx.Pools(tenantID, archived, after, limit)
		if err != nil {
			return err
		}
		list = make([]Pool, 0, len(pools))
		for _, p := range pools {
			full, err := s.full(tx, p)
			if err != nil {
				return err
			}
			list = append(list, full)
		}
		return nil
	})
	return list, err
}

func (s *Service) pool(tx *store.Tx, id string) (Pool, error) {
	p, err := tx.Pool(id)
	if err != nil {
		return Pool{}, err
	}
	return s.full(tx, p)
}

func (s *Service) full(tx *store.Tx, p store.Pool) (Pool, error) {
	if !p.Policy.Kubernetes.PlatformOperated {
		return Pool{Pool: p}, nil // whatever its site
	}
	site, err := tx.Site(p.SiteID)
	return s.withSite(p, site), err
}

func (s *Service) withSite(p store.Pool, site store.Site) Pool {
	return Pool{Pool: p, PlatformOperated: p.PlatformOperated(site, s.RootTenant)}
}

// siteForPool returns the site if a pool of the tenant may stand at it. To others it does not exist.
func (s *Service) siteForPool(tx *store.Tx, tenantID, siteID string) (store.Site, error) {
	site, err := tx.Site(siteID)
	if err == nil && site.TenantID == s.RootTenant && !site.Custom {
		return site, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return store.Site{}, err
	}
	return siteOf(tx, tenantID, siteID)
}

func checkAgent(a store.Agent) error {
	if a != store.AgentBCD && a != store.AgentNone {
		return invalid("", "agent must be %q or %q", store.AgentBCD, store.AgentNone)
	}
	return nil
}

func checkPolicy(p store.PoolPolicy) error {
	for i, name := range p.JoinAttestors {
		if !slices.Contains(Attestors, name) {
			return invalid("", "policy.joinAttestors[%d] is %q, which is none of %q", i, name, Attestors)
		}
		if slices.Contains(p.JoinAttestors[:i], name) {
			return invalid("", "policy.joinAttestors names %q twice", name)
		}
	}
	return nil
}

func eventOf(p store.Pool) events.Pool {
	return events.Pool{
		PoolID: p.ID, SiteID: p.SiteID, Name: p.Name, Agent: string(p.Agent), Acceptance: p.Acceptance,
		JoinAttestors: p.Policy.JoinAttestors, PlatformOperated: p.Policy.Kubernetes.PlatformOperated,
	}
}

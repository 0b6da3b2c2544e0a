package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// IssueRequest asks for a token of a role that joinTokens.create does not make.
type IssueRequest struct {
	// Role is [store.TokenSite], [store.TokenProvisioned] or [store.TokenDiscovery].
	Role store.TokenRole
	// SiteID is the site of a site token, and of a discovery token without a pool. For the others it is the pool's.
	SiteID string
	// PoolID is the pool of a provisioned or discovery token. A discovery token may leave it to whoever approves the machine;
	// then it is the tenant's that owns the site.
	PoolID string
	// TTL is whole seconds between [MinTTL] and [MaxTTL].
	TTL time.Duration
	// MaxUses is 1 to [MaxSiteUses] for a site token and 1 for the others; 0 is 1.
	MaxUses int64
	// MAC is the one machine's that a discovery token admits. Required there, empty elsewhere.
	MAC string
	// NodeID is the node that the machine becomes again, for a provisioned token. It may be empty.
	NodeID string
	// WorkflowID is the workflow that a discovery token is for: who decides about the machine sees it. It may be empty.
	WorkflowID string
	// IssuedBy is the module or identity that asks.
	IssuedBy string
}

func (r IssueRequest) check() error {
	if r.TTL < MinTTL || r.TTL > MaxTTL || r.TTL%time.Second != 0 {
		return invalid("the lifetime must be whole seconds from %d to %d", MinTTL/time.Second, MaxTTL/time.Second)
	}
	most := int64(1)
	switch r.Role {
	case store.TokenSite:
		most = MaxSiteUses
		if r.PoolID != "" || r.SiteID == "" {
			return invalid("a site token names a site and no pool")
		}
	case store.TokenProvisioned:
		if r.PoolID == "" || r.SiteID != "" {
			return invalid("a provisioned token names a pool and no site")
		}
	case store.TokenDiscovery:
		if (r.PoolID == "") == (r.SiteID == "") {
			return invalid("a discovery token names either a pool or a site")
		}
	case store.TokenNode:
		return invalid("a node token is made by joinTokens.create")
	default:
		return invalid("%q is not a role of join tokens", r.Role)
	}
	if r.MaxUses < 0 || r.MaxUses > most {
		return invalid("a %s token has 1 to %d uses", r.Role, most)
	}
	if (r.MAC != "") != (r.Role == store.TokenDiscovery) {
		return invalid("a discovery token, and no other, is for one MAC")
	}
	if r.NodeID != "" && r.Role != store.TokenProvisioned {
		return invalid("only a provisioned token names a node")
	}
	if r.WorkflowID != "" && r.Role != store.TokenDiscovery {
		return invalid("only a discovery token names a workflow")
	}
	if len(r.WorkflowID) > MaxWorkflowID || !oneline.Printable(r.WorkflowID) {
		return invalid("a workflow's id is printable and has at most %d bytes", MaxWorkflowID)
	}
	if r.MAC != "" {
		if err := hwclaims.ValidateExpect(hwclaims.Expect{MAC: r.MAC}); err != nil {
			return invalid("%w", err)
		}
	}
	return nil
}

// Issue makes a site, provisioned or discovery token.
func (s *Service) Issue(ctx context.Context, r IssueRequest) (store.Token, bearer.Token, error) {
	if err := r.check(); err != nil {
		return store.Token{}, bearer.Token{}, err
	}
	secret := bearer.NewSecret()
	var made store.Token
	err := s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		made, err = issue(tx, secret, r)
		return err
	})
	if err != nil {
		return store.Token{}, bearer.Token{}, fmt.Errorf("cannot issue a join token: %w", err)
	}
	text, err := secret.Token(made.ID)
	return made, text, err
}

// issue makes the token of a request that was checked.
func issue(tx *store.Tx, secret bearer.Secret, r IssueRequest) (store.Token, error) {
	made := store.Token{
		ID: tx.NewID(store.PrefixToken), Role: r.Role, SecretSHA256: secret.Digest(), MaxUses: max(1, r.MaxUses),
		NodeID: r.NodeID, WorkflowID: r.WorkflowID, CreatedBy: r.IssuedBy, ExpiresAt: tx.Now().Add(r.TTL),
		// The machine that a deploy installed is the node that it was before.
		AllowReclaim: r.NodeID != "",
	}
	if r.MAC != "" {
		made.Expect = &hwclaims.Expect{MAC: r.MAC}
	}
	if err := place(tx, &made, r); err != nil {
		return store.Token{}, err
	}
	if err := bind(tx, &made); err != nil {
		return store.Token{}, err
	}
	return made, insert(tx, &made)
}

// bind binds the token of a node whose hardware is no identity to what it has: a person admitted the ramdisk, and without a
// binding the system that it installed would be refused as placeholder hardware.
func bind(tx *store.Tx, t *store.Token) error {
	if t.NodeID == "" {
		return nil
	}
	node, err := tx.Node(t.NodeID)
	if errors.Is(err, store.ErrNotFound) {
		return nil // the join will say so
	}
	if macs := hwclaims.Assess(node.Claims).Survivors.MACs; err == nil && !node.HardwareKeyTrusted && len(macs) > 0 {
		t.Expect = &hwclaims.Expect{MAC: macs[0]}
	}
	return err
}

// place gives the token its tenant, site and pool.
func place(tx *store.Tx, t *store.Token, r IssueRequest) error {
	if r.PoolID == "" {
		site, err := tx.Site(r.SiteID)
		if errors.Is(err, store.ErrNotFound) {
			return fault.New(fault.NotFound, "", "site %q does not exist", r.SiteID)
		}
		t.TenantID, t.SiteID = site.TenantID, site.ID
		return err
	}
	pool, err := tx.Pool(r.PoolID)
	if errors.Is(err, store.ErrNotFound) {
		return fault.New(fault.NotFound, "", "pool %q does not exist", r.PoolID)
	}
	if err != nil {
		return err
	}
	t.TenantID, t.PoolID, t.SiteID = pool.TenantID, pool.ID, pool.SiteID
	return usable(pool)
}

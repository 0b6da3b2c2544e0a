package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/internal/fault"
)

func poolsCommand(env Env) *cobra.Command {
	return group("pools", "Create, change, archive and list pools",
		createPoolCommand(env), updatePoolCommand(env), archivePoolCommand(env), listPoolsCommand(env))
}

// poolFlags are the flags that say what a pool is.
type poolFlags struct {
	name, agent      string
	acceptance       bool
	attestors        []string
	any              bool
	platformOperated bool
}

// addTo adds the flags with the values that a pool has where they are not given: an agent, and in words the attestors. A
// change has none.
func (p *poolFlags) addTo(c *cobra.Command, agent, attestors string) {
	flags := c.Flags()
	flags.StringVar(&p.agent, "agent", agent, `what its machines run: "bcd", or "none" for machines that are reached through a provider's API`)
	flags.BoolVar(&p.acceptance, "acceptance", false, "nodes pass acceptance checks before they are adopted")
	flags.StringSliceVar(&p.attestors, "join-attestors", nil,
		"admit machines only by these: "+strings.Join(httpapi.Attestors, ", ")+attestors)
	flags.BoolVar(&p.platformOperated, "platform-operated", false, "the platform operates the pool's Kubernetes cluster; in effect in a pool of the root tenant only")
	complete(c, "agent", "bcd", "none")
	complete(c, "join-attestors", httpapi.Attestors...)
}

func createPoolCommand(env Env) *cobra.Command {
	var (
		to     target
		key    keyFlag
		pool   poolFlags
		format output
	)
	c := &cobra.Command{
		Use:     "create --name NAME",
		Short:   "Create a pool",
		Example: `  better-compute pools create --name metal --site $SITE --join-attestors join-token,x509pop`,
		Args:    cobra.NoArgs,
	}
	to.addSiteTo(c)
	addName(c, &pool.name)
	pool.addTo(c, "bcd", " (default every one that the server has configured)")
	key.addTo(c, "pool")
	format.addTo(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "name", "agent", "join-attestors", "key"); err != nil {
			return err
		}
		api, err := to.connectSite(c, env)
		if err != nil {
			return err
		}
		create := httpapi.CreatePool{
			TenantID: to.tenant, SiteID: to.site, Name: pool.name, Agent: &pool.agent, Acceptance: pool.acceptance,
			Policy: policyOf(pool.attestors, pool.platformOperated),
		}
		if create.IdempotencyKey, err = key.text(); err != nil {
			return err
		}
		var made httpapi.Pool
		if err := api.Call(c.Context(), "pools.create", create, &made); err != nil {
			return err
		}
		return printMade(env, format, "pool", made.ID, made.Name, made)
	}
	return c
}

func policyOf(attestors []string, platformOperated bool) *httpapi.PoolPolicy {
	policy := &httpapi.PoolPolicy{JoinAttestors: attestors}
	if platformOperated {
		policy.Kubernetes = &httpapi.KubernetesPolicy{PlatformOperated: true}
	}
	return policy
}

func updatePoolCommand(env Env) *cobra.Command {
	var (
		to     target
		pool   poolFlags
		format output
	)
	c := &cobra.Command{
		Use:   "update POOL",
		Short: "Change a pool; what is not given stays as it is",
		Example: `  better-compute pools update $POOL --join-attestors tpm
  better-compute pools update $POOL --any-attestor --acceptance=false`,
		Args: cobra.ExactArgs(1),
	}
	to.addTo(c)
	c.Flags().StringVar(&pool.name, "name", "", "new name")
	pool.addTo(c, "", "")
	c.Flags().BoolVar(&pool.any, "any-attestor", false, "admit machines by every attestor that the server has configured")
	c.MarkFlagsMutuallyExclusive("any-attestor", "join-attestors")
	format.addTo(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkID(c, "pool", "pool_", args[0]); err != nil {
			return err
		}
		if err := notEmpty(c, "name", "agent", "join-attestors"); err != nil {
			return err
		}
		changesPolicy := false
		for _, flag := range []string{"join-attestors", "any-attestor", "platform-operated"} {
			changesPolicy = changesPolicy || c.Flags().Changed(flag)
		}
		update := httpapi.UpdatePool{
			PoolID: args[0], Name: ifGiven(c, "name", &pool.name), Agent: ifGiven(c, "agent", &pool.agent),
			Acceptance: ifGiven(c, "acceptance", &pool.acceptance),
		}
		if update.Name == nil && update.Agent == nil && update.Acceptance == nil && !changesPolicy {
			return usage(c, "nothing to change: no flag says what")
		}
		api, err := to.connect(c, env)
		if err != nil {
			return err
		}
		update.TenantID = to.tenant
		if changesPolicy {
			if update.Policy, err = pool.policy(c, api, update); err != nil {
				return err
			}
		}
		var changed httpapi.Pool
		if err := api.Call(c.Context(), "pools.update", update, &changed); err != nil {
			return err
		}
		return printDone(env, format, changed.ID, "updated", changed)
	}
	return c
}

// policy returns the pool's policy with what the flags change of it: the API takes it as a whole, and to leave out what the
// flags do not name would end it.
func (p *poolFlags) policy(c *cobra.Command, api *client.Client, update httpapi.UpdatePool) (*httpapi.PoolPolicy, error) {
	now, err := findPool(c.Context(), api, update.TenantID, update.PoolID)
	if err != nil {
		return nil, err
	}
	attestors, operated := now.Policy.JoinAttestors, now.Policy.Kubernetes.PlatformOperated
	switch {
	case c.Flags().Changed("join-attestors"):
		attestors = p.attestors
	case p.any:
		attestors = nil
	}
	if c.Flags().Changed("platform-operated") {
		operated = p.platformOperated
	}
	return policyOf(attestors, operated), nil
}

// findPool looks for a pool in the tenant's list.
func findPool(ctx context.Context, api *client.Client, tenant, id string) (httpapi.Pool, error) {
	for cursor := ""; ; {
		var page httpapi.List[httpapi.Pool]
		in := httpapi.ListPools{TenantID: tenant, IncludeArchived: true, Limit: pageSize, Cursor: cursor}
		if err := api.Call(ctx, "pools.list", in, &page); err != nil {
			return httpapi.Pool{}, fmt.Errorf("cannot find the pool: %w", err)
		}
		for _, p := range page.Items {
			if p.ID == id {
				return p, nil
			}
		}
		if cursor = page.NextCursor; cursor == "" {
			return httpapi.Pool{}, fault.New(fault.NotFound, "", "pool %q does not exist", id)
		}
	}
}

func archivePoolCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "archive POOL",
		Short: "End a pool: no machine joins it any more",
		Long: `End a pool: no machine joins it any more, and no token is made for it. Its nodes stay as they are. There is no way back.

Archiving twice is not an error.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkID(c, "pool", "pool_", args[0]); err != nil {
				return err
			}
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			var pool httpapi.Pool
			if err := api.Call(c.Context(), "pools.archive", httpapi.PoolRef{TenantID: to.tenant, PoolID: args[0]}, &pool); err != nil {
				return err
			}
			return printDone(env, format, pool.ID, "archived", pool)
		},
	}
	to.addTo(c)
	format.addTo(c.Flags())
	return c
}

func listPoolsCommand(env Env) *cobra.Command {
	var (
		to     target
		all    bool
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's pools",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			pools, err := every(c.Context(), api, "pools.list", func(cursor string) any {
				return httpapi.ListPools{TenantID: to.tenant, IncludeArchived: all, Limit: pageSize, Cursor: cursor}
			}, []httpapi.Pool{})
			if err != nil {
				return fmt.Errorf("cannot list the pools: %w", err)
			}
			header := []string{"ID", "NAME", "SITE", "AGENT", "ACCEPTANCE", "ATTESTORS", "PLATFORM OPERATED", "STATE"}
			return printList(env, format, pools, header, func(p httpapi.Pool) []string {
				return []string{p.ID, p.Name, p.SiteID, p.Agent, yes(p.Acceptance), attestorsOf(p), operatedBy(p), stateOf(p)}
			})
		},
	}
	to.addTo(c)
	c.Flags().BoolVar(&all, "all", false, "also archived pools")
	format.addTo(c.Flags())
	return c
}

// attestorsOf says which attestors admit machines into a pool.
func attestorsOf(p httpapi.Pool) string {
	switch names := p.Policy.JoinAttestors; {
	case names == nil:
		return "any"
	case len(names) == 0:
		return "none"
	default:
		return strings.Join(names, ",")
	}
}

// operatedBy says whether the platform operates a pool's cluster.
func operatedBy(p httpapi.Pool) string {
	if k := p.Policy.Kubernetes; k.PlatformOperated && !k.InEffect {
		return "said, no effect"
	}
	return yes(p.Policy.Kubernetes.PlatformOperated)
}

func stateOf(p httpapi.Pool) string {
	if p.ArchivedAt != nil {
		return "archived"
	}
	return "in use"
}

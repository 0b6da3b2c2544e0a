package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func siteTokensCommand(env Env) *cobra.Command {
	return group("site-tokens", "Create, list and revoke the join tokens of site agents",
		createSiteTokenCommand(env), listSiteTokensCommand(env), revokeSiteTokenCommand(env))
}

func createSiteTokenCommand(env Env) *cobra.Command {
	var (
		to     target
		life   = ttl(defaultTTL)
		uses   int64
		key    keyFlag
		out    string
		format output
	)
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a join token for agents of a site",
		Long: `Create a join token for agents of a site ("bcd join --role site").

The token is shown once. With --out it goes to a new file that only you can read and is not printed.

A repeated --key returns the first token's record, without the token. Without --key each call makes a new token.`,
		Example: `  better-compute site-tokens create --site $SITE --ttl 1h --key eu-agents --out ./site-token`,
		Args:    cobra.NoArgs,
	}
	to.addSiteTo(c)
	flags := c.Flags()
	flags.Var(&life, "ttl", "how long agents may join with it: 1m to 24h, in whole seconds")
	flags.Int64Var(&uses, "max-uses", 1, "how many agents may join with it, 1 to 16")
	key.addTo(c, "token")
	flags.StringVar(&out, "out", "", "write the token to this new file (mode 0600) instead of printing it")
	format.addTo(flags)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "key", "out"); err != nil {
			return err
		}
		api, err := to.connectSite(c, env)
		if err != nil {
			return err
		}
		create := httpapi.CreateSiteToken{
			TenantID: to.tenant, SiteID: to.site, TTLSeconds: int64(time.Duration(life) / time.Second), MaxUses: &uses,
		}
		if create.IdempotencyKey, err = key.text(); err != nil {
			return err
		}
		return secretThing{
			thing: "site token", short: "token", out: out, key: create.IdempotencyKey,
			create: func(c *cobra.Command) (madeSecret, error) {
				var made httpapi.CreatedSiteToken
				err := api.Call(c.Context(), "siteTokens.create", create, &made)
				return madeSecret{
					id: made.ID, secret: made.Token, file: made.Token + "\n", about: grant("agent", made.UsesLeft, made.ExpiresAt),
					record: func(secret string) any { made.Token = secret; return made },
				}, err
			},
			revoke: func(id string) string {
				return fmt.Sprintf("%s site-tokens revoke %s --tenant %s --site %s", program, id, to.tenant, to.site)
			},
		}.run(c, env, format)
	}
	return c
}

func listSiteTokensCommand(env Env) *cobra.Command {
	var (
		to     target
		all    bool
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a site's tokens for its agents; never their secrets",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connectSite(c, env)
			if err != nil {
				return err
			}
			tokens, err := every(c.Context(), api, "siteTokens.list", func(cursor string) any {
				return httpapi.ListSiteTokens{TenantID: to.tenant, SiteID: to.site, IncludeInactive: all, Limit: pageSize, Cursor: cursor}
			}, []httpapi.ListedSiteToken{})
			if err != nil {
				return err
			}
			return printList(env, format, tokens, []string{"ID", "STATE", "USES LEFT", "EXPIRES"}, func(t httpapi.ListedSiteToken) []string {
				return []string{t.ID, t.State, fmt.Sprint(t.UsesLeft), at(t.ExpiresAt)}
			})
		},
	}
	to.addSiteTo(c)
	c.Flags().BoolVar(&all, "all", false, "also revoked, expired and used-up tokens")
	format.addTo(c.Flags())
	return c
}

func revokeSiteTokenCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "revoke ID",
		Short: "End a site token at once",
		Long: `End a site token at once. Revoking twice is not an error. Agents that joined with it stay.

ID is the token's id, jt_…, as "site-tokens list" shows it; never the token itself.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if err := checkTokenID(c, args[0]); err != nil {
				return err
			}
			api, err := to.connectSite(c, env)
			if err != nil {
				return err
			}
			var revoked httpapi.ListedSiteToken
			in := httpapi.RevokeSiteToken{TenantID: to.tenant, SiteID: to.site, TokenID: args[0]}
			if err := api.Call(c.Context(), "siteTokens.revoke", in, &revoked); err != nil {
				return err
			}
			return printDone(env, format, revoked.ID, "revoked", revoked)
		},
	}
	to.addSiteTo(c)
	format.addTo(c.Flags())
	return c
}

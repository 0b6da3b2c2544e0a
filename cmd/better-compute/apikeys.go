package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func apiKeysCommand(env Env) *cobra.Command {
	return group("api-keys", "Create, list and revoke the API keys of this command line and of scripts",
		createAPIKeyCommand(env), listAPIKeysCommand(env), revokeAPIKeyCommand(env))
}

// keyLife is the --ttl flag of an API key.
type keyLife time.Duration

func (l *keyLife) String() string {
	if *l == 0 {
		return ""
	}
	return time.Duration(*l).String()
}
func (l *keyLife) Type() string { return "duration" }
func (l *keyLife) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return errors.New("not a duration such as 90m or 720h")
	case d%time.Second != 0 || d < time.Minute:
		return errors.New("must be whole seconds, at least 1m")
	}
	*l = keyLife(d)
	return nil
}

func createAPIKeyCommand(env Env) *cobra.Command {
	var (
		to     target
		life   keyLife
		key    keyFlag
		out    string
		format output
		create httpapi.CreateAPIKey
	)
	c := &cobra.Command{
		Use:   "create --name NAME --action ACTION",
		Short: "Create an API key",
		Long: `Create an API key, which acts for one tenant and may do what its actions say.

The key is shown once. With --out it goes, with the server's address, to a new file that only you can read: a context, for
--context or BETTER_COMPUTE_CONTEXT. A key gives only actions that it has itself. With a key of the root tenant --tenant may
be any tenant.

A repeated --key returns the first record, without the API key.`,
		Example: `  better-compute api-keys create --name ci --action compute:join-tokens:create --ttl 720h --out ci.toml
  better-compute api-keys create --tenant $TENANT --name admin --action 'compute:*' --out tenant.toml`,
		Args: cobra.NoArgs,
	}
	to.addTo(c)
	addName(c, &create.Name)
	flags := c.Flags()
	flags.StringSliceVar(&create.Actions, "action", nil, `what it may do, "compute:nodes:read" or "compute:nodes:*" for instance; may be repeated`)
	required(c, "action")
	complete(c, "action", append([]string{"compute:*"}, httpapi.Actions...)...)
	flags.Var(&life, "ttl", "how long it is good, 720h for instance (default until it is revoked)")
	key.addTo(c, "API key")
	flags.StringVar(&out, "out", "", "write a context with the key to this new file (mode 0600) instead of printing the key")
	format.addTo(flags)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "name", "action", "key", "out"); err != nil {
			return err
		}
		if life != 0 {
			seconds := int64(time.Duration(life) / time.Second)
			create.TTLSeconds = &seconds
		}
		return createAPIKey(c, env, &to, &key, create, out, format)
	}
	return c
}

func createAPIKey(c *cobra.Command, env Env, to *target, key *keyFlag, create httpapi.CreateAPIKey, out string, format output) error {
	api, err := to.connect(c, env)
	if err != nil {
		return err
	}
	create.TenantID = to.tenant
	if create.IdempotencyKey, err = key.text(); err != nil {
		return err
	}
	return secretThing{
		thing: "API key", short: "key", out: out, key: create.IdempotencyKey,
		create: func(c *cobra.Command) (madeSecret, error) {
			var made httpapi.CreatedAPIKey
			if err := api.Call(c.Context(), "apiKeys.create", create, &made); err != nil {
				return madeSecret{}, err
			}
			file, err := toml.Marshal(serverContext{URL: to.url, APIKey: made.Key})
			return madeSecret{
				id: made.ID, secret: made.Key, file: string(file), about: "of tenant " + made.TenantID + ", " + expiry(made.APIKey),
				record: func(secret string) any { made.Key = secret; return made },
			}, err
		},
		revoke: func(id string) string {
			return fmt.Sprintf("%s api-keys revoke %s --tenant %s", program, id, to.tenant)
		},
	}.run(c, env, format)
}

// expiry says in words how long a key is good.
func expiry(k httpapi.APIKey) string {
	if k.ExpiresAt == nil {
		return "until it is revoked"
	}
	return "until " + at(*k.ExpiresAt)
}

func listAPIKeysCommand(env Env) *cobra.Command {
	var (
		to     target
		all    bool
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's API keys; never the keys themselves",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			keys, err := every(c.Context(), api, "apiKeys.list", func(cursor string) any {
				return httpapi.ListAPIKeys{TenantID: to.tenant, IncludeInactive: all, Limit: pageSize, Cursor: cursor}
			}, []httpapi.APIKey{})
			if err != nil {
				return err
			}
			return printList(env, format, keys, []string{"ID", "NAME", "STATE", "EXPIRES", "ACTIONS"}, func(k httpapi.APIKey) []string {
				expires := "never"
				if k.ExpiresAt != nil {
					expires = at(*k.ExpiresAt)
				}
				return []string{k.ID, k.Name, k.State, expires, strings.Join(k.Actions, ",")}
			})
		},
	}
	to.addTo(c)
	c.Flags().BoolVar(&all, "all", false, "also revoked and expired keys")
	format.addTo(c.Flags())
	return c
}

func revokeAPIKeyCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "revoke ID",
		Short: "End an API key at once",
		Long: `End an API key at once. Revoking twice is not an error.

ID is the key's id, key_…, as "api-keys list" shows it; never the key itself. A key may revoke itself. Where none is left
that may do everything for the root tenant, the next start of the server makes one, in DIR/admin.toml.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			// Before anything is sent: a pasted key ends here, and is not echoed.
			if err := checkID(c, "API key", "key_", args[0]); err != nil {
				return err
			}
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			var revoked httpapi.APIKey
			if err := api.Call(c.Context(), "apiKeys.revoke", httpapi.RevokeAPIKey{TenantID: to.tenant, KeyID: args[0]}, &revoked); err != nil {
				return err
			}
			return printDone(env, format, revoked.ID, "revoked", revoked)
		},
	}
	to.addTo(c)
	format.addTo(c.Flags())
	return c
}

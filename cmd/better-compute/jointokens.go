package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// The lifetimes that a join token may have.
const (
	minTTL     = time.Minute
	maxTTL     = 24 * time.Hour
	defaultTTL = time.Hour
)

func joinTokensCommand(env Env) *cobra.Command {
	return group("join-tokens", "Create, list and revoke join tokens",
		createJoinTokenCommand(env), listJoinTokensCommand(env), revokeJoinTokenCommand(env))
}

// ttl is the --ttl flag.
type ttl time.Duration

func (t *ttl) String() string { return time.Duration(*t).String() }
func (t *ttl) Type() string   { return "duration" }
func (t *ttl) Set(s string) error {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return fmt.Errorf("not a duration such as 90m or 24h")
	case d%time.Second != 0:
		return fmt.Errorf("must be whole seconds")
	case d < minTTL || d > maxTTL:
		return fmt.Errorf("must be from 1m to 24h")
	}
	*t = ttl(d)
	return nil
}

func createJoinTokenCommand(env Env) *cobra.Command {
	var (
		to     target
		life   = ttl(defaultTTL)
		uses   int64
		expect expectFlags
		hosted string
		key    keyFlag
		out    string
		format output
		create httpapi.CreateJoinToken
	)
	c := &cobra.Command{
		Use:   "create",
		Short: "Create a join token",
		Long: `Create a join token, which lets machines join one pool.

The token is shown once. With --out it goes to a new file that only you can read and is not printed; hand that file to
"bcd join --token-file". Make one token per machine, and bind it with an --expect flag when you know the machine's serial
or MAC: an unbound token admits whichever machine presents it first.

A repeated --key returns the first token's record, without the token. Without --key each call makes a new token.`,
		Example: `  better-compute join-tokens create --tenant $TENANT --pool $POOL --ttl 1h \
    --expect-serial SN-7701 --key adopt-rack-b7-u12 --out ./join-token`,
		Args: cobra.NoArgs,
	}
	to.addPoolTo(c)
	flags := c.Flags()
	flags.Var(&life, "ttl", "how long machines may join with it: 1m to 24h, in whole seconds")
	flags.Int64Var(&uses, "max-uses", 1, "how many machines may join with it, 1 to 10000")
	flags.BoolVar(&create.AllowReclaim, "allow-reclaim", false, "let a known machine with a new key reclaim its node")
	expect.addTo(flags)
	flags.StringVar(&hosted, "hosted", "", `"kubernetes" for bcd as a DaemonSet: its nodes are tenant-controlled`)
	key.addTo(c, "token")
	flags.StringVar(&out, "out", "", "write the token to this new file (mode 0600) instead of printing it")
	format.addTo(flags)

	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "key", "out", "hosted"); err != nil {
			return err
		}
		create.Expect = expect.binding(flags)
		if hosted != "" {
			create.Hosted = &hosted
		}
		create.TTLSeconds, create.MaxUses = int64(time.Duration(life)/time.Second), &uses
		var err error
		if create.IdempotencyKey, err = key.text(); err != nil {
			return err
		}
		return createJoinToken(c, env, &to, create, out, format)
	}
	return c
}

func createJoinToken(c *cobra.Command, env Env, to *target, create httpapi.CreateJoinToken, out string, format output) error {
	api, err := to.connectPool(c, env)
	if err != nil {
		return err
	}
	create.TenantID, create.PoolID = to.tenant, to.pool
	return secretThing{
		thing: "join token", short: "token", out: out, key: create.IdempotencyKey,
		create: func(c *cobra.Command) (madeSecret, error) {
			var made httpapi.CreatedJoinToken
			err := api.Call(c.Context(), "joinTokens.create", create, &made)
			return madeSecret{
				id: made.ID, secret: made.Token, file: made.Token + "\n", about: grant("machine", made.UsesLeft, made.ExpiresAt),
				record: func(secret string) any { made.Token = secret; return made },
			}, err
		},
		revoke: func(id string) string {
			return fmt.Sprintf("%s join-tokens revoke %s --tenant %s --pool %s", program, id, to.tenant, to.pool)
		},
	}.run(c, env, format)
}

// grant says in words how much a token admits.
func grant(what string, uses int64, until time.Time) string {
	if uses != 1 {
		what += "s"
	}
	return fmt.Sprintf("for %d %s until %s", uses, what, until.UTC().Format(time.RFC3339))
}

func listJoinTokensCommand(env Env) *cobra.Command {
	var (
		to     target
		all    bool
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a pool's join tokens; never their secrets",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			tokens, err := every(c.Context(), api, "joinTokens.list", func(cursor string) any {
				return httpapi.ListJoinTokens{TenantID: to.tenant, PoolID: to.pool, IncludeInactive: all, Limit: pageSize, Cursor: cursor}
			}, []httpapi.ListedJoinToken{})
			if err != nil {
				return err
			}
			if format == outputJSON {
				return printJSON(env.Stdout, httpapi.List[httpapi.ListedJoinToken]{Items: tokens})
			}
			rows := make([][]string, len(tokens))
			for i, t := range tokens {
				rows[i] = []string{t.ID, t.State, fmt.Sprint(t.UsesLeft), t.ExpiresAt.UTC().Format(time.RFC3339), restrictions(t.JoinToken)}
			}
			return printTable(env.Stdout, []string{"ID", "STATE", "USES LEFT", "EXPIRES", "FOR"}, rows)
		},
	}
	to.addPoolTo(c)
	c.Flags().BoolVar(&all, "all", false, "also revoked, expired and used-up tokens")
	format.addTo(c.Flags())
	return c
}

// restrictions says in words what a token is bound to.
func restrictions(t httpapi.JoinToken) string {
	var parts []string
	if e := t.Expect; e != nil {
		for _, part := range []struct {
			name  string
			value *string
		}{{"product-uuid", e.ProductUUID}, {"serial", e.Serial}, {"mac", e.MAC}, {"gpu-uuid", e.GPUUUID}} {
			if part.value != nil {
				parts = append(parts, part.name+"="+*part.value)
			}
		}
	}
	if t.AllowReclaim {
		parts = append(parts, "allow-reclaim")
	}
	if t.Hosted != nil {
		parts = append(parts, "hosted="+*t.Hosted)
	}
	return strings.Join(parts, " ")
}

func revokeJoinTokenCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "revoke ID",
		Short: "End a join token at once",
		Long: `End a join token at once. Revoking twice is not an error.

ID is the token's id, jt_…, as "join-tokens list" shows it; never the token itself.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			id := args[0]
			if err := checkTokenID(c, id); err != nil {
				return err
			}
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			revoked, err := revokeJoinToken(c, api, to, id)
			if err != nil {
				return err
			}
			if format == outputJSON {
				return printJSON(env.Stdout, revoked)
			}
			_, err = fmt.Fprintf(env.Stdout, "%s revoked\n", oneline.Text(revoked.ID))
			return err
		},
	}
	to.addPoolTo(c)
	format.addTo(c.Flags())
	return c
}

// checkTokenID is [checkID] for a token's id. A pasted token holds the id, so the hint says where.
func checkTokenID(c *cobra.Command, id string) error {
	if strings.Contains(id, ".") {
		return fault.New(fault.Usage, "pass only the part from jt_ to the dot; if the rest was pasted somewhere public, revoke it now",
			"cannot revoke: that is a join token, not a token's id")
	}
	return checkID(c, "join token", "jt_", id)
}

func revokeJoinToken(c *cobra.Command, api *client.Client, to target, id string) (httpapi.ListedJoinToken, error) {
	var revoked httpapi.ListedJoinToken
	err := api.Call(c.Context(), "joinTokens.revoke", httpapi.RevokeJoinToken{TenantID: to.tenant, PoolID: to.pool, TokenID: id}, &revoked)
	return revoked, err
}

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/gofrs/uuid/v5"
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
		key    string
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
	flags.StringVar(&key, "key", "", "idempotency key: a repeated call with it makes no second token")
	flags.StringVar(&out, "out", "", "write the token to this new file (mode 0600) instead of printing it")
	format.addTo(flags)

	c.RunE = func(c *cobra.Command, _ []string) error {
		for _, name := range []string{"key", "out", "hosted"} {
			if f := flags.Lookup(name); f.Changed && f.Value.String() == "" {
				return usage(c, "--%s is empty", name)
			}
		}
		create.Expect = expect.binding(flags)
		if hosted != "" {
			create.Hosted = &hosted
		}
		create.TTLSeconds, create.MaxUses = int64(time.Duration(life)/time.Second), &uses
		create.IdempotencyKey = key
		if key == "" {
			random, err := uuid.NewV4()
			if err != nil {
				return fmt.Errorf("cannot make an idempotency key: %w", err)
			}
			create.IdempotencyKey = random.String()
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

	// The file is made before the token: a token that nobody can keep must not exist.
	var file *newFile
	if out != "" {
		if file, err = createFile(out); err != nil {
			return fmt.Errorf("cannot create the join token: %w", err)
		}
		defer file.discard()
	}
	var made httpapi.CreatedJoinToken
	if err := api.Call(c.Context(), "joinTokens.create", create, &made); err != nil {
		return err
	}
	revoke := fmt.Sprintf("revoke it with %q and create a new one",
		fmt.Sprintf("%s join-tokens revoke %s --tenant %s --pool %s", program, made.ID, to.tenant, to.pool))
	if file != nil {
		if made.Token == "" {
			return fault.New(fault.InvalidState, revoke,
				"cannot write the join token to %q: --key %q was used before for %s, and a token is shown once", out, create.IdempotencyKey, made.ID)
		}
		if err := file.keep(made.Token + "\n"); err != nil {
			return fault.New(fault.Failed, revoke, "cannot keep the join token %s: %w", made.ID, err)
		}
		made.Token = ""
	}
	if format == outputJSON {
		err = printJSON(env.Stdout, made)
	} else {
		err = printCreated(env, made, out, revoke)
	}
	if err != nil && out == "" && made.Token != "" {
		return fault.New(fault.Failed, revoke, "cannot print the join token %s: %w", made.ID, err)
	}
	return err
}

// printCreated prints a new token: the secret, or without one the id, alone on standard output so that a script can take
// it, and what it is for people.
func printCreated(env Env, made httpapi.CreatedJoinToken, out, revoke string) error {
	result, about := made.Token, "shown once"
	switch {
	case out != "":
		result, about = made.ID, "written to "+out
	case made.Token == "":
		result, about = made.ID, "created before with this --key, and its token is not shown again: use it, or "+revoke
	}
	if _, err := fmt.Fprintln(env.Stdout, result); err != nil {
		return err
	}
	machines := "1 machine"
	if made.UsesLeft != 1 {
		machines = fmt.Sprintf("%d machines", made.UsesLeft)
	}
	fmt.Fprintf(env.Stderr, "join token %s for %s until %s: %s\n",
		oneline.Text(made.ID), machines, made.ExpiresAt.UTC().Format(time.RFC3339), about)
	return nil
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
			// Before anything is sent: a pasted token has its secret after the dot. It is not echoed either.
			if strings.Contains(id, ".") {
				return fault.New(fault.Usage, "pass only the part from jt_ to the dot; if the rest was pasted somewhere public, revoke it now",
					"cannot revoke: that is a join token, not a token's id")
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

func revokeJoinToken(c *cobra.Command, api *client.Client, to target, id string) (httpapi.ListedJoinToken, error) {
	var revoked httpapi.ListedJoinToken
	err := api.Call(c.Context(), "joinTokens.revoke", httpapi.RevokeJoinToken{TenantID: to.tenant, PoolID: to.pool, TokenID: id}, &revoked)
	return revoked, err
}

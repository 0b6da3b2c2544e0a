package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/uuid/v5"
	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/controlplane/pki"
)

// devTrustDomain is the trust domain of a control plane that lasts as long as a terminal (RFC 2606 section 2).
const devTrustDomain = "dev.better-compute.test"

func devCommand(env Env) *cobra.Command {
	var (
		s      serving
		uses   int64
		expect expectFlags
	)
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a control plane in a temporary folder, to try things out",
		Long: `Run a control plane in a temporary folder, on loopback, and print the commands with which bcd on this machine joins it
and connects. Everything is gone when it ends.

No secret is needed: the PKI lives in the folder under a random one. A machine without a trusted serial or product UUID,
many virtual ones for instance, joins only with an --expect flag; "bcd claims" shows what it has.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.dev(c, env, uses, expect.binding(c.Flags()))
		},
	}
	flags := c.Flags()
	flags.StringVar(&s.listen, "listen", "127.0.0.1:0", "HOST:PORT of the HTTP API")
	flags.StringVar(&s.gatewayListen, "gateway-listen", "127.0.0.1:0", "HOST:PORT of the gateway")
	flags.DurationVar(&s.certTTL, "cert-ttl", 0, "life of a node certificate, in whole seconds; 1m shows renewals soon (default 24h)")
	flags.Int64Var(&uses, "max-uses", 1, "how many machines may join with the token")
	expect.addTo(flags)
	s.addLogTo(c)
	return c
}

func (s *serving) dev(c *cobra.Command, env Env, uses int64, expect *httpapi.Expect) (err error) {
	log, err := s.logger(env)
	if err != nil {
		return err
	}
	first, err := s.firstConfig()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "better-compute-dev-")
	if err != nil {
		return fmt.Errorf("cannot make a temporary folder: %w", err)
	}
	defer func() {
		if e := os.RemoveAll(dir); e != nil {
			err = errors.Join(err, fmt.Errorf("cannot remove the temporary folder: %w", e))
		}
	}()
	bundle, err := pki.Init(dir, devTrustDomain, rand.Text(), env.Now())
	if err != nil {
		return err
	}
	server, err := controlplane.New(c.Context(), controlplane.Options{
		Dir: dir, Bundle: bundle, FirstConfig: first, Now: env.Now, Log: log, Version: version(),
	})
	if err != nil {
		return err
	}
	// The token comes through the API like any other, so the server must run before it is made. Whichever of the two
	// fails ends the other.
	ctx, cancel := context.WithCancelCause(c.Context())
	defer cancel(nil)
	err = serveUntilDone(ctx, env, server, func(config string) {
		go func() {
			if err := devReady(ctx, env, server, config, uses, expect); err != nil {
				cancel(err)
			}
		}()
	})
	if cause := context.Cause(ctx); cause != nil && c.Context().Err() == nil {
		err = errors.Join(cause, err)
	}
	return err
}

// devReady makes a token and prints how to use it.
func devReady(ctx context.Context, env Env, server *controlplane.Server, config string, uses int64, expect *httpapi.Expect) error {
	admin, err := loadContext(server.AdminFile())
	if err != nil {
		return err
	}
	api, err := client.New(admin.URL, admin.APIKey)
	if err != nil {
		return err
	}
	key, err := uuid.NewV4()
	if err != nil {
		return fmt.Errorf("cannot make an idempotency key: %w", err)
	}
	create := httpapi.CreateJoinToken{TTLSeconds: int64(maxTTL / time.Second), MaxUses: &uses, Expect: expect, IdempotencyKey: key.String()}
	if create.TenantID, err = soleTenant(ctx, api); err != nil {
		return err
	}
	if create.PoolID, err = solePool(ctx, api, create.TenantID); err != nil {
		return err
	}
	var made httpapi.CreatedJoinToken
	if err := api.Call(ctx, "joinTokens.create", create, &made); err != nil {
		return err
	}
	path := filepath.Join(filepath.Dir(server.AdminFile()), "join-token")
	file, err := createFile(path)
	if err != nil {
		return err
	}
	defer file.discard()
	if err := file.keep(made.Token + "\n"); err != nil {
		return err
	}
	printReady(env, server, config)
	fmt.Fprintf(env.Stdout, `
Join this machine and connect it, in another terminal:

  bcd join --config %[1]s --token-file %[2]s
  bcd node --config %[1]s

Watch it:

  export %[3]s=%[4]s
  better-compute events list --follow
`, config, path, envContext, server.AdminFile())
	return nil
}

package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/pki"
)

func pkiCommand(env Env) *cobra.Command {
	return group("pki", "Make and show the keys that machines pin",
		pkiInitCommand(env), pkiShowCommand(env), pkiIssueGatewayCommand(env))
}

// pkiDirFlag is where the files of the PKI are.
func pkiDirFlag(c *cobra.Command, dir *string) {
	c.Flags().StringVar(dir, "dir", ".", "directory of "+pki.PrivateFile+" and "+pki.PublicFile)
}

func pkiInitCommand(env Env) *cobra.Command {
	var (
		dir, domain string
		format      output
	)
	c := &cobra.Command{
		Use:   "init --trust-domain DOMAIN",
		Short: "Make the CAs and the two JoinService keys",
		Long: `Make the CAs and the two JoinService keys, and print the pins that machines are configured with.

The private keys go to ` + pki.PrivateFile + `, encrypted with $` + envSecret + `; without that secret they are lost. All
that is public goes to ` + pki.PublicFile + `. Existing files are never written over.`,
		Example: `  BETTER_COMPUTE_SECRET=... better-compute pki init --trust-domain compute.example.com`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if domain == "" {
				return usage(c, "--trust-domain is missing")
			}
			if err := pki.CheckTrustDomain(domain); err != nil {
				return err
			}
			secret, err := env.secret()
			if err != nil {
				return err
			}
			bundle, err := pki.Init(dir, domain, secret, env.Now())
			if err != nil {
				return fmt.Errorf("cannot make the PKI: %w", err)
			}
			fmt.Fprintf(env.Stderr, "wrote %s and %s\n", filepath.Join(dir, pki.PrivateFile), filepath.Join(dir, pki.PublicFile))
			return printPKI(env, bundle.Public(), format)
		},
	}
	pkiDirFlag(c, &dir)
	c.Flags().StringVar(&domain, "trust-domain", "", "domain in the names of all nodes, compute.example.com for instance")
	format.addTo(c.Flags())
	return c
}

func pkiShowCommand(env Env) *cobra.Command {
	var (
		dir    string
		format output
	)
	c := &cobra.Command{
		Use:   "show",
		Short: "Print the pins again; needs neither the secret nor a server",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			public, err := pki.LoadPublic(dir)
			if err != nil {
				return err
			}
			return printPKI(env, public, format)
		},
	}
	pkiDirFlag(c, &dir)
	format.addTo(c.Flags())
	return c
}

// printPKI prints what machines need to know. The text form is lines of bcd's config.toml.
func printPKI(env Env, public *pki.Public, format output) error {
	pins := public.Pins()
	if format == outputJSON {
		return printJSON(env.Stdout, struct {
			TrustDomain string   `json:"trustDomain"`
			Pins        pki.Pins `json:"pins"`
		}{public.TrustDomain(), pins})
	}
	_, err := fmt.Fprintf(env.Stdout, "# trust domain %s\nserving_ca_spki_pin = %q\njoin_signing_key_pin = %q\njoin_encryption_key_pin = %q\n",
		public.TrustDomain(), pins.ServingCA, pins.JoinSigning, pins.JoinEncryption)
	return err
}

func pkiIssueGatewayCommand(env Env) *cobra.Command {
	var (
		dir   string
		names []string
	)
	c := &cobra.Command{
		Use:   "issue-gateway --san NAME",
		Short: "Issue the gateway's serving certificate",
		Long: `Issue the gateway's serving certificate, as ` + pki.GatewayCertFile + ` and ` + pki.GatewayKeyFile + ` in --dir.

Without them "serve" issues itself one for the host in the gateway's URL.`,
		Example: `  better-compute pki issue-gateway --san gw.eu.example.com`,
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if len(names) == 0 {
				return usage(c, "--san is missing")
			}
			secret, err := env.secret()
			if err != nil {
				return err
			}
			bundle, err := pki.Load(dir, secret)
			if err != nil {
				return err
			}
			issued, err := bundle.IssueGatewayFiles(dir, names, env.Now())
			if err != nil {
				return err
			}
			fmt.Fprintf(env.Stderr, "issued for %v until %s\n", names, issued.Leaf.NotAfter.UTC().Format(time.RFC3339))
			_, err = fmt.Fprintf(env.Stdout, "%s\n%s\n", filepath.Join(dir, pki.GatewayCertFile), filepath.Join(dir, pki.GatewayKeyFile))
			return err
		},
	}
	pkiDirFlag(c, &dir)
	c.Flags().StringSliceVar(&names, "san", nil, "DNS name or IP address that machines dial; may be repeated")
	return c
}

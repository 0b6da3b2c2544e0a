package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func sitesCommand(env Env) *cobra.Command {
	return group("sites", "Create, change and list sites", createSiteCommand(env), updateSiteCommand(env), listSitesCommand(env))
}

// customUsage is the help of --custom.
const customUsage = "the machines there are the tenant's own: must be said of every site that is not the root tenant's"

func createSiteCommand(env Env) *cobra.Command {
	var (
		to     target
		key    keyFlag
		format output
		create httpapi.CreateSite
	)
	c := &cobra.Command{
		Use:     "create --name NAME",
		Short:   "Create a site",
		Example: `  better-compute sites create --name eu-west --custom`,
		Args:    cobra.NoArgs,
	}
	to.addTo(c)
	addName(c, &create.Name)
	c.Flags().BoolVar(&create.Custom, "custom", false, customUsage)
	key.addTo(c, "site")
	format.addTo(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "name", "key"); err != nil {
			return err
		}
		api, err := to.connect(c, env)
		if err != nil {
			return err
		}
		create.TenantID = to.tenant
		if create.IdempotencyKey, err = key.text(); err != nil {
			return err
		}
		var made httpapi.Site
		if err := api.Call(c.Context(), "sites.create", create, &made); err != nil {
			return err
		}
		return printMade(env, format, "site", made.ID, made.Name, made)
	}
	return c
}

func updateSiteCommand(env Env) *cobra.Command {
	var (
		to     target
		name   string
		custom bool
		format output
	)
	c := &cobra.Command{
		Use:   "update SITE",
		Short: "Change a site; what is not given stays as it is",
		Args:  cobra.ExactArgs(1),
	}
	to.addTo(c)
	c.Flags().StringVar(&name, "name", "", "new name")
	c.Flags().BoolVar(&custom, "custom", false, customUsage+"; --custom=false takes it back")
	format.addTo(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error {
		if err := checkID(c, "site", "site_", args[0]); err != nil {
			return err
		}
		if err := notEmpty(c, "name"); err != nil {
			return err
		}
		update := httpapi.UpdateSite{SiteID: args[0], Name: ifGiven(c, "name", &name), Custom: ifGiven(c, "custom", &custom)}
		if update.Name == nil && update.Custom == nil {
			return usage(c, "nothing to change: give --name or --custom")
		}
		api, err := to.connect(c, env)
		if err != nil {
			return err
		}
		update.TenantID = to.tenant
		var site httpapi.Site
		if err := api.Call(c.Context(), "sites.update", update, &site); err != nil {
			return err
		}
		return printDone(env, format, site.ID, "updated", site)
	}
	return c
}

// ifGiven returns the value of a flag, or nil where it was not given.
func ifGiven[T any](c *cobra.Command, flag string, value *T) *T {
	if c.Flags().Changed(flag) {
		return value
	}
	return nil
}

func listSitesCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's sites",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			sites, err := every(c.Context(), api, "sites.list", func(cursor string) any {
				return httpapi.ListSites{TenantID: to.tenant, Limit: pageSize, Cursor: cursor}
			}, []httpapi.Site{})
			if err != nil {
				return fmt.Errorf("cannot list the sites: %w", err)
			}
			return printList(env, format, sites, []string{"ID", "NAME", "CUSTOM", "CREATED"}, func(s httpapi.Site) []string {
				return []string{s.ID, s.Name, yes(s.Custom), at(s.CreatedAt)}
			})
		},
	}
	to.addTo(c)
	format.addTo(c.Flags())
	return c
}

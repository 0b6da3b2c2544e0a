package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/oneline"
)

func tenantsCommand(env Env) *cobra.Command {
	return group("tenants", "Create and list tenants", createTenantCommand(env), listTenantsCommand(env))
}

func createTenantCommand(env Env) *cobra.Command {
	var (
		to     target
		key    keyFlag
		format output
		create httpapi.CreateTenant
	)
	c := &cobra.Command{
		Use:   "create --name NAME",
		Short: "Create a tenant",
		Long: `Create a tenant, which owns sites, pools and nodes apart from every other's. Only an API key of the root tenant may.

Nobody can act for it before it has an API key: make one with "api-keys create --tenant ID".`,
		Args: cobra.NoArgs,
	}
	to.addContextTo(c)
	addName(c, &create.Name)
	key.addTo(c, "tenant")
	format.addTo(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := notEmpty(c, "name", "key"); err != nil {
			return err
		}
		api, err := to.dial(c, env)
		if err != nil {
			return err
		}
		if create.IdempotencyKey, err = key.text(); err != nil {
			return err
		}
		var made httpapi.Tenant
		if err := api.Call(c.Context(), "tenants.create", create, &made); err != nil {
			return err
		}
		return printMade(env, format, "tenant", made.ID, made.Name, made)
	}
	return c
}

func listTenantsCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List tenants: all with an API key of the root tenant, else the key's own",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.dial(c, env)
			if err != nil {
				return err
			}
			tenants, err := every(c.Context(), api, "tenants.list", func(cursor string) any {
				return httpapi.ListTenants{Limit: pageSize, Cursor: cursor}
			}, []httpapi.Tenant{})
			if err != nil {
				return fmt.Errorf("cannot list the tenants: %w", err)
			}
			return printList(env, format, tenants, []string{"ID", "NAME", "ROOT", "CREATED"}, func(t httpapi.Tenant) []string {
				return []string{t.ID, t.Name, yes(t.Root), at(t.CreatedAt)}
			})
		},
	}
	to.addContextTo(c)
	format.addTo(c.Flags())
	return c
}

// addName adds the --name flag of what is created.
func addName(c *cobra.Command, name *string) {
	c.Flags().StringVar(name, "name", "", "name, for people: up to 128 bytes; it need not be unique")
	required(c, "name")
}

// required makes a flag one that must be given.
func required(c *cobra.Command, flag string) {
	if err := c.MarkFlagRequired(flag); err != nil { // there is no such flag
		panic(err)
	}
}

// printMade prints what was created: the id alone on standard output, so that a script can take it, or the record.
func printMade(env Env, format output, thing, id, name string, record any) error {
	if format == outputJSON {
		return printJSON(env.Stdout, record)
	}
	if _, err := fmt.Fprintln(env.Stdout, oneline.Text(id)); err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "%s %s is %s\n", thing, oneline.Text(id), oneline.Text(name))
	return nil
}

// printDone prints what was changed, and how.
func printDone(env Env, format output, id, done string, record any) error {
	if format == outputJSON {
		return printJSON(env.Stdout, record)
	}
	_, err := fmt.Fprintf(env.Stdout, "%s %s\n", oneline.Text(id), done)
	return err
}

// printList prints all items of a list.
func printList[T any](env Env, format output, items []T, header []string, row func(T) []string) error {
	if format == outputJSON {
		return printJSON(env.Stdout, httpapi.List[T]{Items: items})
	}
	rows := make([][]string, len(items))
	for i, item := range items {
		rows[i] = row(item)
	}
	return printTable(env.Stdout, header, rows)
}

// yes is a cell of a table.
func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// at is a cell of a table.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/fault"
)

func nodesCommand(env Env) *cobra.Command {
	return group("nodes", "List nodes and revoke their identities",
		listNodesCommand(env), getNodeCommand(env), revokeIdentityCommand(env))
}

func listNodesCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List a tenant's nodes",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			nodes, err := every(c.Context(), api, "nodes.list", func(cursor string) any {
				return httpapi.ListNodes{TenantID: to.tenant, PoolID: to.pool, Limit: pageSize, Cursor: cursor}
			}, []httpapi.Node{})
			if err != nil {
				return fmt.Errorf("cannot list the nodes: %w", err)
			}
			if format == outputJSON {
				return printJSON(env.Stdout, httpapi.List[httpapi.Node]{Items: nodes})
			}
			rows := make([][]string, len(nodes))
			for i, n := range nodes {
				rows[i] = []string{n.ID, n.State, connection(n), n.Role, strconv.FormatInt(n.IdentityGeneration, 10), n.Hostname}
			}
			return printTable(env.Stdout, []string{"ID", "STATE", "SESSION", "ROLE", "GENERATION", "HOSTNAME"}, rows)
		},
	}
	to.addTo(c)
	c.Flags().StringVar(&to.pool, "pool", "", "list only this pool's nodes")
	format.addTo(c.Flags())
	return c
}

func connection(n httpapi.Node) string {
	if n.Connected {
		return "connected"
	}
	return "disconnected"
}

func getNodeCommand(env Env) *cobra.Command {
	var (
		to     target
		format output
	)
	c := &cobra.Command{
		Use:   "get NODE",
		Short: "Show one node",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			var n httpapi.Node
			if err := api.Call(c.Context(), "nodes.get", httpapi.NodeRef{TenantID: to.tenant, NodeID: args[0]}, &n); err != nil {
				return fmt.Errorf("cannot get the node: %w", err)
			}
			return printNode(env, n, format)
		},
	}
	to.addTo(c)
	format.addTo(c.Flags())
	return c
}

func revokeIdentityCommand(env Env) *cobra.Command {
	var (
		to     target
		yes    bool
		format output
	)
	c := &cobra.Command{
		Use:   "revoke-identity NODE",
		Short: "Revoke every certificate of a node and end its session",
		Long: `Revoke every certificate of a node and end its session.

The machine cannot connect or renew after this. To come back it joins again, with an empty data directory and a token
made with --allow-reclaim.`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if !yes {
				return fault.New(fault.Usage, "run it again with --yes", "this cuts node %q off until it joins again", args[0])
			}
			api, err := to.connect(c, env)
			if err != nil {
				return err
			}
			var n httpapi.Node
			if err := api.Call(c.Context(), "nodes.revokeIdentity", httpapi.NodeRef{TenantID: to.tenant, NodeID: args[0]}, &n); err != nil {
				return fmt.Errorf("cannot revoke the node's identity: %w", err)
			}
			return printNode(env, n, format)
		},
	}
	to.addTo(c)
	c.Flags().BoolVar(&yes, "yes", false, "do it")
	format.addTo(c.Flags())
	return c
}

func printNode(env Env, n httpapi.Node, format output) error {
	if format == outputJSON {
		return printJSON(env.Stdout, n)
	}
	return printTable(env.Stdout, []string{"FIELD", "VALUE"}, [][]string{
		{"id", n.ID},
		{"hostname", n.Hostname},
		{"state", n.State},
		{"session", connection(n)},
		{"site", n.SiteID},
		{"pool", n.PoolID},
		{"role", n.Role},
		{"trust", n.Trust},
		{"identity generation", strconv.FormatInt(n.IdentityGeneration, 10)},
		{"hardware key trusted", strconv.FormatBool(n.HardwareKeyTrusted)},
		{"joined", n.JoinedAt.UTC().Format(time.RFC3339)},
	})
}

package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func nodesCommand(env Env) *cobra.Command {
	return group("nodes", "List, adopt, cordon and delete nodes, and revoke their identities",
		listNodesCommand(env), getNodeCommand(env), adoptNodeCommand(env), cordonNodeCommand(env), uncordonNodeCommand(env),
		revokeIdentityCommand(env), deleteNodeCommand(env))
}

func listNodesCommand(env Env) *cobra.Command {
	var (
		to     target
		state  string
		all    bool
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
			list := httpapi.ListNodes{TenantID: to.tenant, PoolID: to.pool, IncludeRetired: all, Limit: pageSize}
			if c.Flags().Changed("state") {
				list.State = &state
			}
			nodes, err := every(c.Context(), api, "nodes.list", func(cursor string) any {
				list.Cursor = cursor
				return list
			}, []httpapi.Node{})
			if err != nil {
				return fmt.Errorf("cannot list the nodes: %w", err)
			}
			if format == outputJSON {
				return printJSON(env.Stdout, httpapi.List[httpapi.Node]{Items: nodes})
			}
			rows := make([][]string, len(nodes))
			for i, n := range nodes {
				rows[i] = []string{
					n.ID, n.State, connection(n), conditions(n), n.Role, strconv.FormatInt(n.IdentityGeneration, 10), n.Hostname,
				}
			}
			return printTable(env.Stdout, []string{"ID", "STATE", "SESSION", "CONDITIONS", "ROLE", "GENERATION", "HOSTNAME"}, rows)
		},
	}
	to.addTo(c)
	c.Flags().StringVar(&to.pool, "pool", "", "list only this pool's nodes")
	c.Flags().StringVar(&state, "state", "", "list only the nodes in this state: adopting, adopted or retired")
	c.Flags().BoolVar(&all, "all", false, "also retired nodes")
	format.addTo(c.Flags())
	return c
}

func connection(n httpapi.Node) string {
	if n.Connected {
		return "connected"
	}
	return "disconnected"
}

// conditions names what is special about a node, in one word each.
func conditions(n httpapi.Node) string {
	var words []string
	if n.CordonedAt != nil {
		words = append(words, "Cordoned")
	}
	for _, c := range n.Conditions {
		words = append(words, c.Type)
	}
	return strings.Join(words, ",")
}

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

// nodeCommand returns a command about one node, without its RunE, and what its flags set.
func nodeCommand(use, short string) (*cobra.Command, *target, *output) {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(1)}
	to, format := new(target), new(output)
	to.addTo(c)
	format.addTo(c.Flags())
	return c, to, format
}

// callNode calls a method about one node, which answers the node as it is then.
func callNode(c *cobra.Command, env Env, to *target, method, id string) (httpapi.Node, error) {
	if err := checkID(c, "node", "node_", id); err != nil {
		return httpapi.Node{}, err
	}
	api, err := to.connect(c, env)
	if err != nil {
		return httpapi.Node{}, err
	}
	var n httpapi.Node
	err = api.Call(c.Context(), method, httpapi.NodeRef{TenantID: to.tenant, NodeID: id}, &n)
	return n, err
}

// changeCommand returns a command that calls a method which may be repeated and undone.
func changeCommand(env Env, use, short, long, method string) *cobra.Command {
	c, to, format := nodeCommand(use, short)
	c.Long = long
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := callNode(c, env, to, method, args[0])
		if err != nil {
			return err
		}
		return printNode(env, n, *format)
	}
	return c
}

func adoptNodeCommand(env Env) *cobra.Command {
	return changeCommand(env, "adopt NODE", "Adopt a node whose acceptance has not passed",
		`Adopt a node whose acceptance has not passed: fix the cause first, "nodes get" names it.

The condition AcceptanceFailed ends and the node is ready for work. A node that is adopted already stays as it is.`, "nodes.adopt")
}

func cordonNodeCommand(env Env) *cobra.Command {
	return changeCommand(env, "cordon NODE", "Set a node aside: it gets no new work",
		`Set a node aside: it stays connected and renews its certificate, and gets no new work.

It stays so until "nodes uncordon", also when the machine is installed anew and joins as the same node.`, "nodes.cordon")
}

func uncordonNodeCommand(env Env) *cobra.Command {
	return changeCommand(env, "uncordon NODE", "Let a node take work again", "", "nodes.uncordon")
}

// cutCommand returns a command that cuts a node off, which it does only with --yes or a yes on a terminal. consequence says
// what happens to the node.
func cutCommand(env Env, use, short, long, method, consequence string) *cobra.Command {
	c, to, format := nodeCommand(use, short)
	c.Long = long
	yes := c.Flags().Bool("yes", false, "do it without asking")
	c.RunE = func(c *cobra.Command, args []string) error {
		err := checkID(c, "node", "node_", args[0])
		if err == nil && !*yes {
			err = confirm(env, fmt.Sprintf("of node %s %s", args[0], consequence), func() (string, error) {
				n, err := callNode(c, env, to, "nodes.get", args[0])
				return fmt.Sprintf("%s is %s and %s, hostname %q", n.ID, n.State, connection(n), n.Hostname), err
			})
		}
		if err != nil {
			return err
		}
		n, err := callNode(c, env, to, method, args[0])
		if err != nil {
			return err
		}
		return printNode(env, n, *format)
	}
	return c
}

func revokeIdentityCommand(env Env) *cobra.Command {
	return cutCommand(env, "revoke-identity NODE", "Revoke every certificate of a node and end its session",
		`Revoke every certificate of a node and end its session.

The machine cannot connect or renew after this. To come back it joins again, with an empty data directory and a token
made with --allow-reclaim.`, "nodes.revokeIdentity", "the certificates would be revoked and the session ended, until the machine joins again")
}

func deleteNodeCommand(env Env) *cobra.Command {
	return cutCommand(env, "delete NODE", "Delete a node for good, so that its machine can join as a new one",
		`Delete a node for good: its certificates are revoked, its session ends, and its hardware key is free, so that the machine
can join as a new node.

A retired row stays, which "nodes get" and "nodes list --all" show. Cordon the node first and let its work end. Deleting
twice is not an error.`, "nodes.delete", "the certificates would be revoked and the session ended, and the machine could only join as a new node")
}

package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/oneline"
)

func (a *app) join() *cobra.Command {
	var server, tokenFile, nodeID string
	var patience time.Duration
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Admit this machine with a join token",
		Long: `join makes a key and a certificate request, seals the join token to the control plane's pinned key, and keeps the client
certificate that it gets. The token comes from standard input or from --token-file, never from an argument or the
environment. On a machine that has joined it says so and does nothing.

A join that failed may be run again: it sends the same request, and a use of the token is spent once only.`,
		Example: "  bcd join < token-file\n  bcd join --token-file /run/secrets/join-token --server https://compute.example.com/api/compute",
	}
	cmd.Flags().StringVar(&server, "server", "", "control plane's API, https://…/api/compute; asked for the join key where "+config.JoinKeyFile+" is absent")
	cmd.Flags().StringVar(&tokenFile, "token-file", "", "file with the join token, mode 0600 or 0400; deleted after the join")
	cmd.Flags().StringVar(&nodeID, "node-id", "", "node that a provisioned token names")
	cmd.Flags().DurationVar(&patience, "timeout", agent.DefaultPatience, "how long to try while the gateway cannot be reached")
	a.hostRootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if patience <= 0 {
			return usage(cmd, fmt.Errorf("--timeout is %s, not more than 0", patience))
		}
		c, err := a.load()
		if err != nil {
			return err
		}
		ag, err := a.agent(c)
		if err != nil {
			return err
		}
		result, err := ag.Join(cmd.Context(), agent.JoinOptions{
			Stdin: a.Stdin, TokenFile: tokenFile, Server: server, Proxy: http.ProxyFromEnvironment, NodeID: nodeID, Patience: patience,
		})
		if err != nil {
			return err
		}
		if result.Already {
			fmt.Fprintf(a.Stdout, "already joined: %s\n", result.NodeID)
			return nil
		}
		if result.TokenLeft != nil {
			fmt.Fprintf(a.Stderr, "warning: %s\n", oneline.Text(result.TokenLeft.Error()))
		}
		if result.ClockOffset != 0 {
			fmt.Fprintf(a.Stderr, "warning: this machine's clock is %s off the control plane's\nhint: set the clock, by NTP for instance\n", result.ClockOffset.Abs().Round(time.Second))
		}
		fmt.Fprintf(a.Stdout, "joined: %s (key: %s)\n", result.NodeID, result.Key)
		return nil
	}
	return cmd
}

package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/oneline"
)

func (a *app) join() *cobra.Command {
	var o agent.JoinOptions
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Admit this machine with a join token",
		Long: `join makes a key and a certificate request, seals the join token to the control plane's pinned key, and keeps the client
certificate that it gets. The token comes from standard input or from --token-file, never from an argument or the
environment. On a machine that has joined it says so and does nothing.

Where an operator must approve the machine, join says which join request that is and waits until the operator has decided,
without a limit; --no-wait ends it with status 75 instead. A join that was stopped, or that failed, may be run again with the
same token: it sends the same request, and a use of the token is spent once only.`,
		Example: "  bcd join < token-file\n  bcd join --token-file /run/secrets/join-token --server https://compute.example.com/api/compute\n" +
			"  bcd join --attestor discovery --boot-mac aa:bb:cc:dd:ee:ff < token-file",
	}
	f := cmd.Flags()
	f.StringVar(&o.Server, "server", "", "control plane's API, https://…/api/compute; asked for the join key where "+config.JoinKeyFile+" is absent")
	f.StringVar(&o.TokenFile, "token-file", "", "file with the join token, mode 0600 or 0400; deleted after the join")
	f.StringVar(&o.NodeID, "node-id", "", "node that a provisioned token names")
	f.StringVar(&o.Role, "role", "", "what the machine joins as: node, or site with a site token (default node)")
	f.StringVar(&o.Attestor, "attestor", agent.AttestorJoinToken, "how the machine shows that it may join: "+strings.Join(agent.Attestors(), ", "))
	f.StringVar(&o.BootMAC, "boot-mac", "", "permanent hardware address that the machine was booted over, for --attestor "+agent.AttestorDiscovery)
	f.Uint64Var(&o.BootLeaseEpoch, "boot-lease-epoch", 0, "number of the boot lease, from 1, for --attestor "+agent.AttestorDiscovery)
	f.DurationVar(&o.Patience, "timeout", agent.DefaultPatience, "how long to try while the gateway cannot be reached")
	f.BoolVar(&o.NoWait, "no-wait", false, "end with status 75 where an operator must approve the machine, instead of waiting")
	a.hostRootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// 0 is the agent's word for what was not given.
		switch {
		case o.Patience == 0:
			return usage(cmd, errors.New("--timeout is 0s, not more than 0"))
		case f.Changed("boot-lease-epoch") && o.BootLeaseEpoch == 0:
			return usage(cmd, errors.New("--boot-lease-epoch is 0, not at least 1"))
		}
		if err := o.Validate(); err != nil {
			return usage(cmd, err)
		}
		o.Stdin, o.Proxy = a.Stdin, http.ProxyFromEnvironment
		o.OnWait = func(w agent.JoinWait) { printWait(a.Stderr, w) }
		c, err := a.load()
		if err != nil {
			return err
		}
		ag, err := a.agent(c)
		if err != nil {
			return err
		}
		result, err := ag.Join(cmd.Context(), o)
		if err != nil {
			return err
		}
		if result.Already {
			fmt.Fprintf(a.Stdout, "already joined: %s\n", result.NodeID)
			return nil
		}
		a.warnOfJoin(result)
		fmt.Fprintf(a.Stdout, "joined: %s (key: %s)\n", result.NodeID, result.Key)
		return nil
	}
	return cmd
}

// warnOfJoin says what a person should know of a join that succeeded.
func (a *app) warnOfJoin(result agent.JoinResult) {
	if result.TokenLeft != nil {
		fmt.Fprintf(a.Stderr, "warning: %s\n", oneline.Text(result.TokenLeft.Error()))
	}
	if result.ClockOffset != 0 {
		fmt.Fprintf(a.Stderr, "warning: this machine's clock is %s off the control plane's\nhint: set the clock, by NTP for instance\n", result.ClockOffset.Abs().Round(time.Second))
	}
}

// printWait says what a join begins to wait for, and whom.
func printWait(w io.Writer, wait agent.JoinWait) {
	if wait.Replaces != "" {
		fmt.Fprintf(w, "the join request %s is over\n", wait.Replaces)
	}
	fmt.Fprintf(w, "waiting for approval: %s (an operator runs: better-compute join-requests approve %s --pool POOL)\n", wait.RequestID, wait.RequestID)
}

package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
	"github.com/better-compute/bcd/internal/terminal"
)

func (a *app) join() *cobra.Command {
	var o agent.JoinOptions
	var yes bool
	cmd := &cobra.Command{
		Use:   "join",
		Short: "Admit this machine with a join token, or by its TPM",
		Long: `join makes a key and a certificate request, seals the join token to the control plane's pinned key, and keeps the client
certificate that it gets. The token comes from standard input or from --token-file, never from an argument or the
environment. On a machine that has joined it says so and does nothing.

With --attestor tpm there is no token: the machine's TPM 2.0 proves which TPM it is, and the key is made in it and never
leaves it. The control plane knows the TPM by its endorsement key, which "bcd tpm identify" shows.

--reset joins such a machine again, as root and with the join's credential: the join runs beside the old identity, which a
running daemon uses meanwhile, and once its answer is verified, identity.json, node.key, node.key.next and journal.db are renamed
to <name>.reset-<UTC time>. A join that fails has moved nothing. Without --yes it lists what would move, and asks where somebody
sits at a terminal. Without a credential it ends after the move.

Where an operator must approve the machine, join says which join request that is and waits until the operator has decided,
without a limit; --no-wait ends it with status 75 instead. A join that was stopped, or that failed, may be run again with the
same token: it sends the same request, and a use of the token is spent once only. A join by TPM "bcd node" goes on with too.`,
		Example: "  bcd join < token-file\n  bcd join --attestor tpm\n  bcd join --token-file /run/secrets/join-token --server https://compute.example.com/api/compute\n" +
			"  bcd join --attestor discovery --boot-mac aa:bb:cc:dd:ee:ff < token-file\n" +
			"  bcd join --reset --yes < token-file\n  bcd join --reset --yes --attestor x509pop",
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
	f.BoolVar(&o.Reset, "reset", false, "join again a machine that has joined: its old identity is moved aside once the new one is there; needs root")
	f.BoolVar(&yes, "yes", false, "reset without asking")
	f.BoolVar(&o.NoJoin, "no-join", false, "with --reset: move the old identity aside and join nothing")
	a.hostRootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		// 0 is the agent's word for what was not given.
		switch {
		case o.Patience == 0:
			return usage(cmd, errors.New("--timeout is 0s, not more than 0"))
		case yes && !o.Reset:
			return usage(cmd, errors.New("--yes is for --reset"))
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
		if o.Reset && !yes {
			if err := a.confirmReset(cmd, c, ag); err != nil {
				return err
			}
		}
		result, err := ag.Join(cmd.Context(), o)
		if err != nil {
			return err
		}
		for _, m := range result.Moved {
			fmt.Fprintf(a.Stderr, "moved %s to %s\n", filepath.Join(c.DataDir, m.From), m.To)
		}
		if result.NotJoined {
			printNotJoined(a.Stdout, result)
			return nil
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

// confirmReset lists what a reset would move, and goes on where somebody at a terminal says so.
func (a *app) confirmReset(cmd *cobra.Command, c *config.Config, ag *agent.Agent) error {
	plan, err := ag.PlanReset()
	if err != nil {
		return err
	}
	printPlan(a.Stdout, plan, []string{c.Path, filepath.Join(filepath.Dir(c.Path), config.JoinKeyFile)})
	in, isFile := a.Stdin.(*os.File)
	if !isFile || !terminal.Is(in) {
		return usageHint("run it again with --yes", errors.New("--reset needs --yes where nobody can be asked"))
	}
	fmt.Fprint(a.Stderr, "Go on? [y/N] ")
	// A person's answer. What follows it on the same input is nobody's token: one is never read from a terminal.
	answer, err := bufio.NewReader(io.LimitReader(in, 64)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
		return usageHint("run it again and answer y, or with --yes", errors.New("the reset was not confirmed; nothing was changed"))
	}
	return nil
}

func usageHint(hint string, err error) error { return fault.New(fault.Usage, hint, "%w", err) }

// printPlan shows a person what a reset moves and what it leaves.
func printPlan(w io.Writer, plan agent.ResetPlan, kept []string) {
	node := "whose identity does not load"
	if plan.NodeID != "" {
		node = "which is " + plan.NodeID
	}
	if len(plan.Moves) == 0 {
		fmt.Fprintf(w, "nothing would move: %s holds no identity\n", oneline.Text(plan.DataDir))
		return
	}
	fmt.Fprintf(w, "would join this machine again, %s, and then move:\n", node)
	for _, m := range plan.Moves {
		fmt.Fprintf(w, "  %s to %s\n", oneline.Text(filepath.Join(plan.DataDir, m.From)), m.To)
	}
	fmt.Fprintln(w, "would stay:")
	for _, path := range kept {
		fmt.Fprintf(w, "  %s\n", oneline.Text(path))
	}
	for _, name := range plan.Stays {
		fmt.Fprintf(w, "  %s\n", oneline.Text(filepath.Join(plan.DataDir, name)))
	}
}

// printNotJoined says what a reset without a join leaves to do.
func printNotJoined(w io.Writer, result agent.JoinResult) {
	if len(result.Moved) == 0 {
		fmt.Fprint(w, "there was nothing to move aside; ")
	} else {
		fmt.Fprint(w, "the identity was moved aside; ")
	}
	fmt.Fprintln(w, "this machine has not joined: run bcd join")
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

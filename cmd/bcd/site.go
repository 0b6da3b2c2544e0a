package main

import (
	"errors"
	"fmt"
	"net/http"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/hwclaims"
)

func (a *app) site() *cobra.Command {
	o := agent.JoinOptions{Role: agent.RoleSite}
	cmd := &cobra.Command{
		Use:   "site",
		Short: "Run a site agent: hold its session, vouch for machines that boot",
		Long: `site is the daemon of a machine that joined as a site agent, with a site token: "bcd join --role site". It runs beside the site's
boot server, holds the session and renews the certificate as "bcd node" does, and sends the control plane what "bcd site
vouch" tells it.

With --token-file, a machine that has not joined joins first. On one that has joined, the file is not read.`,
		Example: "  bcd site --token-file /run/secrets/site-token",
	}
	f := cmd.Flags()
	f.StringVar(&o.TokenFile, "token-file", "", "file with a site token, mode 0600 or 0400, to join with first; deleted after the join")
	f.StringVar(&o.Server, "server", "", "control plane's API, https://…/api/compute, for --token-file; asked for the join key where "+config.JoinKeyFile+" is absent")
	a.hostRootFlag(cmd)
	cmd.AddCommand(a.siteVouch())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.Server != "" && o.TokenFile == "" {
			return usage(cmd, errors.New("--server is for --token-file"))
		}
		c, err := a.loadAsNode(cmd.Context())
		if err != nil {
			return err
		}
		ag, err := a.agent(c)
		if err != nil {
			return err
		}
		if o.TokenFile != "" {
			o.Proxy = http.ProxyFromEnvironment
			o.OnWait = func(w agent.JoinWait) { printWait(a.Stderr, w) }
			result, err := ag.Join(cmd.Context(), o)
			if err != nil {
				return err
			}
			a.warnOfJoin(result)
		}
		// A closed terminal, a log rotation, or a reader of the log that died, is no reason to leave.
		signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
		return ag.RunSite(cmd.Context(), agent.SystemdNotifier())
	}
	return cmd
}

func (a *app) siteVouch() *cobra.Command {
	var v agent.Vouch
	var output string
	cmd := &cobra.Command{
		Use:   "vouch --boot-mac MAC --boot-lease-epoch N",
		Short: "Vouch for a machine that boots from the network",
		Long: `vouch tells the running site agent that a machine boots at its site: the hardware address of the NIC that boots, and the number of
its boot lease, which must grow from boot to boot. It waits until the control plane has recorded that, for 15 seconds at
most. A vouch that ends with status 75 while the agent runs is not lost: the agent sends it when it can.`,
		Example: "  bcd site vouch --boot-mac aa:bb:cc:dd:ee:ff --boot-lease-epoch 1764533000",
		Args:    noArgs,
	}
	f := cmd.Flags()
	f.StringVar(&v.BootMAC, "boot-mac", "", "hardware address of the NIC that boots (required)")
	f.Uint64Var(&v.BootLeaseEpoch, "boot-lease-epoch", 0, "number of the boot lease, from 1; more at each boot (required)")
	outputFlag(cmd, &output)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, name := range []string{"boot-mac", "boot-lease-epoch"} {
			if !f.Changed(name) {
				return usage(cmd, fmt.Errorf("--%s is missing", name))
			}
		}
		if err := v.Validate(); err != nil {
			return usage(cmd, err)
		}
		v.BootMAC, _ = hwclaims.BootMAC(v.BootMAC)
		c, _, err := a.reporter(cmd, output)
		if err != nil {
			return err
		}
		if err := agent.RequestVouch(cmd.Context(), c.Status.Socket, v); err != nil {
			return err
		}
		if output == "json" {
			return printJSON(a.Stdout, v)
		}
		fmt.Fprintf(a.Stdout, "vouched for: %s (boot lease %d)\n", v.BootMAC, v.BootLeaseEpoch)
		return nil
	}
	return cmd
}

package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
)

func (a *app) node() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Run the daemon: hold the session, renew the certificate",
		Long: `node is the daemon of a machine that has joined. It holds the node's session with the gateway and renews the certificate at
60 % of its lifetime. It runs until it is told to stop (SIGTERM, SIGINT). A node that the control plane refuses stays up,
says why and tries again slowly: see "bcd status".

It tells a service manager that it is ready and feeds its watchdog (sd_notify).`,
	}
	a.hostRootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.loadAsNode(cmd.Context())
		if err != nil {
			return err
		}
		ag, err := a.agent(c)
		if err != nil {
			return err
		}
		// A closed terminal, a log rotation, or a reader of the log that died, is no reason to leave.
		signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
		return ag.Run(cmd.Context(), agent.SystemdNotifier())
	}
	return cmd
}

package main

import (
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
)

func (a *app) helper() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "helper",
		Short: "Hold the TPM for a daemon that runs without privileges",
		Long: `helper runs as root beside "bcd node", which then runs as the user that [helper] names in the configuration, without
privileges and without the TPM. The helper holds the TPM: it signs what a node signs, and nothing else, makes the node's next
key and has the TPM vouch for it. It reads the hardware identifiers that are root's, and answers on [helper] socket to that
user and to root alone. It runs until it is told to stop (SIGTERM, SIGINT).

It tells a service manager that it is ready and feeds its watchdog (sd_notify).`,
	}
	a.hostRootFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.load()
		if err != nil {
			return err
		}
		ag, err := a.agent(c)
		if err != nil {
			return err
		}
		// A closed terminal, a log rotation, or a reader of the log that died, is no reason to leave.
		signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
		return ag.RunHelper(cmd.Context(), agent.SystemdNotifier())
	}
	return cmd
}

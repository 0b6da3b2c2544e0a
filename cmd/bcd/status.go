package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

func (a *app) status() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the node's identity and what its daemon is doing",
		Long: `status asks the running daemon, and where none runs it shows the identity on disk, or the join that waits for an operator. Exit
status: 0 connected, 75 running and not connected, or waiting for an operator, 77 refused by the control plane, 1 not
running, 78 not joined.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, ag, err := a.reporter(cmd, output)
			if err != nil {
				return err
			}
			s, asked := agent.QueryStatus(cmd.Context(), c.Status.Socket)
			if asked != nil {
				if s, err = ag.StoppedStatus(); err != nil {
					return err
				}
			}
			if output == "json" {
				err = printJSON(a.Stdout, s)
			} else {
				printStatus(a.Stdout, s)
			}
			switch {
			case err != nil:
				return err
			case asked != nil && s.Join == nil:
				return fault.New(fault.Failed, fault.HintOf(asked), "the daemon does not run: %w", asked)
			default:
				return s.Err()
			}
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

// printStatus shows a status to a person.
func printStatus(w io.Writer, s agent.Status) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", name, oneline.Text(fmt.Sprintf(format, args...)))
	}
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	if j := s.Join; j != nil {
		row("joining", "waiting for approval of %s", j.RequestID)
		if j.TokenID != "" {
			row("token", "%s", j.TokenID)
		}
		return
	}
	if id := s.Identity; id != nil {
		row("node", "%s", id.NodeID)
		row("site", "%s", id.Site)
		row("role", "%s, generation %d", id.Role, id.Generation)
		row("key", "%s", id.Key)
		row("certificate", "%s", id.Serial)
		row("valid", "%s to %s", stamp(id.NotBefore), stamp(id.NotAfter))
		row("renews", "%s", stamp(id.RenewAt))
	}
	if s.State == "" {
		row("daemon", "not running")
		return
	}
	row("daemon", "%s since %s (version %s, pid %d)", s.State, stamp(s.Since), s.Version, s.PID)
	if s.Session != nil {
		row("session", "%s with %s since %s", s.Session.ID, s.Session.Gateway, stamp(s.Session.Since))
	}
	if r := s.Renewal; r != nil && r.Error != "" {
		row("renewal", "failed at %s: %s", stamp(r.At), r.Error)
	}
	if s.ClockOffset != nil && (time.Duration(*s.ClockOffset)*time.Millisecond).Abs() > 30*time.Second {
		row("clock", "%s off the control plane's", time.Duration(*s.ClockOffset)*time.Millisecond)
	}
	if n := s.VouchesWaiting; n != nil && *n > 0 {
		row("vouches", "%d not recorded yet", *n)
	}
	if s.Problem != "" {
		row("problem", "%s", s.Problem)
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/internal/fault"
)

const program = "better-compute"

// run runs one command line and returns the exit status.
func run(ctx context.Context, env Env, args []string) int {
	root := newRoot(env)
	root.SetArgs(args)
	ran, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	// An error that cobra itself found, before a command ran, is about the command line. Commands answer faults or
	// plain errors, never this way: runs marks the ones that started.
	if ran.Annotations[started] == "" && fault.CodeOf(err) == fault.Failed {
		err = usage(ran, "%s", firstLine(err.Error()))
	}
	printError(env.Stderr, err)
	return exitOf(err)
}

// exitOf is the exit status of a command that failed. An operator's conflict, a key used for something else or a request
// that changed, is there the next time too: whoever tries again on 75 must not try that.
func exitOf(err error) int {
	if fault.Is(err, fault.Conflict) {
		return fault.ExitFailed
	}
	return fault.CodeOf(err).Exit()
}

// started is the annotation of a command whose RunE was entered.
const started = "started"

// newRoot returns the whole command tree.
func newRoot(env Env) *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Run and operate the Better Compute control plane",
		Long: `better-compute runs the control plane that servers join: its PKI, JoinService, the gateway and the HTTP API.

  better-compute pki init --trust-domain compute.example.com   make the CAs and keys
  better-compute serve --dir DIR                               run the server
  better-compute join-tokens create --out FILE                 let a machine join
  better-compute dev                                           all of it, in a temporary folder

Commands that talk to a server read its address and API key from the file that --context or BETTER_COMPUTE_CONTEXT
names, else from ~/.config/better-compute/context.toml. "serve" writes such a file as DIR/admin.toml.

Exit status: 0 done; 1 failed; 2 wrong usage; 75 temporary, try again; 77 refused; 78 configuration.`,
		SilenceUsage:       true,
		SilenceErrors:      true,
		DisableSuggestions: true, // run prints them as the hint
	}
	root.SetIn(env.Stdin)
	root.SetOut(env.Stdout)
	root.SetErr(env.Stderr)
	root.AddCommand(
		pkiCommand(env),
		serveCommand(env),
		devCommand(env),
		tenantsCommand(env),
		sitesCommand(env),
		poolsCommand(env),
		apiKeysCommand(env),
		joinTokensCommand(env),
		siteTokensCommand(env),
		joinRequestsCommand(env),
		ekAllowCommand(env),
		nodesCommand(env),
		eventsCommand(env),
		versionCommand(env),
	)
	completeOutputs(root)
	markRuns(root)
	return root
}

// group returns a command that only holds others, and refuses what it does not hold.
func group(use, short string, members ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage(c, "%q needs a subcommand", c.CommandPath())
			}
			return usage(c, "unknown command %q for %q", args[0], c.CommandPath())
		},
	}
	c.AddCommand(members...)
	return c
}

// markRuns makes every command note that it started.
func markRuns(c *cobra.Command) {
	if runE := c.RunE; runE != nil {
		c.RunE = func(c *cobra.Command, args []string) error {
			if c.Annotations == nil {
				c.Annotations = map[string]string{}
			}
			c.Annotations[started] = "yes"
			return runE(c, args)
		}
	}
	for _, member := range c.Commands() {
		markRuns(member)
	}
}

// usage is the error of a wrong command line of c.
func usage(c *cobra.Command, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	hint := fmt.Sprintf("run %q", c.CommandPath()+" --help")
	if name := unknownCommand(err); name != "" {
		c.SuggestionsMinimumDistance = 2
		if near := c.SuggestionsFor(name); len(near) > 0 {
			hint = fmt.Sprintf("did you mean %q?", c.CommandPath()+" "+near[0])
		}
	}
	return fault.New(fault.Usage, hint, "%w", err)
}

// unknownCommand returns the name that an "unknown command" error is about.
func unknownCommand(err error) string {
	var name, parent string
	if n, _ := fmt.Sscanf(err.Error(), "unknown command %q for %q", &name, &parent); n == 2 {
		return name
	}
	return ""
}

// firstLine drops the rest of a message that cobra spreads over lines.
func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// flagError makes an error of a flag's value that names the flag.
func flagError(name, value string, err error) error {
	var coded *fault.Error
	if errors.As(err, &coded) {
		return err
	}
	return fault.New(fault.Usage, "", "invalid value %q for --%s: %w", value, name, err)
}

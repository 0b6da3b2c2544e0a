package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// Env is what a command uses of the process.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer // results
	Stderr io.Writer // all else
	Getenv func(string) string
	Now    func() time.Time
}

// app is one run of the program.
type app struct {
	Env
	flags struct {
		config, dataDir, hostRoot, tpmDevice, logLevel, logFormat string
	}
}

// run runs the command that args name and returns the exit status.
func run(args []string, env Env) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once, whatever it waits for.
	context.AfterFunc(ctx, stop)
	result := &resultWriter{w: env.Stdout}
	env.Stdout = result
	a := &app{Env: env}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		err = result.lost()
	}
	if err == nil {
		return 0
	}
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		fmt.Fprintln(env.Stderr, "bcd: interrupted")
		return 130 // as a shell reports SIGINT
	}
	report(env.Stderr, err)
	return fault.CodeOf(err).Exit()
}

// resultWriter is standard output. It remembers that something could not be written: a script that saves a report on a full
// disk must not take half of one for all of it.
type resultWriter struct {
	w   io.Writer
	err error
}

// Write implements [io.Writer].
func (r *resultWriter) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil && r.err == nil {
		r.err = err
	}
	return n, err
}

// lost is the error of a result that was not written.
func (r *resultWriter) lost() error {
	if r.err == nil {
		return nil
	}
	return fault.New(fault.Failed, "look at where standard output goes", "cannot print the result: %w", r.err)
}

// report prints an error: one line with what failed and why, then, where there is one, a line with what to do.
func report(w io.Writer, err error) {
	fmt.Fprintln(w, "bcd:", oneline.Text(err.Error()))
	if hint := fault.HintOf(err); hint != "" {
		fmt.Fprintln(w, "hint:", oneline.Text(hint))
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bcd",
		Short: "Join this machine to a Better Compute control plane and stay connected",
		Long: `bcd turns this machine into a node of a control plane. "bcd join" admits it, once, with a join token or by its TPM;
"bcd node" is the daemon that holds the node's session and renews its certificate, and "bcd site" that of a site agent.

Exit status: 0 done or already joined, 1 failed, 2 usage, 75 temporary (try again), 76 verification failed, 77 refused or
not root, 78 configuration.`,
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	root.SetIn(a.Stdin)
	root.SetOut(a.Stdout)
	root.SetErr(a.Stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, err) })
	f := root.PersistentFlags()
	f.StringVar(&a.flags.config, "config", "", "configuration file (default "+config.DefaultPath+")")
	f.StringVar(&a.flags.dataDir, "data-dir", "", "folder of the node's state, over the configuration's data_dir (default "+config.Default().DataDir+")")
	f.StringVar(&a.flags.logLevel, "log-level", "", "least level that is logged: debug, info, warn, error (default info)")
	f.StringVar(&a.flags.logFormat, "log-format", "", "form of the log: text, json (default text)")
	root.AddCommand(a.join(), a.node(), a.helper(), a.site(), a.claims(), a.status(), a.tpm(), a.version(), a.nvml())
	for _, c := range root.Commands() {
		c.Args = noArgs
	}
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return noEmptyFlag(cmd) }
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return usage(cmd, fmt.Errorf("unknown command %q", args[0]))
		}
		return nil
	}
	return root
}

func usage(cmd *cobra.Command, err error) error {
	return fault.New(fault.Usage, "run: "+cmd.CommandPath()+" --help", "%w", err)
}

// noArgs refuses arguments, which no command has. It doesn't repeat them: somebody may have pasted a token there.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usage(cmd, fmt.Errorf("%q takes no arguments", cmd.CommandPath()))
	}
	return nil
}

// noEmptyFlag refuses a flag with an empty value: it is a shell variable that is not set, and no wish for the default.
func noEmptyFlag(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == "" {
			err = usage(cmd, fmt.Errorf("--%s is empty", f.Name))
		}
	})
	return err
}

// load reads the configuration.
func (a *app) load() (*config.Config, error) {
	return config.Load(config.Options{Path: a.flags.config, CredentialsDir: a.Getenv("CREDENTIALS_DIRECTORY"), Flags: a.configFlags()})
}

// loadAsNode reads the configuration for the daemon: under [helper] it may have to ask for it.
func (a *app) loadAsNode(ctx context.Context) (*config.Config, error) {
	c, err := a.load()
	if a.flags.config != "" || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
		return c, err
	}
	return agent.ConfigFromHelper(ctx, config.Default().Helper.Socket, a.configFlags(), err)
}

func (a *app) configFlags() config.Flags {
	return config.Flags{
		DataDir: a.flags.dataDir, HostRoot: a.flags.hostRoot, TPMDevice: a.flags.tpmDevice, LogLevel: a.flags.logLevel, LogFormat: a.flags.logFormat,
	}
}

// loadOrDefault reads the configuration for a command that needs no gateway: where there is none, and none was asked
// for, the defaults do.
func (a *app) loadOrDefault() (*config.Config, error) {
	c, err := a.load()
	if a.flags.config == "" && errors.Is(err, fs.ErrNotExist) {
		c = config.Default()
		return c, a.configFlags().Apply(c)
	}
	return c, err
}

// agent returns the agent of a configuration.
func (a *app) agent(c *config.Config) (*agent.Agent, error) {
	return agent.New(agent.Options{
		Config:    c,
		Version:   version(),
		Now:       a.Now,
		Log:       a.logger(c),
		NVMLChild: nvmlChild(),
		Profile:   a.Getenv("BCD_FAKEHW"),
	})
}

func (a *app) logger(c *config.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Log.Level}
	if c.Log.JSON {
		return slog.New(slog.NewJSONHandler(a.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(a.Stderr, o))
}

// reporter is what a command that reports begins with: the form that was asked for, the configuration and the agent.
func (a *app) reporter(cmd *cobra.Command, output string) (*config.Config, *agent.Agent, error) {
	if err := checkOutput(cmd, output); err != nil {
		return nil, nil, err
	}
	c, err := a.loadOrDefault()
	if err != nil {
		return nil, nil, err
	}
	ag, err := a.agent(c)
	return c, ag, err
}

// hostRootFlag adds --host-root to a command that reads hardware.
func (a *app) hostRootFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.flags.hostRoot, "host-root", "", "root of the machine whose hardware is read, over the configuration's host_root")
}

// outputFlag adds --output to a command that reports.
func outputFlag(cmd *cobra.Command, to *string) {
	cmd.Flags().StringVar(to, "output", "text", "form of the report: text, json")
}

// checkOutput refuses a form that does not exist.
func checkOutput(cmd *cobra.Command, output string) error {
	if output != "text" && output != "json" {
		return usage(cmd, fmt.Errorf("--output is %q, not text or json", output))
	}
	return nil
}

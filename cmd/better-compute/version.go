package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/internal/wallclock"
)

// release is set by the linker in a release build.
var release = "0.0.0-dev"

// version is this program's version: the release and, where a build may not be installed on a server, why.
func version() string { return release + wallclock.Tag }

func versionCommand(env Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(env.Stdout, "%s %s %s/%s %s\n", program, version(), runtime.GOOS, runtime.GOARCH, runtime.Version())
			return err
		},
	}
}

package main

import (
	"encoding/json"
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/wallclock"
)

// release is set by the linker in a release build.
var release = "0.0.0-dev"

// version is this program's version: the release and, where a build may not be installed on a server, why.
func version() string {
	v := release
	if hwclaims.FakeHardware {
		v += "+fakehw"
	}
	return v + wallclock.Tag
}

func (a *app) version() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			if output == "json" {
				return printJSON(a.Stdout, map[string]string{"version": version(), "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			fmt.Fprintf(a.Stdout, "bcd %s (%s, %s/%s)\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		},
	}
	outputFlag(cmd, &output)
	return cmd
}

func printJSON(w interface{ Write([]byte) (int, error) }, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("cannot print the report: %w", err)
	}
	return nil
}

package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/oneline"
)

// nvmlCommand is the hidden command that asks NVML: in a process of its own, because a wedged driver hangs for ever.
const nvmlCommand = "nvml-claims"

func nvmlChild() []string {
	self, err := os.Executable()
	if err != nil {
		return nil // GPUs are then read from the driver's files
	}
	return []string{self, nvmlCommand}
}

func (a *app) nvml() *cobra.Command {
	return &cobra.Command{
		Use:    nvmlCommand,
		Hidden: true,
		RunE:   func(*cobra.Command, []string) error { return hwclaims.NVMLChild(a.Stdout) },
	}
}

func (a *app) claims() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "claims",
		Short: "Show what this machine claims to be, and what of it counts",
		Long: `claims reads the hardware as a join does and shows what the machine would claim, which values were dropped and why, and the
hardware key that the control plane would derive. It sends nothing and needs no configuration. Some of the identity files
are readable for root alone.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, ag, err := a.reporter(cmd, output)
			if err != nil {
				return err
			}
			report, err := ag.Claims(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(a.Stdout, report.Document())
			}
			printClaims(a.Stdout, report.Document())
			return nil
		},
	}
	a.hostRootFlag(cmd)
	outputFlag(cmd, &output)
	return cmd
}

// printClaims shows a report to a person.
func printClaims(w io.Writer, d hwclaims.Document) {
	row := func(name string, values ...string) {
		if text := strings.Join(values, ", "); text != "" {
			fmt.Fprintf(w, "%-18s %s\n", name, oneline.Text(text))
		}
	}
	row("machine", strings.TrimSpace(d.Claims.Vendor+" "+d.Claims.ProductName))
	row("hostname", d.Claims.Hostname)
	s := d.Survivors
	row("product_uuid", s.ProductUUID...)
	row("product_serial", s.ProductSerial...)
	row("board_serial", s.BoardSerial...)
	row("chassis_serial", s.ChassisSerial...)
	row("devicetree_serial", s.DeviceTreeSerial...)
	row("mac", s.MACs...)
	row("gpu", s.GPUUUIDs...)
	for _, x := range d.Dropped {
		row("dropped", fmt.Sprintf("%s %q: %s", x.What, x.Value, x.Why))
	}
	for _, u := range d.Unreadable {
		row("unreadable", fmt.Sprintf("%s (%s): %s", u.What, u.Path, u.Reason))
	}
	for _, n := range d.Notes {
		row("note", n)
	}
	row("classes", text(d.Classes)...)
	row("key_classes", text(d.KeyClasses)...)
	row("hardware_key", d.HardwareKey)
	trusted := "yes"
	if !d.Trusted {
		trusted = "no: a token join needs a token that names this machine (--expect-serial, --expect-mac, …)"
	}
	row("trusted", trusted)
}

func text[S ~string](values []S) (texts []string) {
	for _, v := range values {
		texts = append(texts, string(v))
	}
	return texts
}

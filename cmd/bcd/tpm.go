package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/internal/oneline"
)

func (a *app) tpm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tpm",
		Short: "Look at this machine's TPM",
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	identify := a.tpmIdentify()
	identify.Args = noArgs
	cmd.AddCommand(identify)
	return cmd
}

func (a *app) tpmIdentify() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "identify",
		Short: "Show what a control plane knows this machine's TPM by",
		Long: `identify shows the TPM's maker, its endorsement key with the certificates that the TPM holds of it, and the attestation key
that a certificate would name. It sends nothing, writes nothing, and needs neither a configuration nor an identity. With
--output json it is what an operator gives to "better-compute ek-allow add", so that the machine may join without a token.`,
		Example: "  bcd tpm identify\n  bcd tpm identify --output json > machine.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, ag, err := a.reporter(cmd, output)
			if err != nil {
				return err
			}
			report, err := ag.TPMIdentity(cmd.Context())
			if err != nil {
				return err
			}
			if output == "json" {
				return printJSON(a.Stdout, report)
			}
			printTPM(a.Stdout, report)
			return nil
		},
	}
	cmd.Flags().StringVar(&a.flags.tpmDevice, "device", "", "the TPM's device, or unix:PATH, over the configuration's [tpm] device")
	outputFlag(cmd, &output)
	return cmd
}

// printTPM shows a TPM to a person.
func printTPM(w io.Writer, r agent.TPMReport) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-14s %s\n", name, oneline.Text(fmt.Sprintf(format, args...)))
	}
	row("device", "%s", r.Device)
	row("manufacturer", "%s", r.Manufacturer)
	row("model", "%s", r.Model)
	row("firmware", "%s", r.Firmware)
	row("spec", "%s", r.Spec)
	row("ek", "%s, template %s (%s)", r.EKKey, r.EKTemplate, r.EKIndex)
	row("ek_sha256", "%s", r.EKSHA256)
	row("ak", "%s", r.AKStatement)
	if len(r.Certificates) == 0 {
		row("certificate", "none: an operator must list the endorsement key, or approve the machine")
	}
	for i, c := range r.Certificates {
		name := "certificate"
		if i > 0 {
			name = "authority"
		}
		if c.Unreadable != "" {
			row(name, "unreadable (SHA-256 %s): %s", c.SHA256, c.Unreadable)
			continue
		}
		subject := c.Subject
		if c.Names != "" {
			subject += " [" + c.Names + "]"
		}
		row(name, "%s, issued by %s, valid %s to %s", subject, c.Issuer, c.NotBefore.Format(time.RFC3339), c.NotAfter.Format(time.RFC3339))
	}
	for _, note := range r.Notes {
		row("note", "%s", note)
	}
}

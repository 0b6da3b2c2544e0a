package main

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/internal/fault"
)

// checkID refuses a text that cannot be the id of a thing, before anything is sent. It is not repeated: a pasted token or
// API key must end here.
func checkID(c *cobra.Command, thing, prefix, id string) error {
	switch {
	case strings.Contains(id, ".") || strings.HasPrefix(id, "bcjt_") || strings.HasPrefix(id, "bcak_"):
		return fault.New(fault.Usage, "if it was pasted somewhere public, revoke it now",
			"that looks like a join token or an API key, not like a %s's id, %s…", thing, prefix)
	case !strings.HasPrefix(id, prefix):
		return usage(c, "a %s's id starts with %s", thing, prefix)
	}
	return nil
}

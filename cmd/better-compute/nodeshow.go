package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func getNodeCommand(env Env) *cobra.Command {
	c, to, format := nodeCommand("get NODE", "Show one node, retired or not")
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := callNode(c, env, to, "nodes.get", args[0])
		if err != nil {
			return fmt.Errorf("cannot get the node: %w", err)
		}
		return printNode(env, n, *format)
	}
	return c
}

// printNode prints all that is known of a node.
func printNode(env Env, n httpapi.Node, format output) error {
	if format == outputJSON {
		return printJSON(env.Stdout, n)
	}
	rows := [][]string{
		{"id", n.ID},
		{"hostname", n.Hostname},
		{"state", n.State},
		{"session", connection(n)},
		{"site", n.SiteID},
		{"pool", given(n.PoolID)},
		{"role", n.Role},
		{"trust", n.Trust},
		{"identity generation", strconv.FormatInt(n.IdentityGeneration, 10)},
		{"hardware key", given(n.HardwareKey)},
		{"hardware key trusted", strconv.FormatBool(n.HardwareKeyTrusted)},
	}
	if n.EKSHA256 != "" {
		rows = append(rows, []string{"endorsement key", n.EKSHA256})
	}
	rows = append(rows, claimRows(n.Claims)...)
	if c := n.Certificate; c != nil {
		validity := "until " + stamp(&c.NotAfter)
		if c.RevokedAt != nil {
			validity = "revoked " + stamp(c.RevokedAt)
		}
		rows = append(rows, []string{"certificate", c.Serial + ", " + validity})
	}
	rows = append(rows,
		[]string{"joined", stamp(&n.JoinedAt)},
		[]string{"first connected", stamp(n.HelloAt)},
		[]string{"cordoned", stamp(n.CordonedAt)})
	if n.RetiredAt != nil {
		rows = append(rows, []string{"retired", stamp(n.RetiredAt)})
	}
	for _, c := range n.Conditions {
		rows = append(rows, []string{"condition " + c.Type, fmt.Sprintf("%s (since %s)", c.Message, stamp(&c.Since))})
	}
	return printTable(env.Stdout, []string{"FIELD", "VALUE"}, rows)
}

// claimRows are the claims that a machine has.
func claimRows(c httpapi.Claims) (rows [][]string) {
	for _, claim := range [][]string{
		{"vendor", c.Vendor},
		{"product", c.ProductName},
		{"product uuid", c.ProductUUID},
		{"product serial", c.ProductSerial},
		{"board serial", c.BoardSerial},
		{"chassis serial", c.ChassisSerial},
		{"device tree serial", c.DeviceTreeSerial},
		{"macs", strings.Join(c.MACs, " ")},
		{"gpus", strings.Join(c.GPUUUIDs, " ")},
	} {
		if claim[1] != "" {
			rows = append(rows, claim)
		}
	}
	return rows
}

// given returns a text that may be absent.
func given(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// stamp returns a time that may be absent, in UTC.
func stamp(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

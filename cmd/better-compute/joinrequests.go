package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

func joinRequestsCommand(env Env) *cobra.Command {
	return group("join-requests", "List, approve and reject join requests",
		listJoinRequestsCommand(env), approveJoinRequestCommand(env), rejectJoinRequestCommand(env))
}

func listJoinRequestsCommand(env Env) *cobra.Command {
	var (
		to     target
		state  string
		format output
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "List the machines that wait for a decision in a pool",
		Long: `List the machines that wait for a decision in a pool: the pool's requests, and those of its site that no pool has claimed.

All that a request shows of its machine, but VOUCHED BY, is the machine's own word or what the gateway saw. --output json
shows all of it: the SHA-256 of the certificate request that an approval admits and, of a machine that joins by its TPM,
that of the endorsement key which the TPM proved.`,
		Example: `  better-compute join-requests list --tenant $TENANT --pool $POOL
  better-compute join-requests list --state all --output json`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			api, err := to.connectPool(c, env)
			if err != nil {
				return err
			}
			requests, err := every(c.Context(), api, "joinRequests.list", func(cursor string) any {
				return httpapi.ListJoinRequests{TenantID: to.tenant, PoolID: to.pool, State: &state, Limit: pageSize, Cursor: cursor}
			}, []httpapi.JoinRequest{})
			if err != nil {
				return err
			}
			if format == outputJSON {
				return printJSON(env.Stdout, httpapi.List[httpapi.JoinRequest]{Items: requests})
			}
			rows := make([][]string, len(requests))
			for i, r := range requests {
				rows[i] = []string{
					r.ID, r.State, r.Attestor, given(r.MAC), given(r.IP), serialOf(r.Claims), productOf(r.Claims), voucher(r), stamp(&r.ExpiresAt),
				}
			}
			return printTable(env.Stdout,
				[]string{"ID", "STATE", "ATTESTOR", "MAC", "IP", "SERIAL", "PRODUCT", "VOUCHED BY", "EXPIRES"}, rows)
		},
	}
	to.addPoolTo(c)
	c.Flags().StringVar(&state, "state", "pending", "list the requests in this state: pending, approved, rejected, expired, consumed or all")
	format.addTo(c.Flags())
	return c
}

// serialOf returns the serial that a person would look for on the machine.
func serialOf(c httpapi.Claims) string {
	for _, serial := range []string{c.ProductSerial, c.DeviceTreeSerial, c.BoardSerial, c.ChassisSerial} {
		if serial != "" {
			return serial
		}
	}
	return ""
}

func productOf(c httpapi.Claims) string { return strings.TrimSpace(c.Vendor + " " + c.ProductName) }

// voucher says which site agent saw the machine boot.
func voucher(r httpapi.JoinRequest) string {
	if r.VouchedBy == nil || r.BootLeaseEpoch == nil {
		return ""
	}
	return fmt.Sprintf("%s (boot lease %d)", *r.VouchedBy, *r.BootLeaseEpoch)
}

// endorsementKey says which TPM the machine proved to have, and whether its maker vouches for it.
func endorsementKey(r httpapi.JoinRequest) string {
	if r.EKUnverified != nil && *r.EKUnverified {
		return r.EKSHA256 + " (no maker vouches for it)"
	}
	return r.EKSHA256
}

// printJoinRequest prints all that is known of a request.
func printJoinRequest(env Env, r httpapi.JoinRequest, format output) error {
	if format == outputJSON {
		return printJSON(env.Stdout, r)
	}
	rows := [][]string{
		{"id", r.ID},
		{"state", r.State},
		{"site", r.SiteID},
		{"pool", given(r.PoolID)},
		{"attestor", r.Attestor},
		{"role", r.Role},
		{"mac", given(r.MAC)},
		{"ip", given(r.IP)},
		{"vouched by", voucher(r)},
		{"workflow", given(r.WorkflowID)},
		{"hostname", r.Claims.Hostname},
	}
	rows = append(rows, claimRows(r.Claims)...)
	rows = append(rows,
		[]string{"hardware key", given(r.HardwareKey)})
	if r.EKSHA256 != "" {
		rows = append(rows, []string{"endorsement key", endorsementKey(r)})
	}
	rows = append(rows,
		[]string{"csr sha256", r.CSRSHA256},
		[]string{"created", stamp(&r.CreatedAt)},
		[]string{"expires", stamp(&r.ExpiresAt)},
		[]string{"decided", stamp(r.DecidedAt)},
		[]string{"decided by", given(r.DecidedBy)},
		[]string{"reason", given(r.Reason)},
		[]string{"consumed", stamp(r.ConsumedAt)})
	return printTable(env.Stdout, []string{"FIELD", "VALUE"}, rows)
}

package main

import (
	"context"
	"errors"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
)

// The lifetimes that an approval may have, in seconds.
const (
	minApproval = 60
	maxApproval = 86_400
)

// seconds is a number of seconds: approve's --ttl, which unlike that of a join token is no duration.
type seconds int64

func (s *seconds) String() string { return strconv.FormatInt(int64(*s), 10) }
func (s *seconds) Type() string   { return "seconds" }
func (s *seconds) Set(text string) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < minApproval || n > maxApproval || strconv.FormatInt(n, 10) != text {
		return errors.New("must be a whole number of seconds from 60 to 86400, 900 for instance")
	}
	*s = seconds(n)
	return nil
}

// decision is what approve and reject share.
type decision struct {
	target
	reason string
	format output
}

func (d *decision) addTo(c *cobra.Command) {
	d.addPoolTo(c)
	c.Flags().StringVar(&d.reason, "reason", "", "why, for people: 'rack B7 intake, ticket 4411' for instance; the machine is not told")
	d.format.addTo(c.Flags())
}

// connectFor checks the request's id and returns a client.
func (d *decision) connectFor(c *cobra.Command, env Env, id string) (*client.Client, error) {
	if err := checkID(c, "join request", "jreq_", id); err != nil {
		return nil, err
	}
	if c.Flags().Changed("reason") && d.reason == "" {
		return nil, usage(c, "--reason is empty")
	}
	return d.connectPool(c, env)
}

func approveJoinRequestCommand(env Env) *cobra.Command {
	var (
		d    decision
		ttl  = seconds(3600)
		csr  string
		made httpapi.JoinRequest
	)
	c := &cobra.Command{
		Use:   "approve REQUEST",
		Short: "Let the machine of a join request join the pool, once",
		Long: `Let the machine of a join request join the pool, once, within --ttl seconds.

An approval is for one certificate request, the one that the machine asked with. --csr-sha256 names it, as "join-requests
list --output json" showed it; without the flag it is the one that the request has now. A machine that asks with another one
in the meantime makes the approval a CONFLICT: list again and decide on what it says now.

Approving twice returns the approval. A request that was rejected, has expired or was used stays as it is.`,
		Example: `  better-compute join-requests approve jreq_01k5w… --tenant $TENANT --pool $POOL --ttl 900 \
    --reason 'rack B7 intake, ticket 4411'`,
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if c.Flags().Changed("csr-sha256") && csr == "" {
				return usage(c, "--csr-sha256 is empty")
			}
			api, err := d.connectFor(c, env, args[0])
			if err != nil {
				return err
			}
			life := int64(ttl)
			approve := httpapi.ApproveJoinRequest{TenantID: d.tenant, PoolID: d.pool, RequestID: args[0], TTLSeconds: &life, Reason: d.reason}
			if csr != "" {
				approve.CSRSHA256 = &csr
			} else if approve.CSRSHA256, err = csrOf(c.Context(), api, d.target, args[0]); err != nil {
				return err
			}
			if err := api.Call(c.Context(), "joinRequests.approve", approve, &made); err != nil {
				return err
			}
			return printJoinRequest(env, made, d.format)
		},
	}
	d.addTo(c)
	c.Flags().Var(&ttl, "ttl", "how long the machine may join, in seconds: 60 to 86400")
	c.Flags().StringVar(&csr, "csr-sha256", "", "approve only the certificate request with this SHA-256, 64 hex digits (default the one that a list shows now)")
	return c
}

// csrOf returns what a list shows of a request's certificate request, so that the approval is for no later one. Nil is a
// request that no list shows as undecided: what is wrong with it is the API's to say.
func csrOf(ctx context.Context, api *client.Client, to target, id string) (*string, error) {
	for _, state := range []string{"pending", "approved"} {
		requests, err := every(ctx, api, "joinRequests.list", func(cursor string) any {
			return httpapi.ListJoinRequests{TenantID: to.tenant, PoolID: to.pool, State: &state, Limit: pageSize, Cursor: cursor}
		}, []httpapi.JoinRequest{})
		if err != nil {
			return nil, err
		}
		for _, r := range requests {
			if r.ID == id {
				return &r.CSRSHA256, nil
			}
		}
	}
	return nil, nil //nolint:nilnil // none
}

func rejectJoinRequestCommand(env Env) *cobra.Command {
	var (
		d    decision
		made httpapi.JoinRequest
	)
	c := &cobra.Command{
		Use:   "reject REQUEST",
		Short: "Refuse the machine of a join request",
		Long: `Refuse the machine of a join request. An approval that the machine has not used yet is withdrawn.

No later decision changes it. Rejecting twice is not an error.`,
		Example: `  better-compute join-requests reject jreq_01k5w… --tenant $TENANT --pool $POOL --reason 'unknown serial'`,
		Args:    cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			api, err := d.connectFor(c, env, args[0])
			if err != nil {
				return err
			}
			reject := httpapi.RejectJoinRequest{TenantID: d.tenant, PoolID: d.pool, RequestID: args[0], Reason: d.reason}
			if err := api.Call(c.Context(), "joinRequests.reject", reject, &made); err != nil {
				return err
			}
			return printJoinRequest(env, made, d.format)
		},
	}
	d.addTo(c)
	return c
}

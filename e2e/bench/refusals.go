package main

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"text/tabwriter"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/e2e/fleet"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/seal"
)

const (
	// refusalsEach is how often each reason is tried: all of them together stay below what the gateway lets one address
	// be refused (burst 200).
	refusalsEach = 15
	// refusalsAtOnce is how many are under way at a time.
	refusalsAtOnce = 4
)

// refusal is a join that must be refused, by the reason that the operator's event names.
type refusal struct {
	reason string
	token  string
	// change changes the request before it is signed; nil changes nothing.
	change func(*daemonv1.JoinRequestBody) error
}

// measureRefusals shows that the time of a refusal does not tell its reason: JoinService answers each at the next multiple
// of 250 ms after its arrival.
func measureRefusals(ctx context.Context, b *bench) error {
	refusals, err := b.refusals(ctx)
	if err != nil {
		return err
	}
	took := make(map[string][]float64)
	var mu sync.Mutex
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	slots := make(chan struct{}, refusalsAtOnce)
	for range refusalsEach {
		for _, r := range refusals {
			slots <- struct{}{}
			work.Go(func() {
				defer func() { <-slots }()
				d, err := b.server.refused(ctx, r)
				if err != nil {
					cancel(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				took[r.reason] = append(took[r.reason], milliseconds(d))
			})
		}
	}
	work.Wait()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	fmt.Fprintf(b.out, "\nRefused joins, from the request to its answer (%d of each, ms; the answer waits for a multiple of 250 ms)\n", refusalsEach)
	t := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  reason\tmin\tmedian\tp90\tmax")
	for _, r := range refusals {
		s := slices.Sorted(slices.Values(took[r.reason]))
		fmt.Fprintf(t, "  %s\t%.1f\t%.1f\t%.1f\t%.1f\n", r.reason, s[0], quantile(s, 0.5), quantile(s, 0.9), s[len(s)-1])
	}
	return t.Flush()
}

// refused sends a join on a connection that is open already and returns how long its refusal took.
func (c *controlPlane) refused(ctx context.Context, r refusal) (time.Duration, error) {
	m, err := fleet.NewMachine()
	if err != nil {
		return 0, err
	}
	answer, err := c.Join(ctx, m, r.token, r.change)
	switch {
	case fault.Is(err, fault.AccessDenied):
		return answer.Took, nil
	case err == nil:
		return 0, fmt.Errorf("the join that must be refused as %s was admitted", r.reason)
	default:
		return 0, fmt.Errorf("the join that must be refused as %s failed: %w", r.reason, err)
	}
}

// refusals makes what each refusal needs.
func (b *bench) refusals(ctx context.Context) ([]refusal, error) {
	good, err := b.server.NewToken(ctx, 100, nil)
	if err != nil {
		return nil, err
	}
	bound, err := b.server.NewToken(ctx, 100, func(r *httpapi.CreateJoinToken) { serial := "7QOTHER01"; r.Expect = &httpapi.Expect{Serial: &serial} })
	if err != nil {
		return nil, err
	}
	revoked, err := b.server.NewToken(ctx, 100, nil)
	if err != nil {
		return nil, err
	}
	var answer httpapi.ListedJoinToken
	if err := b.server.API.Call(ctx, "joinTokens.revoke", httpapi.RevokeJoinToken{TenantID: b.server.Tenant, PoolID: b.server.Pool, TokenID: revoked.ID}, &answer); err != nil {
		return nil, err
	}
	spent, err := b.server.NewToken(ctx, 1, nil)
	if err != nil {
		return nil, err
	}
	if err := b.server.joinNew(ctx, spent.Token); err != nil {
		return nil, err
	}
	otherSecret, err := bearer.NewSecret().Token(good.ID)
	if err != nil {
		return nil, err
	}
	foreign, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	foreignKey, err := seal.NewKey(foreign.PublicKey())
	if err != nil {
		return nil, err
	}
	unknown := good.ID[:len(good.ID)-4] + "zzzz"
	unknownToken, err := bearer.NewSecret().Token(unknown)
	if err != nil {
		return nil, err
	}
	return []refusal{
		{"join-token:malformed", "not a token", nil},
		{"join-token:unknown", string(unknownToken.Bytes()), nil},
		{"join-token:secret-mismatch", string(otherSecret.Bytes()), nil},
		{"join-token:revoked", revoked.Token, nil},
		{"join-token:exhausted", spent.Token, nil},
		{"join-token:role-mismatch", good.Token, asks(func(r *daemonv1.JoinRequestBody) { r.Role = "site" })},
		{"join:token", good.Token, func(r *daemonv1.JoinRequestBody) (err error) {
			r.SealedToken, err = seal.Seal(foreignKey, []byte(good.Token), r.GetCsr(), time.Now())
			return err
		}},
		{"join:csr", good.Token, asks(func(r *daemonv1.JoinRequestBody) { r.Csr = []byte("not a CSR") })},
		{"join:expect", bound.Token, nil},
		{"join:placeholder-hardware", good.Token, asks(func(r *daemonv1.JoinRequestBody) {
			r.Claims = &daemonv1.HardwareClaims{ProductSerial: "To be filled by O.E.M."}
		})},
		{"join:site", good.Token, asks(func(r *daemonv1.JoinRequestBody) { r.Site = "site_01k5w0000000000000000000zz" })},
	}, nil
}

// asks is a change that cannot fail.
func asks(change func(*daemonv1.JoinRequestBody)) func(*daemonv1.JoinRequestBody) error {
	return func(r *daemonv1.JoinRequestBody) error {
		change(r)
		return nil
	}
}

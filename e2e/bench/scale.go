package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/better-compute/bcd/controlplane/httpapi"
)

const (
	// fullNodes and fullTokens are what the full control plane holds. Most of its tokens are revoked: a list of the live
	// ones must not pay for them.
	fullNodes, fullTokens, liveTokens = 10_000, 10_000, 1_000
	fillers                           = 16

	listCalls = 200
	scaleRuns = 3
	scaleFor  = 2 * time.Second
)

// measureScale fills a control plane and compares it with an empty one: how long lists take, and how many machines it
// admits.
func measureScale(ctx context.Context, b *bench) (err error) {
	full, err := startControlPlane(ctx, b, "full")
	defer func() { err = errors.Join(err, stop(full.process)) }()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.out, "\n%d nodes join and %d tokens are made …\n", fullNodes, fullTokens)
	if err := full.fill(ctx); err != nil {
		return err
	}
	if err := full.timeLists(ctx, b); err != nil {
		return err
	}
	empty, err := startControlPlane(ctx, b, "empty")
	defer func() { err = errors.Join(err, stop(empty.process)) }()
	if err != nil {
		return err
	}
	for _, c := range []*controlPlane{empty, full} {
		if _, err := c.load(ctx, fillers, rateWarm); err != nil {
			return err
		}
	}
	var share, rateFull, rateEmpty []float64
	for range scaleRuns { // in turn, so that what else the machine does hits both
		e, err := empty.load(ctx, fillers, scaleFor)
		if err != nil {
			return err
		}
		f, err := full.load(ctx, fillers, scaleFor)
		if err != nil {
			return err
		}
		rateEmpty, rateFull = append(rateEmpty, e.rate), append(rateFull, f.rate)
		share = append(share, f.rate/e.rate)
	}
	t := newTable(b.out, fmt.Sprintf("Joins with %d clients, beside an empty store (%d runs of %s each, in turn)", fillers, scaleRuns, scaleFor))
	t.add(figure{name: "empty store", unit: "joins/s", samples: rateEmpty})
	t.add(figure{name: fmt.Sprintf("%d nodes and tokens", fullNodes), unit: "joins/s", samples: rateFull})
	t.add(figure{name: "full / empty", unit: "", samples: share, goal: 0.8, more: true})
	return t.flush()
}

// fill makes the nodes and the tokens.
func (c *controlPlane) fill(ctx context.Context) error {
	token, err := c.NewToken(ctx, fullNodes, nil)
	if err != nil {
		return err
	}
	if err := atOnce(ctx, fullNodes, func(ctx context.Context, _ int) error { return c.joinNew(ctx, token.Token) }); err != nil {
		return err
	}
	return atOnce(ctx, fullTokens, func(ctx context.Context, i int) error {
		made, err := c.NewToken(ctx, 1, nil)
		if err != nil || i >= fullTokens-liveTokens { // the live ones last: a list must find them behind the others
			return err
		}
		return c.API.Call(ctx, "joinTokens.revoke", httpapi.RevokeJoinToken{TenantID: c.Tenant, PoolID: c.Pool, TokenID: made.ID}, &httpapi.ListedJoinToken{})
	})
}

// atOnce makes n calls, some at a time. The first that fails ends them.
func atOnce(ctx context.Context, n int64, call func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var work sync.WaitGroup
	for range fillers {
		work.Go(func() {
			for i := next.Add(1); i <= n && ctx.Err() == nil; i = next.Add(1) {
				if err := call(ctx, int(i-1)); err != nil {
					cancel(err)
				}
			}
		})
	}
	work.Wait()
	return context.Cause(ctx)
}

// timeLists times the API's lists, each by its first page, and the long ones by one from the middle too.
func (c *controlPlane) timeLists(ctx context.Context, b *bench) error {
	t := newTable(b.out, fmt.Sprintf("Lists of a control plane with %d nodes and %d tokens (p99 of %d calls each)", fullNodes, fullTokens, listCalls))
	for _, l := range []struct {
		name, method string
		request      any
	}{
		{"live tokens", "joinTokens.list", httpapi.ListJoinTokens{TenantID: c.Tenant, PoolID: c.Pool}},
		{"all tokens", "joinTokens.list", httpapi.ListJoinTokens{TenantID: c.Tenant, PoolID: c.Pool, IncludeInactive: true}},
		{"nodes of the pool", "nodes.list", httpapi.ListNodes{TenantID: c.Tenant, PoolID: c.Pool}},
		{"nodes of the tenant", "nodes.list", httpapi.ListNodes{TenantID: c.Tenant}},
		{"events", "events.list", httpapi.ListEvents{TenantID: c.Tenant}},
		{"events of a type", "events.list", httpapi.ListEvents{TenantID: c.Tenant, Type: "security.join.refused"}},
		{"pools", "pools.list", httpapi.ListPools{TenantID: c.Tenant}},
		{"sites", "sites.list", httpapi.ListSites{TenantID: c.Tenant}},
		{"tenants", "tenants.list", httpapi.ListTenants{}},
		{"API keys", "apiKeys.list", httpapi.ListAPIKeys{TenantID: c.Tenant}},
	} {
		var took []float64
		for range listCalls {
			begun := time.Now()
			if err := c.API.Call(ctx, l.method, l.request, &httpapi.List[map[string]any]{}); err != nil {
				return err
			}
			took = append(took, milliseconds(time.Since(begun)))
		}
		slices.Sort(took)
		t.add(figure{name: l.name, unit: "ms", samples: []float64{quantile(took, 0.99)}, goal: 50})
	}
	return t.flush()
}

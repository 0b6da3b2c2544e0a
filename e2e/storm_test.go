package e2e_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/e2e/fleet"
	"github.com/better-compute/bcd/internal/fault"
)

// connect returns the control plane as machines in memory know it.
func (p *plane) connect() *fleet.Plane {
	p.t.Helper()
	f, err := fleet.Connect(p.t.Context(), p.dir)
	if err != nil {
		p.t.Fatal(err)
	}
	return f
}

// restart kills the server, as a power cut would, and starts it again.
func (p *plane) restart() {
	p.t.Helper()
	p.server.kill()
	p.server = start(p.t, p.env, p.program, "serve", "--dir", p.dir)
	p.server.waitFor("\nready\n", 1)
}

// nodesOf returns every node of the tenant, by its id.
func nodesOf(t *testing.T, f *fleet.Plane) map[string]httpapi.Node {
	t.Helper()
	nodes := map[string]httpapi.Node{}
	for cursor := ""; ; {
		var page httpapi.List[httpapi.Node]
		if err := f.API.Call(t.Context(), "nodes.list", httpapi.ListNodes{TenantID: f.Tenant, Cursor: cursor}, &page); err != nil {
			t.Fatal(err)
		}
		for _, n := range page.Items {
			nodes[n.ID] = n
		}
		if cursor = page.NextCursor; cursor == "" {
			return nodes
		}
	}
}

// usesLeft returns the uses that each token of the pool has left.
func usesLeft(t *testing.T, f *fleet.Plane) map[string]int64 {
	t.Helper()
	var page httpapi.List[httpapi.ListedJoinToken]
	request := httpapi.ListJoinTokens{TenantID: f.Tenant, PoolID: f.Pool, IncludeInactive: true}
	if err := f.API.Call(t.Context(), "joinTokens.list", request, &page); err != nil {
		t.Fatal(err)
	}
	left := map[string]int64{}
	for _, token := range page.Items {
		left[token.ID] = token.UsesLeft
	}
	return left
}

// Req: JT-001 JF-022 RF-018
func TestManyMachinesRaceForOneToken(t *testing.T) {
	t.Parallel()
	const machines, uses = 64, 10
	f := startPlane(t, build(t, "./cmd/better-compute"), environment()).connect()
	token, err := f.NewToken(t.Context(), uses, nil)
	if err != nil {
		t.Fatal(err)
	}
	var joined, refused atomic.Int64
	var race sync.WaitGroup
	begin := make(chan struct{})
	for range machines {
		m, err := fleet.NewMachine()
		if err != nil {
			t.Fatal(err)
		}
		race.Go(func() {
			<-begin
			switch _, err := f.Join(t.Context(), m, token.Token, nil); {
			case err == nil:
				joined.Add(1)
			case fault.Is(err, fault.AccessDenied):
				refused.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	close(begin)
	race.Wait()
	if joined.Load() != uses || refused.Load() != machines-uses {
		t.Errorf("%d joined and %d were refused, want %d and %d", joined.Load(), refused.Load(), uses, machines-uses)
	}
	if nodes := nodesOf(t, f); len(nodes) != uses {
		t.Errorf("%d nodes, want %d", len(nodes), uses)
	}
	if left := usesLeft(t, f)[token.ID]; left != 0 {
		t.Errorf("%d uses left, want 0", left)
	}
}

// A thousand machines join while the control plane is killed again and again. Whatever was under way, each machine ends as
// one node that its request gets again, and each token has spent what was taken of it.
//
// Req: JF-028 RF-028
func TestJoinsOutliveAControlPlaneThatIsKilled(t *testing.T) {
	t.Parallel()
	const machines, tokens, uses, clients = 1000, 40, 26, 16
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	f := p.connect()
	var made []httpapi.CreatedJoinToken
	for range tokens {
		token, err := f.NewToken(t.Context(), uses, nil)
		if err != nil {
			t.Fatal(err)
		}
		made = append(made, token)
	}

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	fleetOf := make([]*fleet.Machine, machines)
	nodes := make([]string, machines)
	var next atomic.Int64
	var joins sync.WaitGroup
	for range clients {
		joins.Go(func() {
			for i := next.Add(1) - 1; i < machines && ctx.Err() == nil; i = next.Add(1) - 1 {
				m, err := fleet.NewMachine()
				if err != nil {
					cancel(err)
					return
				}
				fleetOf[i] = m
				if nodes[i], err = joinUntilAnswered(ctx, f, m, made[i%tokens].Token); err != nil {
					cancel(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { joins.Wait(); close(done) }()
	kills := 0
	for running, killAt := true, int64(0); running; {
		select {
		case <-done:
			running = false
		case <-time.After(rand.N(10 * time.Millisecond)): // so that the kill falls anywhere in a join
			if next.Load() > killAt {
				p.restart()
				kills++
				killAt = next.Load() + 50 + rand.Int64N(100)
			}
		}
	}
	if err := context.Cause(ctx); err != nil {
		t.Fatal(err)
	}
	if kills < 5 {
		t.Errorf("the control plane was killed %d times only", kills)
	}

	found := nodesOf(t, f)
	if len(found) != machines {
		t.Errorf("%d nodes, want %d", len(found), machines)
	}
	for i, id := range nodes {
		if n, ok := found[id]; !ok || n.State != "adopted" || n.IdentityGeneration != 1 {
			t.Errorf("machine %d is %q: %+v", i, id, n)
		}
		delete(found, id) // a second machine with the same node finds none
	}
	want := map[string]int64{}
	for i, token := range made {
		taken := machines / tokens
		if i < machines%tokens {
			taken++
		}
		want[token.ID] = int64(uses - taken)
	}
	for range 2 { // the repeats spend nothing
		for id, left := range usesLeft(t, f) {
			if left != want[id] {
				t.Errorf("token %s has %d uses left, want %d", id, left, want[id])
			}
		}
		for i := range 20 {
			again, err := f.Join(t.Context(), fleetOf[i], made[i%tokens].Token, nil)
			if err != nil || again.Node != nodes[i] {
				t.Errorf("machine %d asked again: %q, %v, want %q", i, again.Node, err, nodes[i])
			}
		}
	}
}

// joinUntilAnswered sends the machine's request again while its answer gets lost, as bcd does.
func joinUntilAnswered(ctx context.Context, f *fleet.Plane, m *fleet.Machine, token string) (node string, err error) {
	for {
		answer, err := f.Join(ctx, m, token, nil)
		if err == nil && answer.Node == "" {
			err = errors.New("the answer admits nobody")
		}
		if !fault.Is(err, fault.Unreachable) {
			return answer.Node, err
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

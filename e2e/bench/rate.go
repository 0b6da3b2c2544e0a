package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/better-compute/bcd/e2e/fleet"
	"github.com/better-compute/bcd/internal/fault"
)

const (
	rateRuns  = 5
	rateFor   = 3 * time.Second
	rateWarm  = time.Second
	tokenUses = 10_000 // the most that a token has: more than one run takes
	// mostLost is how many connections may be lost in a run, on a machine that is too busy to answer in time.
	mostLost = 100
)

// load is one run of a number of clients.
type load struct {
	rate      float64   // joins a second
	serverCPU float64   // ms a join, the control plane's process: gateway, JoinService and database
	clientCPU float64   // ms a join, the clients
	latencies []float64 // ms
	lost      int       // connections
}

// measureRates has clients join new machines as fast as they can. Each join has a TLS connection of its own to the
// gateway, which relays to JoinService; the clients' own work, on the same CPUs, is part of the time.
func measureRates(ctx context.Context, b *bench) error {
	t := newTable(b.out, fmt.Sprintf("Joins of new machines, through the gateway, a TLS connection each (%d runs of %s, clients on the same CPUs)", rateRuns, rateFor))
	lost := 0
	for _, c := range []struct {
		clients       int
		peer, peerCPU float64
	}{{1, peerRate1, peerRate1CPU}, {16, peerRate16, peerRate16CPU}} {
		if _, err := b.server.load(ctx, c.clients, rateWarm); err != nil {
			return err
		}
		var rates, cpu, clientCPU, latencies []float64
		for range rateRuns {
			l, err := b.server.load(ctx, c.clients, rateFor)
			if err != nil {
				return err
			}
			rates, cpu, latencies = append(rates, l.rate), append(cpu, l.serverCPU), append(latencies, l.latencies...)
			clientCPU = append(clientCPU, l.clientCPU)
			lost += l.lost
		}
		name := "1 client"
		if c.clients > 1 {
			name = fmt.Sprintf("%d clients", c.clients)
		}
		t.add(figure{name: name, unit: "joins/s", samples: rates, aim: 2 * c.peer, more: true, peer: c.peer})
		t.add(figure{name: "a join takes", unit: "ms", samples: latencies})
		t.add(figure{name: "CPU time of the control plane", unit: "ms/join", samples: cpu, peer: c.peerCPU})
		t.add(figure{name: "CPU time of the clients", unit: "ms/join", samples: clientCPU})
	}
	if err := t.flush(); err != nil {
		return err
	}
	fmt.Fprintln(b.out, "Commits are durable: SQLite in WAL mode with synchronous=FULL, the default and only mode; an admission is on the\n"+
		"disk before it is answered. Admissions that arrive together share a commit.")
	if lost > 0 {
		fmt.Fprintf(b.out, "%d joins lost their connection and were made again, as bcd does; their time counts.\n", lost)
	}
	return nil
}

// load runs clients for a while.
func (c *controlPlane) load(ctx context.Context, clients int, d time.Duration) (load, error) {
	token, err := c.NewToken(ctx, tokenUses, nil)
	if err != nil {
		return load{}, err
	}
	before, err := usageOf(c.process.Process.Pid)
	if err != nil {
		return load{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ownBefore, err := ownCPU()
	if err != nil {
		return load{}, err
	}
	var mu sync.Mutex
	var l load
	var work sync.WaitGroup
	begun := time.Now()
	for range clients {
		work.Go(func() {
			var own []float64
			lost := 0
			for time.Since(begun) < d && ctx.Err() == nil {
				started := time.Now()
				err := c.joinNew(ctx, token.Token)
				if fault.Is(err, fault.Unreachable) && lost < mostLost {
					lost++
					continue
				}
				if err != nil {
					cancel(fmt.Errorf("a join failed: %w", err))
					return
				}
				own = append(own, milliseconds(time.Since(started)))
			}
			mu.Lock()
			defer mu.Unlock()
			l.latencies = slices.Concat(l.latencies, own)
			l.lost += lost
		})
	}
	work.Wait()
	took := time.Since(begun)
	if err := context.Cause(ctx); err != nil {
		return load{}, err
	}
	after, err := usageOf(c.process.Process.Pid)
	if err != nil {
		return load{}, err
	}
	ownAfter, err := ownCPU()
	if err != nil {
		return load{}, err
	}
	if len(l.latencies) == 0 {
		return load{}, errors.New("no join ended in time")
	}
	n := float64(len(l.latencies))
	l.rate, l.serverCPU, l.clientCPU = n/took.Seconds(), milliseconds(after.cpu-before.cpu)/n, milliseconds(ownAfter-ownBefore)/n
	return l, nil
}

// joinNew joins a machine that nobody has seen before.
func (c *controlPlane) joinNew(ctx context.Context, token string) error {
	m, err := fleet.NewMachine()
	if err != nil {
		return err
	}
	_, err = c.Join(ctx, m, token, nil)
	return err
}

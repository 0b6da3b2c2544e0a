package main

import (
	"context"
	"fmt"
	"time"
)

const (
	coldJoins = 25
	// between joins, the file system and the control plane finish what the last one left them to do.
	betweenJoins = 100 * time.Millisecond
)

// measureColdJoins joins machines, one after the other, each with a fresh data directory and its key in a file.
func measureColdJoins(ctx context.Context, b *bench) error {
	token, err := b.server.NewToken(ctx, coldJoins+1, nil)
	if err != nil {
		return err
	}
	var took, cpu, start, startCPU []float64
	for i := range coldJoins + 1 {
		m, err := b.newMachine(fmt.Sprintf("cold-%d", i))
		if err != nil {
			return err
		}
		j, err := b.joinWith(ctx, m, token.Token)
		if err != nil {
			return err
		}
		if i > 0 { // the first reads the program from the disk
			took, cpu = append(took, milliseconds(j.took)), append(cpu, milliseconds(j.cpu))
		}
		v, err := b.version(ctx)
		if err != nil {
			return err
		}
		start, startCPU = append(start, milliseconds(v.took)), append(startCPU, milliseconds(v.cpu))
		if err := pause(ctx, betweenJoins); err != nil {
			return err
		}
	}
	t := newTable(b.out, fmt.Sprintf("A cold join, from exec to exit (%d joins, key file, loopback)", coldJoins))
	t.add(figure{name: "time", unit: "ms", samples: took, aim: 40, peer: peerColdJoin})
	t.add(figure{name: "CPU time of bcd", unit: "ms", samples: cpu})
	t.add(figure{name: "for comparison: bcd version", unit: "ms", samples: start})
	t.add(figure{name: "its CPU time", unit: "ms", samples: startCPU})
	return t.flush()
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

package joinservice_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// BenchmarkJoin admits new machines with durable commits, from 1 and from 16 clients. The machines' own work (keys,
// seals, signatures) is done before the clock runs.
func BenchmarkJoin(b *testing.B) {
	for _, clients := range []int{1, 16} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			w := newWorld(b)
			tok := w.token(uses(tokens.MaxUses))
			requests := make([]*joinv1.JoinRequest, b.N)
			for i := range requests {
				if i%tokens.MaxUses == tokens.MaxUses-1 {
					tok = w.token(uses(tokens.MaxUses))
				}
				requests[i] = w.request(newMachine(b), tok)
			}
			var next atomic.Int64
			done := make(chan error, clients)
			b.ResetTimer()
			for range clients {
				go func() {
					for i := next.Add(1) - 1; i < int64(b.N); i = next.Add(1) - 1 {
						if _, err := w.svc.Join(context.Background(), requests[i]); err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
			}
			for range clients {
				if err := <-done; err != nil {
					b.Error(err)
				}
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "joins/s")
		})
	}
}

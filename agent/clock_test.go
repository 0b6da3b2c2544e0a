package agent_test

import (
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
)

// bench is a machine whose wall clock can be set.
type bench struct {
	now time.Time
	up  time.Duration
}

func (b *bench) pass(d time.Duration) { b.now, b.up = b.now.Add(d), b.up+d }
func (b *bench) set(d time.Duration)  { b.now = b.now.Add(d) }

func TestClock(t *testing.T) {
	type learn = func(b *bench, c *agent.Clock)
	signed := func(d time.Duration) learn { return func(b *bench, c *agent.Clock) { c.Signed(b.now.Add(d)) } }
	hint := func(d time.Duration) learn { return func(b *bench, c *agent.Clock) { c.Hint(b.now.Add(d)) } }
	pass := func(d time.Duration) learn { return func(b *bench, _ *agent.Clock) { b.pass(d) } }
	set := func(d time.Duration) learn { return func(b *bench, _ *agent.Clock) { b.set(d) } }
	for name, c := range map[string]struct {
		learn  []learn
		want   time.Duration
		known  bool
		server time.Duration // what is due is judged by
		proofs []time.Duration
	}{
		"nothing is known":                 {nil, 0, false, 0, []time.Duration{0, 0}},
		"signed":                           {[]learn{signed(40 * time.Hour)}, 40 * time.Hour, true, 40 * time.Hour, []time.Duration{40 * time.Hour, 0, 40 * time.Hour}},
		"a hint":                           {[]learn{hint(time.Hour)}, time.Hour, true, time.Hour, []time.Duration{time.Hour, 0, time.Hour}},
		"a hint puts nothing off":          {[]learn{hint(-time.Hour)}, -time.Hour, true, 0, []time.Duration{-time.Hour, 0}},
		"a hint is bounded":                {[]learn{hint(25 * time.Hour)}, 0, false, 0, []time.Duration{0}},
		"a bounded hint stays":             {[]learn{hint(time.Hour), hint(25 * time.Hour)}, time.Hour, true, time.Hour, nil},
		"a hint against the signed time":   {[]learn{signed(time.Minute), hint(20 * time.Hour), pass(9 * time.Hour)}, time.Minute, true, time.Minute, []time.Duration{time.Minute, 20 * time.Hour, 0, time.Minute}},
		"a hint before the signed time":    {[]learn{hint(time.Hour), signed(time.Second)}, time.Second, true, time.Second, nil},
		"the clock was set, then a hint":   {[]learn{signed(time.Hour), set(time.Hour), hint(time.Second)}, time.Second, true, time.Second, []time.Duration{time.Second, 0}},
		"the clock was set, no hint":       {[]learn{signed(time.Hour), set(time.Hour)}, time.Hour, true, 0, []time.Duration{time.Hour, 0}},
		"a second of drift is no setting":  {[]learn{signed(time.Hour), set(time.Second), hint(time.Minute)}, time.Hour, true, time.Hour, nil},
		"set, and signed again after that": {[]learn{signed(time.Hour), set(time.Hour), hint(time.Minute), signed(time.Second)}, time.Second, true, time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := &bench{now: time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)}
			clock := agent.NewClockUp(func() time.Time { return b.now }, func() time.Duration { return b.up })
			for _, learn := range c.learn {
				learn(b, clock)
			}
			got, known := clock.Offset()
			if got != c.want || known != c.known {
				t.Errorf("offset %s, known %v; want %s, %v", got, known, c.want, c.known)
			}
			if got := clock.Server().Sub(b.now); got != c.server {
				t.Errorf("server time %s off, want %s", got, c.server)
			}
			for refusals, want := range c.proofs {
				if got := clock.Proof(refusals).Sub(b.now); got != want {
					t.Errorf("proof after %d refusals %s off, want %s", refusals, got, want)
				}
			}
		})
	}
}

// A wall clock has no monotonic reading: that one stands still while the machine is suspended.
func TestClockIsTheWallClock(t *testing.T) {
	clock := agent.NewClock(time.Now)
	if got := clock.Local(); got != got.Round(0) {
		t.Errorf("%v has a monotonic reading", got)
	}
}

func TestBackoff(t *testing.T) {
	var b agent.Backoff
	for i, ceiling := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		if got := b.Next(); got < 0 || got > ceiling*time.Second {
			t.Errorf("wait %d is %s, at most %d s", i, got, ceiling)
		}
	}
	b.Reset()
	if got := b.Next(); got > time.Second {
		t.Errorf("after the reset %s", got)
	}
}

// The waits are spread: a fleet that lost its gateway does not come back as one.
func TestBackoffIsSpread(t *testing.T) {
	seen := map[time.Duration]bool{}
	for range 100 {
		b := agent.Backoff{}
		seen[b.Next().Round(10*time.Millisecond)] = true
	}
	if len(seen) < 20 {
		t.Errorf("100 first waits have %d values", len(seen))
	}
}

// Who waits for a moment is told when the clock turns out to be wrong.
func TestClockTellsOfAChange(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	clock := agent.NewClock(func() time.Time { return now })
	told := func() bool {
		select {
		case <-clock.Changed():
			return true
		default:
			return false
		}
	}
	clock.Hint(now.Add(time.Second))
	if told() {
		t.Error("told of a second")
	}
	clock.Hint(now.Add(time.Hour))
	if !told() || told() {
		t.Error("not told once of an hour")
	}
	clock.Signed(now)
	if !told() {
		t.Error("not told that it was no hour")
	}
	clock.Hint(now.Add(time.Hour))
	if told() {
		t.Error("told of a hint that counts no more")
	}
}

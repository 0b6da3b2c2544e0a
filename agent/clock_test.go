package agent_test

import (
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
)

func TestClock(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	at := func(d time.Duration) time.Time { return now.Add(d) }
	for name, c := range map[string]struct {
		learn func(*agent.Clock)
		want  time.Duration
		known bool
	}{
		"nothing is known":                   {func(*agent.Clock) {}, 0, false},
		"signed":                             {func(c *agent.Clock) { c.Signed(at(40 * time.Hour)) }, 40 * time.Hour, true},
		"a hint":                             {func(c *agent.Clock) { c.Hint(at(-time.Hour)) }, -time.Hour, true},
		"a hint is bounded":                  {func(c *agent.Clock) { c.Hint(at(25 * time.Hour)) }, 0, false},
		"a hint that agrees changes nothing": {func(c *agent.Clock) { c.Signed(at(time.Minute)); c.Hint(at(80 * time.Second)) }, time.Minute, true},
		"a hint after the clock was set":     {func(c *agent.Clock) { c.Signed(at(time.Hour)); c.Hint(at(time.Second)) }, time.Second, true},
		"signed again":                       {func(c *agent.Clock) { c.Hint(at(time.Hour)); c.Signed(at(time.Second)) }, time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			clock := agent.NewClock(func() time.Time { return now })
			c.learn(clock)
			got, known := clock.Offset()
			if got != c.want || known != c.known {
				t.Errorf("offset %s, known %v; want %s, %v", got, known, c.want, c.known)
			}
			if want := now.Add(c.want); !clock.Server().Equal(want) {
				t.Errorf("server time %s, want %s", clock.Server(), want)
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
	clock.Signed(now.Add(time.Second))
	if told() {
		t.Error("told of a second")
	}
	clock.Hint(now.Add(time.Hour))
	if !told() || told() {
		t.Error("not told once of an hour")
	}
}

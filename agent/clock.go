package agent

import (
	"sync"
	"time"
)

const (
	// maxHintedOffset bounds what an unsigned clock may change.
	maxHintedOffset = 24 * time.Hour
	// agreeWithin is how far two clocks may be apart and still agree.
	agreeWithin = 30 * time.Second
)

// clock is this machine's wall clock and what is known of its offset from the control plane's.
//
// The signed time of an answer decides until this machine's clock is set, or the machine was suspended. Before and after
// that there are only hints: a gateway whose own clock is wrong, or that lies, gives wrong ones. So a hint can bring a
// renewal forward and never put it off, and a proof of time that was refused is made again with another offset.
type clock struct {
	now    func() time.Time
	uptime func() time.Duration

	mu     sync.Mutex
	signed *measured
	hint   *measured
	// changed has a value when the control plane's time turned out to be another one by more than agreeWithin.
	changed chan struct{}
}

// measured is the control plane's clock minus this machine's, at the moment at which it was told.
type measured struct {
	offset time.Duration
	local  time.Time
	uptime time.Duration
}

func newClock(now func() time.Time) *clock {
	start := time.Now() // only for its monotonic reading, which nobody sets
	return &clock{now: now, uptime: func() time.Duration { return time.Since(start) }, changed: make(chan struct{}, 1)}
}

// Changed has a value after the control plane's time changed by much: who waits for a moment of it looks again.
func (c *clock) Changed() <-chan struct{} { return c.changed }

// Local returns the machine's wall clock, without the monotonic reading: that one stands still in suspend.
func (c *clock) Local() time.Time { return c.now().Round(0) }

// Server returns the control plane's time as far as it is known, for what is due at a moment of it: never earlier than
// the machine's clock where only a hint says so.
func (c *clock) Server() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.Local().Add(c.ahead())
}

// ahead is how far the control plane's time is ahead of the machine's clock, for what is due.
func (c *clock) ahead() time.Duration {
	switch {
	case c.trusted():
		return c.signed.offset
	case c.hint != nil:
		return max(0, c.hint.offset)
	default:
		return 0
	}
}

// Proof returns the control plane's time for a proof that it judges within a minute: the best guess first, then another
// one after each refusal.
func (c *clock) Proof(refusals int) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	guesses := []time.Duration{0}
	best := c.best()
	if c.hint != nil && c.hint != best {
		guesses = append([]time.Duration{c.hint.offset}, guesses...)
	}
	if best != nil {
		guesses = append([]time.Duration{best.offset}, guesses...)
	}
	return c.Local().Add(guesses[refusals%len(guesses)])
}

// Offset returns what must be added to the machine's clock, and whether anything is known of it.
func (c *clock) Offset() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if best := c.best(); best != nil {
		return best.offset, true
	}
	return 0, false
}

// Signed takes the time of a verified answer that has just arrived.
func (c *clock) Signed(server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.learn(&c.signed, c.measure(server))
}

// Hint takes an unsigned time that has just arrived.
func (c *clock) Hint(server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.measure(server); m.offset.Abs() <= maxHintedOffset {
		c.learn(&c.hint, m)
	}
}

// learn takes what was measured, and tells who waits where that changes much.
func (c *clock) learn(what **measured, m *measured) {
	before := c.ahead()
	*what = m
	if (c.ahead() - before).Abs() > agreeWithin {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

func (c *clock) measure(server time.Time) *measured {
	local := c.Local()
	return &measured{offset: server.Sub(local), local: local, uptime: c.uptime()}
}

// best returns the offset that is most likely right, nil where there is none.
func (c *clock) best() *measured {
	if c.trusted() || c.hint == nil {
		return c.signed
	}
	return c.hint
}

// trusted reports whether the signed offset still holds: this machine's clock has gone on as time has.
func (c *clock) trusted() bool {
	if c.signed == nil {
		return false
	}
	went := c.Local().Sub(c.signed.local)
	return (went - (c.uptime() - c.signed.uptime)).Abs() <= agreeWithin
}

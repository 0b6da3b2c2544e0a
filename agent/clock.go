package agent

import (
	"sync"
	"time"
)

const (
	// maxHintedOffset bounds what an unsigned clock may change.
	maxHintedOffset = 24 * time.Hour
	// agreeWithin is how far a hint may be from the signed offset and still confirm it.
	agreeWithin = 30 * time.Second
)

// clock is this machine's wall clock and what is known of its offset from the control plane's.
//
// The signed time of an answer counts most. A later hint that disagrees with it means that this machine's clock was set
// since, and counts then; a gateway that lies can so only spoil the node's proofs of time, which is to deny service.
type clock struct {
	now func() time.Time

	mu     sync.Mutex
	offset time.Duration
	signed bool
	known  bool
	// changed has a value when the offset changed by more than agreeWithin.
	changed chan struct{}
}

func newClock(now func() time.Time) *clock { return &clock{now: now, changed: make(chan struct{}, 1)} }

// Changed has a value after the offset changed by much: who waits for a moment of the control plane's time looks again.
func (c *clock) Changed() <-chan struct{} { return c.changed }

// set takes a new offset. The caller holds the lock.
func (c *clock) set(offset time.Duration, signed bool) {
	if (offset - c.offset).Abs() > agreeWithin {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	c.offset, c.signed, c.known = offset, signed, true
}

// Local returns the machine's wall clock, without the monotonic reading: that one stands still in suspend.
func (c *clock) Local() time.Time { return c.now().Round(0) }

// Server returns the control plane's time as far as it is known.
func (c *clock) Server() time.Time {
	offset, _ := c.Offset()
	return c.Local().Add(offset)
}

// Offset returns what must be added to the machine's clock, and whether anything is known of it.
func (c *clock) Offset() (time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset, c.known
}

// Signed takes the time of a verified answer that has just arrived.
func (c *clock) Signed(server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.set(server.Sub(c.Local()), true)
}

// Hint takes an unsigned time that has just arrived.
func (c *clock) Hint(server time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	offset := server.Sub(c.Local())
	if offset.Abs() > maxHintedOffset {
		return
	}
	if c.signed && (offset-c.offset).Abs() <= agreeWithin {
		return
	}
	c.set(offset, false)
}

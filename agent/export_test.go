package agent

import "time"

// Clock is the clock, for its tests.
type Clock = clock

// NewClock returns a clock.
var NewClock = newClock

// Backoff is the waits between sessions, for its tests.
type Backoff = backoff

// Next returns the next wait.
func (b *backoff) Next() time.Duration { return b.next() }

// Reset starts again.
func (b *backoff) Reset() { b.reset() }

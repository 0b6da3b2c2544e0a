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

// SetAfterSession sets the longest wait after a session, until the function that it returns is called.
func SetAfterSession(d time.Duration) (restore func()) { return set(&afterSession, d) }

// SetParkedLook sets how often a parked node looks at the identity on disk.
func SetParkedLook(d time.Duration) (restore func()) { return set(&parkedLook, d) }

func set(v *time.Duration, d time.Duration) func() {
	old := *v
	*v = d
	return func() { *v = old }
}

// SerialText is how a certificate's serial is spelled.
var SerialText = serialText

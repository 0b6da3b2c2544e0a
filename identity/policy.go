package identity

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"
)

// The renewal policy's numbers.
const (
	renewFraction  = 0.60
	jitterFraction = 0.05

	retryFirst = 30 * time.Second
	retryMost  = 10 * time.Minute
	retryLeast = 500 * time.Millisecond
	// retryShare of the life that is left is the most that a retry waits, so that several fit into a short certificate's
	// end.
	retryShare = 8

	startSpread = time.Minute
	// hurry is the life left under which an overdue renewal waits for nothing at start.
	hurry = time.Hour

	// MaxSleep bounds how long a wait for a moment may go without a look at the wall clock: timers stop while a machine
	// is suspended.
	MaxSleep = 30 * time.Second
)

// Schedule says when a certificate is renewed. All times are the server's; the caller corrects its own clock.
type Schedule struct {
	// RenewAt is when the first try is due.
	RenewAt time.Time
	// NotAfter is when the certificate ends.
	NotAfter time.Time
}

// ScheduleOf returns the schedule of the identity's certificate: 60 % of the time from the answer that carried it to its
// end, minus up to 5 % of that time. The jitter is drawn from the certificate itself, so it is the same after every
// restart and differs between machines.
func ScheduleOf(id *Identity) Schedule {
	leaf := id.Leaf()
	start, end := id.IssuedAt, leaf.NotAfter
	if start.Before(leaf.NotBefore) || !start.Before(end) {
		start = leaf.NotBefore
	}
	hash := sha256.Sum256(leaf.Raw)
	jitter := float64(binary.BigEndian.Uint64(hash[:8])) / math.MaxUint64
	fraction := renewFraction - jitterFraction*jitter
	return Schedule{
		RenewAt:  start.Add(time.Duration(fraction * float64(end.Sub(start)))).UTC(),
		NotAfter: end.UTC(),
	}
}

// Left returns the life that is left, not below 0.
func (s Schedule) Left(now time.Time) time.Duration { return max(0, sub(s.NotAfter, now)) }

// First returns when the first try is due for a daemon that starts at now. A try that is overdue waits up to a minute,
// so that a site which comes back from a power cut does not renew as one; with less than an hour of life left it does
// not wait. random is uniform in [0, 1).
func (s Schedule) First(now time.Time, random float64) time.Time {
	now = now.Round(0)
	if now.Before(s.RenewAt) {
		return s.RenewAt
	}
	if s.Left(now) < hurry {
		return now
	}
	return now.Add(time.Duration(random * float64(startSpread)))
}

// Retry returns when to try again after the given number of failures (1 is the first): up to 30 s, doubling to 10 min,
// with full jitter; sooner where little life is left. It goes on after the end: the local clock may be wrong, and the
// server decides. random is uniform in [0, 1).
func (s Schedule) Retry(now time.Time, failures int, random float64) time.Time {
	ceiling := retryMost
	if doublings := failures - 1; doublings < 5 { // 30 s doubled 5 times is over 10 min
		ceiling = min(retryMost, retryFirst<<max(0, doublings))
	}
	if left := s.Left(now); left > 0 {
		ceiling = min(ceiling, left/retryShare)
	}
	return now.Round(0).Add(max(retryLeast, time.Duration(random*float64(ceiling))))
}

// Sleep returns how long to wait at now before looking at the clock again for due.
func Sleep(now, due time.Time) time.Duration { return min(max(0, sub(due, now)), MaxSleep) }

// sub compares wall clocks. A monotonic reading would leave out the time that the machine was suspended.
func sub(a, b time.Time) time.Duration { return a.Round(0).Sub(b.Round(0)) }

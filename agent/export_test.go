package agent

import (
	"context"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
)

// Clock is the clock, for its tests.
type Clock = clock

// NewClock returns a clock.
var NewClock = newClock

// NewClockUp returns a clock of a machine whose wall clock can be set while its uptime goes on.
func NewClockUp(now func() time.Time, uptime func() time.Duration) *Clock {
	c := newClock(now)
	c.uptime = uptime
	return c
}

// StatusOf is what the service manager hears of a status.
func StatusOf(n Notifier, status string) { n.status(status) }

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

// Ignoring returns what takes the frames of one session.
func (a *Agent) Ignoring() func(*daemonv1.GatewayFrame) error { return (&node{Agent: a}).ignoring() }

// AskAgain is how long a join waits that was deferred for seconds.
var AskAgain = askAgain

// SleepWall is how a join waits.
func (a *Agent) SleepWall(ctx context.Context, d time.Duration) error { return a.sleepWall(ctx, d) }

// SetVouchAnswer sets how long a vouch may go unanswered.
func SetVouchAnswer(d time.Duration) (restore func()) { return set(&vouchAnswer, d) }

// SetVouchDeadline sets how long who asks for a vouch waits.
func SetVouchDeadline(d time.Duration) (restore func()) { return set(&vouchDeadline, d) }

// MaxVouches is how many vouches are kept.
const MaxVouches = maxVouches

// Vouches are the vouches that wait, for their tests.
type Vouches struct{ q *vouches }

// NewVouches returns none.
func NewVouches() Vouches { return Vouches{newVouches()} }

// Add keeps a vouch. settled returns whether it is settled, and why it is not recorded.
func (v Vouches) Add(mac string, epoch uint64) (settled func() (bool, error), err error) {
	w, err := v.q.add(mac, epoch)
	if err != nil {
		return nil, err
	}
	return func() (bool, error) {
		select {
		case <-w.settled:
			return true, w.err
		default:
			return false, nil
		}
	}, nil
}

// Next returns the MAC and the epoch of the vouch to send.
func (v Vouches) Next() (mac string, epoch uint64) {
	w, _ := v.q.next()
	if w == nil {
		return "", 0
	}
	return w.mac, w.epoch
}

// PutOffNext lets the others go before the next one, SettleNext ends the wait for it.
func (v Vouches) PutOffNext() { w, _ := v.q.next(); v.q.putOff(w) }

// SettleNext ends the wait for the next one.
func (v Vouches) SettleNext(err error) { w, _ := v.q.next(); v.q.settle(w, err) }

// Count returns how many wait.
func (v Vouches) Count() int { return v.q.count() }

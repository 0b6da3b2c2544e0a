package agent

import (
	"math/rand/v2"
	"time"
)

// Pauses between sessions. A gateway that restarts must not meet its whole fleet in one second.
const (
	// afterOwnChange is the longest wait after this node's own renewal.
	afterOwnChange = 2 * time.Second
	// firstRetry and lastRetry bound the exponential backoff.
	firstRetry = time.Second
	lastRetry  = time.Minute
	// healthyAfter is how long a session must live to count as healthy again.
	healthyAfter = time.Minute
	// parkAtLeast and parkAtMost bound the pause of a parked node.
	parkAtLeast = 5 * time.Minute
	parkAtMost  = 10 * time.Minute
)

// Two pauses are variables for the tests' sake.
var (
	// afterSession is the longest wait after an established session ended.
	afterSession = 30 * time.Second
	// parkedLook is how often a parked node looks whether it has another identity.
	parkedLook = 5 * time.Second
)

// uniform returns a random duration between 0 and limit.
func uniform(limit time.Duration) time.Duration {
	if limit <= 0 {
		return 0
	}
	return rand.N(limit)
}

// backoff is full-jitter exponential backoff: each wait is uniform between 0 and a ceiling that doubles.
type backoff struct {
	ceiling time.Duration
}

func (b *backoff) next() time.Duration {
	b.ceiling = min(max(2*b.ceiling, firstRetry), lastRetry)
	return uniform(b.ceiling)
}

func (b *backoff) reset() { b.ceiling = 0 }

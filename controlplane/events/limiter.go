package events

import (
	"sync"
	"time"
)

// Limits of the events that report refusals.
const (
	// RefusalsPerWindow is how many refusals of one kind are published in a [RefusalWindow].
	RefusalsPerWindow = 60
	// RefusalWindow is the window that RefusalsPerWindow counts in. It starts with the first refusal in it.
	RefusalWindow = time.Minute
	// idleWindows is how many windows a kind is remembered without a refusal, so that the memory stays bounded.
	idleWindows = 60
	// maxKinds bounds the memory. Kinds are made of tenants, attestors and reasons, never of a caller's text.
	maxKinds = 100_000
)

// Kind is what refusals are counted by. The receiving tenant is in it so that one tenant cannot silence another.
type Kind struct {
	Tenant, Attestor, Reason string
}

// Limiter limits the events that report refusals, per process and in memory. Its zero value is ready.
type Limiter struct {
	mu    sync.Mutex
	kinds map[Kind]*window
}

type window struct {
	start      time.Time
	published  int
	suppressed int64
}

// Allow reports whether a refusal of the kind at the time may be published, and if so how many were suppressed since
// the last one that was published.
func (l *Limiter) Allow(k Kind, now time.Time) (suppressed int64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.kinds[k]
	if w == nil {
		l.forgetIdle(now)
		if l.kinds == nil {
			l.kinds = make(map[Kind]*window)
		}
		w = &window{start: now}
		l.kinds[k] = w
	}
	if d := now.Sub(w.start); d >= RefusalWindow || d < 0 {
		w.start, w.published = now, 0
	}
	if w.published >= RefusalsPerWindow {
		w.suppressed++
		return 0, false
	}
	w.published++
	suppressed, w.suppressed = w.suppressed, 0
	return suppressed, true
}

// forgetIdle makes room when the memory is full. It keeps kinds that still owe a count of suppressed refusals, unless
// they are idle too.
func (l *Limiter) forgetIdle(now time.Time) {
	if len(l.kinds) < maxKinds {
		return
	}
	for k, w := range l.kinds {
		if now.Sub(w.start) >= idleWindows*RefusalWindow {
			delete(l.kinds, k)
		}
	}
}

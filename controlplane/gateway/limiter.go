package gateway

import (
	"container/list"
	"net/netip"
	"sync"
	"time"
)

// maxSources bounds the memory of a limiter: about 10 MiB. Beyond it the source that was refused longest ago is
// forgotten; who owns that many addresses gains nothing from one more fresh start.
const maxSources = 1 << 16

// source is an IPv4 address or an IPv6 /64, which is what one customer has.
type source netip.Prefix

func sourceOfAddress(ip netip.Addr) source {
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	p, err := ip.Prefix(bits)
	if err != nil { // no address at all: one source for all of those
		return source{}
	}
	return source(p)
}

// limiter is a token bucket for each source. A refused call takes a token after the fact; while a source has none, its
// calls are not made. It is safe for concurrent use.
type limiter struct {
	rate, burst float64 // tokens per second, tokens
	now         func() time.Time
	max         int

	mu      sync.Mutex
	buckets map[source]*list.Element // of *bucket
	order   *list.List               // the source charged last is at the front
}

type bucket struct {
	source source
	tokens float64
	at     time.Time // when tokens was right
}

func newLimiter(rate, burst float64, now func() time.Time) *limiter {
	return &limiter{rate: rate, burst: burst, now: now, max: maxSources, buckets: map[source]*list.Element{}, order: list.New()}
}

// wait returns how long the source must wait before its next call, zero when it need not.
func (l *limiter) wait(s source) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, found := l.buckets[s]
	if !found {
		return 0
	}
	b := e.Value.(*bucket)
	l.refill(b)
	switch {
	case b.tokens >= l.burst:
		l.forget(e)
		return 0
	case b.tokens >= 1:
		return 0
	}
	return max(time.Duration((1-b.tokens)/l.rate*float64(time.Second)), time.Millisecond)
}

// charge takes a token for a refused call. Calls that were under way together may put the source into debt, by a burst
// at most.
func (l *limiter) charge(s source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, found := l.buckets[s]
	if found {
		l.order.MoveToFront(e)
	} else {
		e = l.order.PushFront(&bucket{source: s, tokens: l.burst, at: l.now()})
		l.buckets[s] = e
	}
	b := e.Value.(*bucket)
	l.refill(b)
	b.tokens = max(b.tokens-1, -l.burst)
	for len(l.buckets) > l.max {
		l.forget(l.order.Back())
	}
}

func (l *limiter) refill(b *bucket) {
	now := l.now()
	if elapsed := now.Sub(b.at); elapsed > 0 {
		b.tokens = min(b.tokens+elapsed.Seconds()*l.rate, l.burst)
	}
	b.at = now
}

func (l *limiter) forget(e *list.Element) {
	delete(l.buckets, e.Value.(*bucket).source)
	l.order.Remove(e)
}

package gateway_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/gateway"
)

func TestRefusedCallsOfOneSourceAreLimited(t *testing.T) {
	at := time.Unix(0, 0)
	l := gateway.NewLimiter(20, 200, 1000, func() time.Time { return at })
	for i := range 200 {
		if w := l.Wait("192.0.2.1"); w != 0 {
			t.Fatalf("call %d waits %v", i, w)
		}
		l.Charge("192.0.2.1")
	}
	if w := l.Wait("192.0.2.1"); w != 50*time.Millisecond {
		t.Errorf("after the burst: wait %v, want 50ms, a twentieth of a second", w)
	}
	if w := l.Wait("192.0.2.2"); w != 0 {
		t.Errorf("another address waits %v", w)
	}
	at = at.Add(50 * time.Millisecond)
	if w := l.Wait("192.0.2.1"); w != 0 {
		t.Errorf("after the wait that was named: still %v", w)
	}
	at = at.Add(time.Hour)
	if l.Wait("192.0.2.1") != 0 || l.Sources() != 0 {
		t.Errorf("a source that has recovered is still kept: %d", l.Sources())
	}
	at = at.Add(-24 * time.Hour) // a clock that steps back gives nothing and takes nothing
	l.Charge("192.0.2.1")
	at = at.Add(-24 * time.Hour)
	if w := l.Wait("192.0.2.1"); w != 0 {
		t.Errorf("after the clock stepped back: wait %v", w)
	}
}

func TestDebtOfConcurrentCallsIsBounded(t *testing.T) {
	at := time.Unix(0, 0)
	l := gateway.NewLimiter(20, 200, 1000, func() time.Time { return at })
	for range 10_000 {
		l.Charge("192.0.2.1")
	}
	if w := l.Wait("192.0.2.1"); w != 201*time.Second/20 {
		t.Errorf("wait %v, want that of a burst and a call", w)
	}
}

func TestSources(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"192.0.2.1", "192.0.2.1", true},
		{"192.0.2.1", "192.0.2.2", false},
		{"2001:db8:1:2::1", "2001:db8:1:2:ffff::9", true},
		{"2001:db8:1:2::1", "2001:db8:1:3::1", false},
		{"", "", true},
		{"", "192.0.2.1", false},
	} {
		l := gateway.NewLimiter(1, 1, 10, func() time.Time { return time.Unix(0, 0) })
		l.Charge(c.a)
		if same := l.Wait(c.b) > 0; same != c.same {
			t.Errorf("%q and %q: one source %v, want %v", c.a, c.b, same, c.same)
		}
	}
}

func TestMemoryOfTheLimiterIsBounded(t *testing.T) {
	l := gateway.NewLimiter(1, 1, 100, func() time.Time { return time.Unix(0, 0) })
	for i := range 1000 {
		l.Charge(fmt.Sprintf("10.0.%d.%d", i/256, i%256))
		if i%2 == 0 {
			l.Charge("192.0.2.1")
		}
	}
	if n := l.Sources(); n != 100 {
		t.Errorf("%d sources are kept, want 100", n)
	}
	if l.Wait("192.0.2.1") == 0 {
		t.Error("the source that is refused all the time was forgotten first")
	}
	if l.Wait("10.0.0.0") != 0 {
		t.Error("the oldest source was kept")
	}
}

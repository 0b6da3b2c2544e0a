package identity_test

import (
	"crypto/elliptic"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/better-compute/bcd/identity"
)

func issued(life time.Duration) *identity.Identity {
	a := honest(newCSR(newKey(elliptic.P256())))
	a.leaf.life = life
	a.leaf.notBefore = now
	return must(a.check())
}

func TestRenewalIsDueAt60PercentOfTheLifetime(t *testing.T) {
	for _, life := range []time.Duration{20 * time.Second, time.Hour, 24 * time.Hour} {
		least, most := math.Inf(1), 0.0
		for range 60 {
			id := issued(life)
			s := identity.ScheduleOf(id)
			at := float64(s.RenewAt.Sub(now)) / float64(life)
			least, most = min(least, at), max(most, at)
			if again := identity.ScheduleOf(id); again != s {
				t.Fatalf("the jitter is drawn twice: %v, %v", s, again)
			}
		}
		if least < 0.55 || most > 0.60 {
			t.Errorf("%s: due at %.3f to %.3f of the lifetime", life, least, most)
		}
		if most-least < 0.02 {
			t.Errorf("%s: jitter only from %.3f to %.3f", life, least, most)
		}
	}
}

// The lifetime runs from the answer, not from the backdated notBefore.
func TestBackdatingDoesNotCount(t *testing.T) {
	a := honest(newCSR(newKey(elliptic.P256())))
	a.leaf.notBefore, a.leaf.life = now.Add(-5*time.Minute), 5*time.Minute+20*time.Second
	s := identity.ScheduleOf(must(a.check()))
	if due := s.RenewAt.Sub(now); due < 11*time.Second || due > 12*time.Second {
		t.Errorf("a certificate with 20 s left is due after %s", due)
	}
	id := issued(time.Hour)
	id.IssuedAt = time.Time{} // not known
	if due := identity.ScheduleOf(id).RenewAt.Sub(now); due < 33*time.Minute || due > 36*time.Minute {
		t.Errorf("without an issue time: %s", due)
	}
}

func TestFirstTry(t *testing.T) {
	s := identity.Schedule{RenewAt: now.Add(12 * time.Hour), NotAfter: now.Add(24 * time.Hour)}
	for _, tc := range []struct {
		at     time.Duration
		random float64
		want   time.Duration
	}{
		{0, 0.5, 12 * time.Hour},
		{12*time.Hour - 1, 0.5, 12 * time.Hour},
		{13 * time.Hour, 0, 13 * time.Hour},
		{13 * time.Hour, 0.5, 13*time.Hour + 30*time.Second},
		{23 * time.Hour, 0.5, 23*time.Hour + 30*time.Second},
		{23*time.Hour + 1, 0.5, 23*time.Hour + 1},
		{30 * time.Hour, 0.5, 30 * time.Hour},
	} {
		if got := s.First(now.Add(tc.at), tc.random).Sub(now); got != tc.want {
			t.Errorf("at %s: first try at %s, want %s", tc.at, got, tc.want)
		}
	}
}

func TestRetries(t *testing.T) {
	s := identity.Schedule{RenewAt: now, NotAfter: now.Add(10 * time.Hour)}
	for failures, ceiling := range map[int]time.Duration{
		0: 30 * time.Second, 1: 30 * time.Second, 2: time.Minute, 3: 2 * time.Minute, 4: 4 * time.Minute, 5: 8 * time.Minute,
		6: 10 * time.Minute, 7: 10 * time.Minute, 1000: 10 * time.Minute, math.MaxInt: 10 * time.Minute,
	} {
		if got := s.Retry(now, failures, 1).Sub(now); got != ceiling {
			t.Errorf("%d failures: at most %s, want %s", failures, got, ceiling)
		}
		if got := s.Retry(now, failures, 0.25).Sub(now); got != ceiling/4 {
			t.Errorf("%d failures: a quarter is %s, want full jitter", failures, got)
		}
		if got := s.Retry(now, failures, 0).Sub(now); got <= 0 || got > time.Second {
			t.Errorf("%d failures: at least %s", failures, got)
		}
	}
	if got := s.Retry(s.NotAfter.Add(time.Hour), 9, 1).Sub(s.NotAfter); got != time.Hour+10*time.Minute {
		t.Errorf("past the end: %s", got)
	}
}

// A certificate of 20 seconds still gets several tries.
func TestShortCertificatesGetSeveralTries(t *testing.T) {
	s := identity.Schedule{RenewAt: now.Add(12 * time.Second), NotAfter: now.Add(20 * time.Second)}
	tries := 0
	for at := s.First(now, 0.99); at.Before(s.NotAfter); at = s.Retry(at, tries, 0.99) {
		if tries++; tries > 100 {
			t.Fatal("it never gives up")
		}
	}
	if tries < 8 {
		t.Errorf("%d tries", tries)
	}
}

// A daemon that only follows the schedule renews for days, through failures, and never runs out.
func TestFollowingTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		s := identity.Schedule{RenewAt: start.Add(time.Duration(0.58 * float64(24*time.Hour))), NotAfter: start.Add(24 * time.Hour)}
		renewals, failures := 0, 0
		for due := s.First(time.Now(), 0.5); renewals < 5; {
			for time.Now().Before(due) {
				time.Sleep(identity.Sleep(time.Now(), due))
			}
			if s.Left(time.Now()) < 6*time.Hour {
				t.Fatal("a renewal came too late")
			}
			if failures++; failures%4 != 0 { // the control plane is away for three tries each time
				due = s.Retry(time.Now(), failures%4, 0.9)
				continue
			}
			renewals++
			at := time.Now()
			s = identity.Schedule{RenewAt: at.Add(time.Duration(0.58 * float64(24*time.Hour))), NotAfter: at.Add(24 * time.Hour)}
			due = s.RenewAt
		}
		if days := time.Since(start).Hours() / 24; days < 2.8 || days > 3.1 {
			t.Errorf("5 renewals took %.1f days", days)
		}
	})
}

func TestSleepIsShort(t *testing.T) {
	for left, want := range map[time.Duration]time.Duration{-time.Hour: 0, 0: 0, time.Second: time.Second, time.Hour: 30 * time.Second} {
		if got := identity.Sleep(now, now.Add(left)); got != want {
			t.Errorf("%s before: sleeps %s, want %s", left, got, want)
		}
	}
}

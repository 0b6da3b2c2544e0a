package events_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

// Req: RF-011 RF-012 RF-033
func TestLimiterCountsEachKindApart(t *testing.T) {
	var l events.Limiter
	allow := func(k events.Kind, at time.Duration, n int) (published int, suppressed int64) {
		for range n {
			if s, ok := l.Allow(k, epoch.Add(at)); ok {
				published++
				suppressed += s
			}
		}
		return published, suppressed
	}
	a := events.Kind{Tenant: "t", Attestor: "join-token", Reason: "r"}
	for _, c := range []struct {
		name       string
		kind       events.Kind
		at         time.Duration
		n          int
		published  int
		suppressed int64
	}{
		{"within a minute", a, 0, 100, 60, 0},
		{"at its end", a, time.Minute - 1, 1, 0, 0},
		{"another tenant", events.Kind{Tenant: "u", Attestor: "join-token", Reason: "r"}, 0, 61, 60, 0},
		{"another attestor", events.Kind{Tenant: "t", Attestor: "tpm", Reason: "r"}, 0, 1, 1, 0},
		{"another reason", events.Kind{Tenant: "t", Attestor: "join-token", Reason: "s"}, 0, 1, 1, 0},
		{"the next minute", a, time.Minute, 2, 2, 41},
		{"a clock that went back", a, 0, 1, 1, 0},
	} {
		if p, s := allow(c.kind, c.at, c.n); p != c.published || s != c.suppressed {
			t.Errorf("%s: %d published, %d suppressed before, want %d and %d", c.name, p, s, c.published, c.suppressed)
		}
	}
}

// Kinds that nobody refuses any more do not fill the memory.
func TestLimiterForgets(t *testing.T) {
	var l events.Limiter
	for i := range events.MaxKinds {
		l.Allow(events.Kind{Tenant: fmt.Sprint(i)}, epoch)
	}
	l.Allow(events.Kind{Tenant: "late"}, epoch.Add(time.Hour))
	if got := l.Kinds(); got != 1 {
		t.Errorf("%d kinds, want 1", got)
	}
}

// Req: JT-042 JT-043
func TestPayloadsOfTokens(t *testing.T) {
	for _, c := range []struct {
		payload events.Payload
		want    string
	}{
		{
			events.JoinTokenCreated{TokenID: "jt_1", PoolID: "p", SiteID: "s", Role: "node", CreatedBy: "k"},
			`{"tokenId":"jt_1","poolId":"p","siteId":"s","role":"node","createdBy":"k","pinned":false}`,
		},
		{
			events.JoinTokenCreated{TokenID: "jt_1", PoolID: "p", SiteID: "s", Role: "node", CreatedBy: "k", Pinned: true, Hosted: "kubernetes"},
			`{"tokenId":"jt_1","poolId":"p","siteId":"s","role":"node","createdBy":"k","pinned":true,"hosted":"kubernetes"}`,
		},
		{
			events.JoinRefused{Attestor: "join-token", Reason: "join:expect", Role: "node", CSRSHA256: "00"},
			`{"attestor":"join-token","reason":"join:expect","role":"node","csrSha256":"00","hardwareKey":"","suppressed":0}`,
		},
	} {
		got, err := json.Marshal(c.payload)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

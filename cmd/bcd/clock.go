//go:build !testclock

package main

import "time"

// clockTag marks the version of a build whose clock can be moved; this one's cannot.
const clockTag = ""

// newClock returns the machine's clock.
func newClock(func(string) string) func() time.Time { return time.Now }

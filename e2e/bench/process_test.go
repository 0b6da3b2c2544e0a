package main

import (
	"os"
	"testing"
	"time"
)

// The figures of a process that is known well: this one.
func TestUsageOfThisProcess(t *testing.T) {
	before, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	touched := make([]byte, 32*mib)
	for i := 0; i < len(touched); i += 4096 {
		touched[i] = 1
	}
	for own, err := ownCPU(); ; {
		now, nowErr := ownCPU()
		if err != nil || nowErr != nil {
			t.Fatal(err, nowErr)
		}
		if now-own > 100*time.Millisecond {
			break
		}
	}
	after, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := after.cpu - before.cpu; got < 90*time.Millisecond || got > 10*time.Second {
		t.Errorf("CPU time grew by %s, want at least 100 ms", got)
	}
	if got := after.anonymous - before.anonymous; got < 30 {
		t.Errorf("anonymous memory grew by %.1f MiB, want 32", got)
	}
	if after.rss < after.anonymous || after.threads < 1 || after.switches < before.switches {
		t.Errorf("usage is %+v after %+v", after, before)
	}
	if touched[0] != 1 {
		t.Error("the memory is gone")
	}
}

func TestUsageOfNoProcess(t *testing.T) {
	if u, err := usageOf(1 << 30); err == nil {
		t.Errorf("usage of a process that cannot be is %+v", u)
	}
}

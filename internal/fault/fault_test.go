package fault_test

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"github.com/better-compute/bcd/internal/fault"
)

func TestCodeAndHintSurviveWrapping(t *testing.T) {
	inner := fault.New(fault.Config, "write the file", "cannot read %q: %w", "/etc/x", fs.ErrNotExist)
	err := fmt.Errorf("cannot join: %w", inner)

	if got := fault.CodeOf(err); got != fault.Config {
		t.Errorf("CodeOf = %q, want %q", got, fault.Config)
	}
	if got := fault.HintOf(err); got != "write the file" {
		t.Errorf("HintOf = %q", got)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error("the cause is lost")
	}
	if got, want := err.Error(), `cannot join: cannot read "/etc/x": file does not exist`; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

func TestOuterCodeAndFirstHintWin(t *testing.T) {
	inner := fault.New(fault.NoSpace, "free some space", "disk full")
	outer := fault.New(fault.Failed, "", "cannot renew: %w", inner)

	if got := fault.CodeOf(outer); got != fault.Failed {
		t.Errorf("CodeOf = %q, want the outer code", got)
	}
	if got := fault.HintOf(outer); got != "free some space" {
		t.Errorf("HintOf = %q, want the inner hint where the outer has none", got)
	}
}

func TestNilAndPlainErrors(t *testing.T) {
	if fault.CodeOf(nil) != "" || fault.HintOf(nil) != "" {
		t.Error("nil has a code or a hint")
	}
	plain := errors.New("x")
	if fault.CodeOf(plain) != fault.Failed || fault.HintOf(plain) != "" {
		t.Error("a plain error is FAILED without a hint")
	}
}

func TestExitStatus(t *testing.T) {
	for code, want := range map[fault.Code]int{
		fault.Failed: 1, fault.Usage: 2, fault.Config: 78, fault.Token: 1,
		fault.Unreachable: 75, fault.Conflict: 75, fault.Pending: 75, fault.Busy: 75, fault.NoSpace: 75,
		fault.Verification: 76, fault.AccessDenied: 77, fault.Unauthenticated: 77, fault.NotRoot: 77, fault.InvalidConfig: 1,
	} {
		if got := code.Exit(); got != want {
			t.Errorf("%s exits %d, want %d", code, got, want)
		}
		if got := code.Temporary(); got != (want == 75) {
			t.Errorf("%s temporary = %v", code, got)
		}
	}
}

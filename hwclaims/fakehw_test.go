package hwclaims_test

import (
	"path/filepath"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
)

// A release reads real hardware only; a development build (tag fakehw) takes a profile.
func TestProfileNeedsADevelopmentBuild(t *testing.T) {
	file := filepath.Join(machinesDir, "rpi4.json")
	r, err := hwclaims.Collect(t.Context(), hwclaims.Options{Profile: file})
	if !hwclaims.FakeHardware {
		if !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
			t.Errorf("error %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	_, want := machine(t, file)
	checkMachine(t, r, want)
	for _, bad := range []string{filepath.Join(t.TempDir(), "none.json"), "fakehw_test.go"} {
		if _, err := hwclaims.Collect(t.Context(), hwclaims.Options{Profile: bad}); !fault.Is(err, fault.Config) {
			t.Errorf("%s: error %v", bad, err)
		}
	}
}

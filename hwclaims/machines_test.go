package hwclaims_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/hwclaims/profile"
)

const machinesDir = "../testdata/machines"

// expectation is what a machine's file says that the claims come to.
type expectation struct {
	Survivors  hwclaims.Survivors `json:"survivors"`
	Dropped    [][2]string        `json:"dropped"` // name and reason; the wording of a reason is free
	Classes    []hwclaims.Class   `json:"classes"`
	KeyClasses []hwclaims.Class   `json:"key_classes"`
	Trusted    bool               `json:"trusted"`
}

func (e expectation) droppedNames() []string {
	var names []string
	for _, d := range e.Dropped {
		names = append(names, d[0])
	}
	return slices.Sorted(slices.Values(names))
}

// eachMachine runs a test for every machine that the project knows.
func eachMachine(t *testing.T, test func(t *testing.T, m profile.Machine, want expectation)) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(machinesDir, "*.json"))
	if err != nil || len(files) < 35 {
		t.Fatalf("found %d machines in %s (%v), want at least 35", len(files), machinesDir, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			m, want := machine(t, file)
			test(t, m, want)
		})
	}
}

func machine(t *testing.T, file string) (profile.Machine, expectation) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	m, err := profile.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	var want struct {
		Expect expectation `json:"expect"`
	}
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	return m, want.Expect
}

func checkMachine(t *testing.T, r hwclaims.Report, want expectation) {
	t.Helper()
	a := r.Assess()
	if diff := cmp.Diff(want.Survivors, a.Survivors, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("survivors (-want +got):\n%s", diff)
	}
	var dropped []string
	for _, d := range a.Dropped {
		dropped = append(dropped, d.What)
		if d.Why == "" {
			t.Errorf("%s is dropped without a reason", d.What)
		}
	}
	if diff := cmp.Diff(want.droppedNames(), slices.Sorted(slices.Values(dropped)), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.Classes, a.Classes, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("classes (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.KeyClasses, a.KeyClasses, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("key classes (-want +got):\n%s", diff)
	}
	if a.Trusted != want.Trusted {
		t.Errorf("trusted = %v, want %v", a.Trusted, want.Trusted)
	}
	if (len(a.HardwareKey) == 32) != (len(want.Classes) > 0) {
		t.Errorf("key of %d bytes with classes %v", len(a.HardwareKey), want.Classes)
	}
	if err := r.Claims.Validate(); err != nil {
		t.Errorf("collected claims break a limit: %v", err)
	}
}

// Req: HC-001 HC-002 HC-003
func TestMachineProfiles(t *testing.T) {
	eachMachine(t, func(t *testing.T, m profile.Machine, want expectation) {
		checkMachine(t, hwclaims.CollectProfile(m), want)
	})
}

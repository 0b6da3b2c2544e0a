package hwclaims_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/hwclaims"
)

// A process that may not read all of the firmware's identifiers, and one that may, make the same report together as the second
// one alone.
func TestFirmwareFromElsewhere(t *testing.T) {
	root := t.TempDir()
	if err := os.CopyFS(root, os.DirFS("../testdata/hosts/dell-r750-h100")); err != nil {
		t.Fatal(err)
	}
	collect := func(from func() (hwclaims.Report, error)) hwclaims.Report {
		t.Helper()
		r, err := from()
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	all := func() (hwclaims.Report, error) { return hwclaims.Collect(t.Context(), hwclaims.Options{Root: root}) }
	whole := collect(all)
	firmware := collect(func() (hwclaims.Report, error) {
		return hwclaims.CollectFirmware(t.Context(), hwclaims.Options{Root: root})
	})
	if len(firmware.Claims.MACs) != 0 || len(firmware.Claims.GPUUUIDs) != 0 || firmware.Claims.Hostname != "" {
		t.Errorf("the firmware's claims are %+v", firmware.Claims)
	}
	for _, name := range []string{"product_uuid", "product_serial", "board_serial", "chassis_serial"} {
		path := filepath.Join(root, "sys/class/dmi/id", name)
		if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := os.Mkdir(path, 0o700); err != nil { // what no user can read
			t.Fatal(err)
		}
	}
	blind := collect(all)
	if blind.Incomplete() == nil {
		t.Fatal("the identifiers can be read")
	}
	if diff := cmp.Diff(whole, blind.WithFirmware(firmware), cmpopts.SortSlices(func(a, b hwclaims.Drop) bool { return a.What < b.What }), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the two reports differ (-one process +two):\n%s", diff)
	}
}

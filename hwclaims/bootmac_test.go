package hwclaims_test

import (
	"testing"

	"github.com/better-compute/bcd/hwclaims"
)

func TestBootMAC(t *testing.T) {
	for in, want := range map[string]string{
		"B4-96-91-A7-00-01": "b4:96:91:a7:00:01",
		"5254.0012.3456":    "52:54:00:12:34:56", // a virtual machine's: locally administered
		"00:00:00:00:00:00": "", "01:00:5e:00:00:01": "", "ff:ff:ff:ff:ff:ff": "", "b4:96:91:a7:00": "", "": "", "x": "",
	} {
		if got, ok := hwclaims.BootMAC(in); got != want || ok != (want != "") {
			t.Errorf("BootMAC(%q) = %q, %v, want %q", in, got, ok, want)
		}
	}
}

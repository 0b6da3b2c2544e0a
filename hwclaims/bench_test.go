package hwclaims_test

import (
	"strings"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
)

func BenchmarkCollect(b *testing.B) {
	for b.Loop() {
		if _, err := hwclaims.Collect(b.Context(), hwclaims.Options{Root: "../testdata/hosts/dell-r750-h100"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAssess(b *testing.B) {
	r, err := hwclaims.Collect(b.Context(), hwclaims.Options{Root: "../testdata/hosts/dell-r750-h100"})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		hwclaims.Assess(r.Claims)
	}
}

// BenchmarkAssessHostile is the most work that claims within the limits make.
func BenchmarkAssessHostile(b *testing.B) {
	words := strings.Repeat("oemtagset ", 25)
	c := hwclaims.Claims{
		ProductSerial: strings.Repeat("oem", 84) + "7Q", BoardSerial: strings.Repeat("misspeltx ", 25) + "7731", ChassisSerial: words + "q",
		DeviceTreeSerial: strings.Repeat("ab", 127) + "7", Vendor: strings.Repeat("ab ", 85), ProductName: strings.Repeat("abab ", 51),
		ProductUUID: strings.Repeat("7", 256),
	}
	for range hwclaims.MaxMACs {
		c.MACs = append(c.MACs, mac1)
		c.GPUUUIDs = append(c.GPUUUIDs, gpu1)
	}
	if err := c.Validate(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		hwclaims.Assess(c)
	}
}

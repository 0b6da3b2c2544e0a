package hwclaims_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/hwclaims/profile"
)

// Normalising twice changes nothing, a normalised value is valid, and a verdict can be given on any bytes.
//
// Req: HC-024
func FuzzNormalise(f *testing.F) {
	for _, s := range []string{"SN-7701", "Default string", " a\x00b", "SN\xff", uuid1, mac1, "70b5.e800.5028", gpu1, "GPU-????", "ser\u0130al", "\u212a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		serial := hwclaims.NormalizeSerial(s)
		if again := hwclaims.NormalizeSerial(serial); again != serial {
			t.Errorf("serial %q becomes %q, then %q", s, serial, again)
		}
		for name, normalise := range map[string]func(string) (string, bool){
			"UUID": hwclaims.NormalizeUUID, "MAC": hwclaims.NormalizeMAC, "GPU": hwclaims.NormalizeGPU,
		} {
			if v, ok := normalise(s); ok {
				if again, ok := normalise(v); !ok || again != v {
					t.Errorf("%s %q becomes %q, then %q", name, s, v, again)
				}
			}
		}
		if len(s) > hwclaims.MaxText {
			return
		}
		c := hwclaims.Claims{ProductUUID: s, ProductSerial: s, MACs: []string{s}, GPUUUIDs: []string{s}, Vendor: s}
		a, b := hwclaims.Assess(c), hwclaims.Assess(c)
		if !bytes.Equal(a.HardwareKey, b.HardwareKey) {
			t.Error("two verdicts on the same claims")
		}
		own := hwclaims.Expect{Serial: s}
		if own.Match(c) != (len(a.Survivors.ProductSerial) == 1) {
			t.Errorf("expect.serial %q matches itself: %v, survivors %q", s, own.Match(c), a.Survivors.ProductSerial)
		}
	})
}

// Which side holds the odd spelling does not matter.
//
// Req: HC-024
func FuzzExpectIsSymmetric(f *testing.F) {
	f.Add("sn-7701", "SN-7701 ")
	f.Add("SN-7701", "SN-7702")
	f.Add(uuid1, strings.ToUpper(uuid1))
	f.Add(mac1, "70B5E8005028")
	f.Add(gpu1, strings.ToLower(gpu1))
	f.Fuzz(func(t *testing.T, x, y string) {
		if len(x) > hwclaims.MaxText || len(y) > hwclaims.MaxText {
			return
		}
		for name, pair := range map[string]func(e, c string) bool{
			"uuid":   func(e, c string) bool { return hwclaims.Expect{ProductUUID: e}.Match(hwclaims.Claims{ProductUUID: c}) },
			"serial": func(e, c string) bool { return hwclaims.Expect{Serial: e}.Match(hwclaims.Claims{BoardSerial: c}) },
			"mac":    func(e, c string) bool { return hwclaims.Expect{MAC: e}.Match(hwclaims.Claims{MACs: []string{c}}) },
			"gpu": func(e, c string) bool {
				return hwclaims.Expect{GPUUUID: e}.Match(hwclaims.Claims{GPUUUIDs: []string{c}})
			},
		} {
			if pair(x, y) != pair(y, x) {
				t.Errorf("%s: %q for %q is %v, the other way %v", name, x, y, pair(x, y), pair(y, x))
			}
		}
	})
}

func FuzzParseLink(f *testing.F) {
	f.Add(bondedLink())
	f.Add(linkMessage())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := hwclaims.ParseLink(b)
		if err == nil && (l.Name == "" || strings.Contains(l.Name, "/")) {
			t.Errorf("link %+v", l)
		}
	})
}

func FuzzParseGPUInformation(f *testing.F) {
	f.Add("Model: \t\t NVIDIA A40-48Q\nGPU UUID: \t " + gpu1 + "\n")
	f.Add(":\n::\nGPU UUID")
	f.Fuzz(func(t *testing.T, s string) {
		if uuid, _, ok := hwclaims.ParseGPUInformation(s); ok != (uuid != "") {
			t.Errorf("UUID %q, ok %v", uuid, ok)
		}
		hwclaims.ParseBonding(s)
		hwclaims.DriverVersion(s)
	})
}

// Whatever a profile holds, the claims are within the limits.
func FuzzProfile(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(machinesDir, "*.json"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files[:min(6, len(files))] {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"dmi":{"product_serial":"\u0000\u00ff"},"nics":[{}],"gpus":[{"uuid":"GPU-"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := profile.Parse(b)
		if err != nil {
			return
		}
		r := hwclaims.CollectProfile(m)
		if err := r.Claims.Validate(); err != nil {
			t.Error(err)
		}
		for _, d := range r.Assess().Dropped {
			if (hwclaims.Claims{ProductSerial: d.Value}).Validate() != nil {
				t.Errorf("dropped value %q cannot be printed", d.Value)
			}
		}
		if classes := r.Assess().Classes; !slices.IsSortedFunc(classes, func(x, y hwclaims.Class) int { return rank(x) - rank(y) }) {
			t.Errorf("classes %v", classes)
		}
	})
}

func rank(c hwclaims.Class) int {
	return slices.Index([]hwclaims.Class{hwclaims.ClassProductUUID, hwclaims.ClassSerial, hwclaims.ClassMAC, hwclaims.ClassGPU}, c)
}

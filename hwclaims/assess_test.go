package hwclaims_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/hwclaims"
)

const (
	uuid1   = "4c4c4544-0058-5110-8034-b7c04f543233"
	serial1 = "7XQ4T23"
	mac1    = "70:b5:e8:00:50:28"
	gpu1    = "GPU-1c0ffee0-0001-4a2b-8c3d-0123456789ab"
)

// All 16 subsets of the classes: trusted when at least two survive and one of them is product-uuid or serial.
//
// Req: HC-016
func TestTrust(t *testing.T) {
	for set := range 16 {
		var c hwclaims.Claims
		var want []hwclaims.Class
		if set&1 != 0 {
			c.ProductUUID, want = uuid1, append(want, hwclaims.ClassProductUUID)
		}
		if set&2 != 0 {
			c.ProductSerial, want = serial1, append(want, hwclaims.ClassSerial)
		}
		if set&4 != 0 {
			c.MACs, want = []string{mac1}, append(want, hwclaims.ClassMAC)
		}
		if set&8 != 0 {
			c.GPUUUIDs, want = []string{gpu1}, append(want, hwclaims.ClassGPU)
		}
		a := hwclaims.Assess(c)
		if diff := cmp.Diff(want, a.Classes, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("subset %04b: classes (-want +got):\n%s", set, diff)
		}
		if wantTrusted := len(want) >= 2 && set&3 != 0; a.Trusted != wantTrusted {
			t.Errorf("subset %04b: trusted = %v, want %v", set, a.Trusted, wantTrusted)
		}
		if (a.HardwareKey == nil) != (set == 0) {
			t.Errorf("subset %04b: key %x", set, a.HardwareKey)
		}
	}
}

// Req: HC-025
func TestThreeSerialsAreOneClass(t *testing.T) {
	a := hwclaims.Assess(hwclaims.Claims{ProductSerial: "7XQ4T23", BoardSerial: "CNIVC0001Q0042", ChassisSerial: "9BB0XY2"})
	if a.Trusted || len(a.Classes) != 1 {
		t.Errorf("classes %v, trusted %v", a.Classes, a.Trusted)
	}
	if got, want := string(a.KeyInput()), "bc-hardware-key:v1\nserial=7XQ4T23\n"; got != want {
		t.Errorf("key input %q, want %q", got, want)
	}
}

func TestSerialOfTheKey(t *testing.T) {
	c := hwclaims.Claims{ProductSerial: "PROD7731", DeviceTreeSerial: "10000000abcd0001", BoardSerial: "BRD0X42", ChassisSerial: "CHS9X17"}
	for _, step := range []struct {
		want string
		drop func()
	}{
		{"PROD7731", func() { c.ProductSerial = "Default string" }},
		{"10000000ABCD0001", func() { c.DeviceTreeSerial = "0000000000000000" }},
		{"BRD0X42", func() { c.BoardSerial = "None" }},
		{"CHS9X17", func() { c.ChassisSerial = "" }},
	} {
		if got := string(hwclaims.Assess(c).KeyInput()); got != "bc-hardware-key:v1\nserial="+step.want+"\n" {
			t.Errorf("key input %q, want serial %s", got, step.want)
		}
		step.drop()
	}
	if k := hwclaims.Assess(c).HardwareKey; k != nil {
		t.Errorf("a key %x of filler alone", k)
	}
}

// Req: HC-015
func TestPlaceholdersDoNotChangeTheKey(t *testing.T) {
	with := hwclaims.Claims{
		ProductUUID: uuid1, ProductSerial: "To Be Filled By O.E.M.", BoardSerial: serial1, ChassisSerial: "Default string",
		MACs: []string{"02:fc:00:00:00:01", mac1}, GPUUUIDs: []string{"GPU-????????-????-????-????-????????????"},
	}
	without := hwclaims.Claims{ProductUUID: uuid1, BoardSerial: serial1, MACs: []string{mac1}}
	a, b := hwclaims.Assess(with), hwclaims.Assess(without)
	if !bytes.Equal(a.HardwareKey, b.HardwareKey) || a.HardwareKey == nil {
		t.Errorf("keys %x and %x", a.HardwareKey, b.HardwareKey)
	}
	if len(a.Dropped) != 4 {
		t.Errorf("dropped %v", a.Dropped)
	}
}

// Two machines with nothing but filler must not become one: neither has a key.
func TestAllPlaceholderMachineHasNoKey(t *testing.T) {
	a := hwclaims.Assess(hwclaims.Claims{
		ProductUUID: "03000200-0400-0500-0006-000700080009", ProductSerial: "To be filled by O.E.M.", BoardSerial: "Default string",
		ChassisSerial: "0123456789", MACs: []string{"be:3a:f2:b6:05:9f"}, Hostname: "node-1",
	})
	if a.HardwareKey != nil || a.Trusted || len(a.Classes) > 0 {
		t.Errorf("%+v", a)
	}
}

// A NIC or a GPU that is swapped makes no other machine, and neither does another spelling, order or a repeated value.
//
// Req: HC-013
func TestKeyIsStable(t *testing.T) {
	base := hwclaims.Claims{ProductUUID: uuid1, ProductSerial: "sn-7701", MACs: []string{mac1}, GPUUUIDs: []string{gpu1}}
	want := hwclaims.Assess(base).HardwareKey
	for name, change := range map[string]func(*hwclaims.Claims){
		"swapped NIC and GPU": func(c *hwclaims.Claims) { c.MACs, c.GPUUUIDs = []string{"00:25:90:00:e4:39"}, nil },
		"upper-case UUID":     func(c *hwclaims.Claims) { c.ProductUUID = strings.ToUpper(uuid1) },
		"undashed UUID":       func(c *hwclaims.Claims) { c.ProductUUID = strings.ReplaceAll(uuid1, "-", "") },
		"upper-case serial":   func(c *hwclaims.Claims) { c.ProductSerial = "SN-7701" },
		"padded serial":       func(c *hwclaims.Claims) { c.ProductSerial = "  SN-7701   \x00\n" },
		"other names":         func(c *hwclaims.Claims) { c.Hostname, c.Vendor = "other", "Other Corp" },
		"real chassis":        func(c *hwclaims.Claims) { c.ChassisSerial = "CHS9X17" },
	} {
		c := base
		c.MACs, c.GPUUUIDs = slices.Clone(base.MACs), slices.Clone(base.GPUUUIDs)
		change(&c)
		if got := hwclaims.Assess(c).HardwareKey; !bytes.Equal(got, want) {
			t.Errorf("%s: the key changes to %x", name, got)
		}
	}
	macs := hwclaims.Claims{MACs: []string{mac1, "00:25:90:00:e4:39"}}
	swapped := hwclaims.Claims{MACs: []string{"00-25-90-00-E4-39", "70b5.e800.5028", mac1}}
	if a, b := hwclaims.Assess(macs).HardwareKey, hwclaims.Assess(swapped).HardwareKey; !bytes.Equal(a, b) {
		t.Errorf("the order and spelling of MACs change the key: %x and %x", a, b)
	}
	other := base
	other.ProductSerial = "SN-7702"
	if bytes.Equal(hwclaims.Assess(other).HardwareKey, want) {
		t.Error("another serial gives the same key")
	}
}

func TestFleetPlaceholders(t *testing.T) {
	c := hwclaims.Claims{ProductSerial: "ACME-Rack-Filler", BoardSerial: serial1, MACs: []string{mac1}, ProductUUID: uuid1}
	a := hwclaims.Assess(c, "acme rack filler", mac1, uuid1)
	if len(a.Survivors.ProductSerial)+len(a.Survivors.MACs)+len(a.Survivors.ProductUUID) != 0 {
		t.Errorf("survivors %+v", a.Survivors)
	}
	if !slices.Equal(a.Survivors.BoardSerial, []string{serial1}) {
		t.Errorf("the board's serial is lost: %+v", a.Survivors)
	}
}

func TestNormalise(t *testing.T) {
	for in, want := range map[string]string{
		"  abc  12\t3 \n": "ABC 12 3", "ABC\x00\n": "ABC", "\x00A1B\x00C": "A1B", "CZJ1280AAA      ": "CZJ1280AAA", "\x01A1B\x7f": "A1B",
		"ser\u0130al\u00e9": "SER\u0130AL\u00e9", "SN\xff\xfe": "", "        ": "", "": "", "a\u200bb\u00a0c": "A B C",
	} {
		if got := hwclaims.NormalizeSerial(in); got != want {
			t.Errorf("serial %q becomes %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"4C4C4544-0058-5110-8034-B7C04F543233": uuid1, "4c4c454400585110" + "8034b7c04f543233": uuid1, " " + uuid1 + "\n": uuid1,
		"{" + uuid1 + "}": "", "urn:uuid:" + uuid1: "", "4c4c4544-00585110-8034-b7c0-4f543233": "", "Not Present": "", "": "",
		"4c4c4544-0058-5110-8034-b7c04f54323g": "", "4c4c4544 0058-5110-8034-b7c04f543233": "", "4c4c4544-0058 5110-8034-b7c04f543233": "",
		"4c4c4544-0058-5110 8034-b7c04f543233": "", "4c4c4544-0058-5110-8034 b7c04f543233": "",
	} {
		if got, ok := hwclaims.NormalizeUUID(in); got != want || ok != (want != "") {
			t.Errorf("UUID %q becomes %q (%v), want %q", in, got, ok, want)
		}
	}
	for in, want := range map[string]string{
		"70:B5:E8:00:50:28": mac1, "70-b5-e8-00-50-28": mac1, "70b5.e800.5028": mac1, "70B5E8005028": mac1,
		"70:b5-e8:00:50:28": "", "70:b5:e8:00:50": "", "70:b5:e8:00:50:28:00": "", "ch:64": "", "7:b5:e8:00:50:28a": "", "70b5:e800:5028": "",
	} {
		if got, ok := hwclaims.NormalizeMAC(in); got != want || ok != (want != "") {
			t.Errorf("MAC %q becomes %q (%v), want %q", in, got, ok, want)
		}
	}
	for in, want := range map[string]string{
		"gpu-1C0FFEE0-0001-4a2b-8c3d-0123456789AB": gpu1, "MIG-1c0ffee0-0001-4a2b-8c3d-0123456789ab": "", uuid1: "",
		"MIG-GPU-1c0ffee0-0001-4a2b-8c3d-0123456789ab/7/0": "", "GPU-????????-????-????-????-????????????": "",
		"GPU-1c0ffee000014a2b8c3d0123456789ab": "",
	} {
		if got, ok := hwclaims.NormalizeGPU(in); got != want || ok != (want != "") {
			t.Errorf("GPU %q becomes %q (%v), want %q", in, got, ok, want)
		}
	}
}

func TestValidate(t *testing.T) {
	many := func(n int, form string) []string {
		var s []string
		for i := range n {
			s = append(s, fmt.Sprintf(form, i))
		}
		return s
	}
	for name, c := range map[string]hwclaims.Claims{
		"65 MACs":           {MACs: many(65, "70:b5:e8:00:50:%02x")},
		"65 GPUs":           {GPUUUIDs: many(65, "GPU-1c0ffee0-0001-4a2b-8c3d-0123456789%02x")},
		"long serial":       {BoardSerial: strings.Repeat("7", 257)},
		"long MAC":          {MACs: []string{strings.Repeat("7", 257)}},
		"long host name":    {Hostname: strings.Repeat("a", 254)},
		"not UTF-8":         {ProductSerial: "SN\xff"},
		"control character": {Vendor: "a\x00b"},
		"line feed":         {ProductName: "a\nb"},
		"escape":            {ChassisSerial: "\x1b[31m"},
		"not UTF-8 in GPU":  {GPUUUIDs: []string{"\xfe"}},
		"invisible":         {ProductUUID: "a\u202eb"},
	} {
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	full := hwclaims.Claims{
		MACs: many(64, "70:b5:e8:00:50:%02x"), GPUUUIDs: many(64, "GPU-1c0ffee0-0001-4a2b-8c3d-0123456789%02x"),
		BoardSerial: strings.Repeat("é", 128), Hostname: strings.Repeat("a", 253), Vendor: "Dell Inc.",
	}
	if err := full.Validate(); err != nil {
		t.Errorf("claims at the limits: %v", err)
	}
	if err := (hwclaims.Claims{}).Validate(); err != nil {
		t.Errorf("no claims: %v", err)
	}
}

// vector is one file of testdata/vectors/hardware-key.
type vector struct {
	Name    string          `json:"name"`
	Claims  hwclaims.Claims `json:"claims"`
	Lines   []string        `json:"lines"`
	Key     string          `json:"hardware_key"`
	Trusted bool            `json:"trusted"`
}

// The published vectors hold for both sides: there is one implementation.
//
// Req: HC-013
func TestHardwareKeyVectors(t *testing.T) {
	files, err := filepath.Glob("../testdata/vectors/hardware-key/*.json")
	if err != nil || len(files) < 10 {
		t.Fatalf("%d vectors: %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var v vector
		if err := json.Unmarshal(b, &v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		a := hwclaims.Assess(v.Claims)
		got := vector{Name: v.Name, Claims: v.Claims, Key: hex.EncodeToString(a.HardwareKey), Trusted: a.Trusted}
		if a.HardwareKey != nil {
			got.Lines = strings.Split(strings.TrimSuffix(string(a.KeyInput()), "\n"), "\n")
		}
		if diff := cmp.Diff(v, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filepath.Base(file), diff)
		}
	}
}

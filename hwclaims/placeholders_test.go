package hwclaims_test

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/better-compute/bcd/hwclaims"
)

// unescape reads \xNN as a byte.
func unescape(t *testing.T, s string) string {
	t.Helper()
	parts := strings.Split(s, `\x`)
	var b strings.Builder
	b.WriteString(parts[0])
	for _, p := range parts[1:] {
		raw, err := hex.DecodeString(p[:2])
		if err != nil {
			t.Fatalf("%q: %v", s, err)
		}
		b.Write(raw)
		b.WriteString(p[2:])
	}
	return b.String()
}

// Every placeholder that was seen in the field is dropped, in the class that it was seen in, by the verdict that both
// sides run.
//
// Req: HC-014
func TestFieldPlaceholdersAreDropped(t *testing.T) {
	b, err := os.ReadFile("../testdata/placeholders.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")[1:]
	if len(lines) < 290 {
		t.Fatalf("only %d placeholders", len(lines))
	}
	for _, line := range lines {
		parts := strings.Split(line, "\t")
		value, kind := unescape(t, parts[0]), parts[1]
		for _, v := range []string{value, strings.ToUpper(value), strings.ToLower(value), "  " + value + " \n"} {
			var c hwclaims.Claims
			switch kind {
			case "uuid":
				c.ProductUUID = v
			case "serial":
				c.ProductSerial = v
			case "mac":
				c.MACs = []string{v}
			default:
				t.Fatalf("unknown kind %q", kind)
			}
			if a := hwclaims.Assess(c); len(a.Classes) != 0 || a.HardwareKey != nil {
				t.Errorf("%s %q survives as %+v", kind, v, a.Survivors)
			}
		}
	}
}

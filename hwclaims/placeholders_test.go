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
		checkDropped(t, kind, value)
	}
}

// claim is a machine that claims one value.
func claim(t *testing.T, kind, value string) hwclaims.Claims {
	t.Helper()
	switch kind {
	case "uuid":
		return hwclaims.Claims{ProductUUID: value}
	case "serial":
		return hwclaims.Claims{ProductSerial: value}
	case "mac":
		return hwclaims.Claims{MACs: []string{value}}
	default:
		t.Fatalf("unknown kind %q", kind)
		return hwclaims.Claims{}
	}
}

func checkDropped(t *testing.T, kind, value string) {
	t.Helper()
	for _, v := range []string{value, strings.ToUpper(value), strings.ToLower(value), "  " + value + " \n"} {
		if a := hwclaims.Assess(claim(t, kind, v)); len(a.Classes) != 0 || a.HardwareKey != nil {
			t.Errorf("%s %q survives as %+v", kind, v, a.Survivors)
		}
	}
}

// eachValue runs f for each line "kind, tab, value" of a file.
func eachValue(t *testing.T, file string, atLeast int, f func(kind, value string)) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(lines) < atLeast {
		t.Fatalf("only %d values in %s", len(lines), file)
	}
	for _, line := range lines {
		kind, value, _ := strings.Cut(line, "\t")
		f(kind, value)
	}
}

// Filler that the field's list does not have: from the lists of inventory programs, of dmidecode reports, and what these
// become when they are cut, misspelt, translated or numbered.
//
// Req: HC-014
func TestMoreFillerIsDropped(t *testing.T) {
	eachValue(t, "testdata/filler.tsv", 1100, func(kind, value string) { checkDropped(t, kind, value) })
}

// Values in the formats of every maker of servers, with the runs of zeros and of counting digits that theirs have.
func TestRealValuesSurvive(t *testing.T) {
	eachValue(t, "testdata/real.tsv", 900, func(kind, value string) {
		if a := hwclaims.Assess(claim(t, kind, value)); len(a.Classes) != 1 {
			t.Errorf("%s %q is dropped: %+v", kind, value, a.Dropped)
		}
	})
}

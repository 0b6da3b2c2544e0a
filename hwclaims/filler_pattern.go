package hwclaims

import (
	"regexp"
	"strings"
)

// templatePattern finds what a firmware's build was meant to replace: "$(DEFAULT_STRING)", "%s", "Type1Sku0", "xxx123x",
// masks of question marks, stars or hashes. The run of x is in lower case only: capitals stand in real serials too
// ("C119CALXXXX0001" is a Supermicro chassis).
var templatePattern = regexp.MustCompile(
	`\$\(|\$\{|\{\{|%\(|<%|@@|%[0-9]*[sdxXu]\b|\?\?|\*\*|##|x{3,}|y{3,}|z{3,}|n{4,}|^<.*>$|^\[.*\]$|^\{.*\}$`)

// templateFold finds names of template variables in folded text.
var templateFold = regexp.MustCompile(
	`^type[0-9]|smbiostype|smbios|^dmi(system|base|board|chassis|product|bios)|inject|reserve|yyyymmdd|yymmdd|yyww`)

func templateToken(text, f string) bool {
	return templatePattern.MatchString(text) || templateFold.MatchString(f) || masked(f)
}

// masked reports a run of at least four X, Y, Z or N at either end of the value, or one that is most of it: "RMNBXXXX".
func masked(f string) bool {
	for _, c := range "xyzn" {
		m := string(c)
		run := strings.Repeat(m, 4)
		if strings.HasSuffix(f, run) || strings.HasPrefix(f, run) {
			return true
		}
		if strings.Contains(f, run[:3]) && 2*strings.Count(f, m) > len(f) {
			return true
		}
	}
	return false
}

// labels are the short words that stand before a counted number: "SN12345", "MB-1234567890".
var labels = map[string]bool{
	"sn": true, "s": true, "no": true, "nr": true, "n": true, "id": true, "mb": true, "pn": true, "abc": true, "abcd": true,
	"abcdef": true, "xyz": true, "test": true, "asset": true, "serial": true, "tag": true, "num": true, "number": true,
}

// counting reports folded text that counts: digits upwards or downwards ("0123456789", "9876543210", any length, starting
// over as often as it likes), with letters before them ("#A123456789") or a short tail ("01234567890123456789AB",
// "1234567#ABA"); letters of the alphabet in order; each digit doubled ("112233").
func counting(f string) bool {
	if !isASCII(f) {
		return false
	}
	if inOrder(f) && (len(f) >= 4 || hasDigit(f)) {
		return true
	}
	if d := undoubled(f); d != "" && inOrder(d) {
		return true
	}
	rest := strings.TrimLeft(f, "abcdefghijklmnopqrstuvwxyz")
	prefix := f[:len(f)-len(rest)]
	digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	tail := rest[len(digits):]
	if !inOrder(digits) || strings.ContainsAny(tail, "0123456789") {
		return false
	}
	switch {
	case tail != "":
		return len(prefix) <= 4 && (len(digits) >= 7 && len(tail) <= 4 || len(digits) >= 6 && inOrder(tail))
	case labels[prefix]:
		return len(digits) >= 3
	case len(prefix) <= 4:
		return len(digits) >= 5
	default:
		return len(digits) >= 8
	}
}

// inOrder reports at least two characters, each the next of the one before, or each the previous one. After "9" comes
// "0", "1" or "a", after "f" or "z" the start, and a run of at least three may start over.
func inOrder(s string) bool {
	if len(s) < 2 {
		return false
	}
	reversed := []byte(s)
	for i, j := 0, len(s)-1; i < j; i, j = i+1, j-1 {
		reversed[i], reversed[j] = reversed[j], reversed[i]
	}
	return upwards(s) || upwards(string(reversed))
}

func upwards(s string) bool {
	run := 1
	for i := 1; i < len(s); i++ {
		switch prev, next := s[i-1], s[i]; {
		case next == prev+1, prev == '9' && strings.IndexByte("01a", next) >= 0, (prev == 'f' || prev == 'z') && (next == '0' || next == '1'):
			run++
		case run >= 3 && next == s[0]:
			run = 1
		default:
			return false
		}
	}
	return true
}

// undoubled returns the characters of a text in which each stands the same number of times, at least twice, in at least
// three groups; else "".
func undoubled(s string) string {
	n := 1
	for n < len(s) && s[n] == s[0] {
		n++
	}
	if n < 2 || len(s)%n != 0 || len(s)/n < 3 {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(s); i += n {
		if strings.Count(s[i:i+n], s[i:i+1]) != n {
			return ""
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// repeatedUnit reports at least eight characters that are one unit of two to four characters, at least three times:
// "ABABABAB", "deadbeef" is none.
func repeatedUnit(f string) bool {
	for n := 2; n <= 4; n++ {
		if len(f) >= 8 && len(f) >= 3*n && strings.HasPrefix(f, strings.Repeat(f[:n], len(f)/n)) &&
			strings.HasPrefix(f[:n], f[len(f)/n*n:]) {
			return true
		}
	}
	return false
}

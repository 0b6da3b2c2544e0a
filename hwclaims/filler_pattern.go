package hwclaims

import (
	"slices"
	"strings"
)

// templatePattern finds what a firmware's build was meant to replace: "$(DEFAULT_STRING)", "%s", "Type1Sku0", "xxx123x",
// masks of question marks, stars or hashes. The run of x is in lower case only: capitals stand in real serials too
// ("C119CALXXXX0001" is a Supermicro chassis).
var templatePattern = pattern(
	`\$\(|\$\{|\{\{|%\(|<%|@@|%[0-9]*[sdxXu]\b|\?\?|\*\*|##|x{3,}|y{3,}|z{3,}|n{4,}|^<.*>$|^\[.*\]$|^\{.*\}$`,
)

// templateFold finds names of template variables in folded text.
var templateFold = pattern(
	`^type[0-9]|smbiostype|smbios|^dmi(system|base|board|chassis|product|bios)|inject|reserve|yyyymmdd|yymmdd`,
)

// revision is a version that stands where a serial should: "V1.0", "Rev 2", "Ver.001", "REV:A01", "1.0.0", "Rev 1.xx".
var revision = pattern(`(?i)^((v|ver|version|rev|revision)[.: ]*[a-z]?[0-9]{1,3}|r?[0-9]{1,2}\.[0-9]{1,2})(\.([0-9]{1,2}|x{1,2}))*$`)

func templateToken(text, f string) bool {
	return templatePattern().MatchString(text) || templateFold().MatchString(f) || revision().MatchString(text) || masked(f)
}

// masked reports a mask of X or of another letter that masks are made of: at least four X, or five of the others, at either
// end ("RMNBXXXX"), or X in most of the value.
func masked(f string) bool {
	for _, run := range []string{"xxxx", "yyyyy", "zzzzz", "nnnnn"} {
		if strings.HasPrefix(f, run) || strings.HasSuffix(f, run) {
			return true
		}
	}
	return len(f) >= 6 && strings.Contains(f, "xxx") && 2*strings.Count(f, "x") > len(f)
}

// labels are the short words that stand before a number: "SN001", "SN12345", "MB-1234567890".
var labels = map[string]bool{
	"sn": true, "no": true, "nr": true, "id": true, "mb": true, "pn": true, "abc": true, "abcd": true,
	"abcdef": true, "xyz": true, "test": true, "asset": true, "serial": true, "tag": true, "num": true, "number": true, "oem": true,
}

// counting reports folded text that counts: digits upwards or downwards ("0123456789", "9876543210", any length, starting
// over as often as it likes), with letters or zeros before them ("#A123456789") or a short tail
// ("01234567890123456789AB", "1234567#ABA"); letters of the alphabet in order; each digit doubled ("112233").
func counting(f string) bool {
	if !isASCII(f) {
		return false
	}
	if inOrder(f) && (hasDigit(f) || len(f) >= 5 || f[0] == 'a' && len(f) >= 4) {
		return true
	}
	if d := undoubled(f); d != "" && inOrder(d) || countingParts(f) || interleaved(f) {
		return true
	}
	rest := strings.TrimLeft(f, "abcdefghijklmnopqrstuvwxyz")
	prefix := f[:len(f)-len(rest)]
	digits := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	tail := rest[len(digits):]
	if significant := strings.TrimLeft(digits, "0"); len(significant) >= 6 {
		digits = significant
	}
	if n := len(strings.TrimRight(digits, "0")); n >= 9 { // "123456789000"
		digits = digits[:n]
	}
	if !inOrder(digits) || strings.ContainsAny(tail, "0123456789") {
		return labels[prefix] && tail == "" && digits != "" && len(digits) <= maxIndex // "SN001"
	}
	switch {
	case tail != "":
		return len(prefix) <= 4 && (len(digits) >= 7 && len(tail) <= 4 || len(digits) >= 6 && inOrder(tail))
	case labels[prefix]:
		return true
	case len(prefix) >= minText && fillerVocabulary().words[prefix]:
		return len(digits) >= 4
	case len(prefix) <= 4:
		return len(digits) >= 5 && (fromTheStart(digits) || len(digits) >= 7)
	default:
		return len(digits) >= 8
	}
}

// fromTheStart reports digits that count up from 0 or 1. Real serials count from elsewhere, or back, by chance.
func fromTheStart(digits string) bool { return digits[0] <= '1' && upwards(digits) }

// countingParts reports runs of letters and of digits that all count, each of three or more, the first from its start:
// "123ABC", "ABC123XYZ".
func countingParts(f string) bool {
	if f[0] != 'a' && f[0] > '1' {
		return false
	}
	parts := 0
	for f != "" {
		n := strings.IndexFunc(f, func(r rune) bool { return hasDigit(string(r)) != hasDigit(f[:1]) })
		if n < 0 {
			n = len(f)
		}
		if n < 3 || !inOrder(f[:n]) {
			return false
		}
		parts, f = parts+1, f[n:]
	}
	return parts >= 2
}

// interleaved reports letters from a and digits from 1 in turn: "A1B2C3", "1A2B3C4D5E".
func interleaved(f string) bool {
	var even, odd strings.Builder
	for i := range len(f) {
		if i%2 == 0 {
			even.WriteByte(f[i])
		} else {
			odd.WriteByte(f[i])
		}
	}
	x, y := even.String(), odd.String()
	return len(y) >= 3 && inOrder(x) && inOrder(y) && (x[0] == 'a' && y[0] <= '1' || x[0] <= '1' && y[0] == 'a')
}

// inOrder reports at least two characters, each the next of the one before, or each the previous one. After "9" comes
// "0" or "a". Longer text may skip that "0", go on after "f", or start over after three.
func inOrder(s string) bool {
	if len(s) < 2 {
		return false
	}
	reversed := []byte(s)
	slices.Reverse(reversed)
	return upwards(s) || upwards(string(reversed))
}

func upwards(s string) bool {
	run := 1
	for i := 1; i < len(s); i++ {
		switch prev, next := s[i-1], s[i]; {
		case next == prev+1,
			prev == '9' && (next == '0' || next == 'a' || next == '1' && len(s) >= 10),
			prev == 'f' && (next == '0' || next == '1') && len(s) >= 10:
			run++
		case run >= 3 && next == s[0] && (len(s) >= 8 || len(s) >= 6 && s[0] <= '1'):
			run = 1
		default:
			return false
		}
	}
	return true
}

// nearlyZero reports zeros with a word that labels a serial, with at most four letters, or with one other digit:
// "SERIAL0001", "A0000000000", "10000000". The zeros of a real serial stand among other digits.
func nearlyZero(f string) bool {
	rest := strings.TrimLeft(f, "abcdefghijklmnopqrstuvwxyz")
	prefix := f[:len(f)-len(rest)]
	zeros := strings.Count(rest, "0")
	if strings.Trim(rest, "0123456789") != "" || zeros < 3 || len(rest)-zeros > 1 {
		return false
	}
	switch {
	case labels[prefix] || fillerVocabulary().words[prefix] && len(prefix) >= minText:
		return true
	case prefix == "":
		return len(rest) >= 6
	default:
		return len(prefix) <= 4 && zeros >= 7 && len(rest) == zeros
	}
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

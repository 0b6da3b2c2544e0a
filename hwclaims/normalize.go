package hwclaims

import (
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// cleanText returns s as text: valid UTF-8 up to the first NUL, every run of space, control and unprintable characters as
// one space, none at either end. It reports false when s is not valid UTF-8: such bytes would become the same U+FFFD in
// JSON, whatever they were, and two machines one.
func cleanText(s string) (string, bool) {
	s = strings.TrimLeft(s, "\x00")
	if i := strings.IndexByte(s, 0); i >= 0 {
		s = s[:i]
	}
	if !utf8.ValidString(s) {
		return "", false
	}
	var b strings.Builder
	space := false
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) {
			space = b.Len() > 0
			continue
		}
		if space {
			b.WriteByte(' ')
			space = false
		}
		b.WriteRune(r)
	}
	return b.String(), true
}

// NormalizeSerial returns the one spelling of a serial number: clean text, ASCII letters in upper case. Other letters
// keep their case, because their folding depends on language and Unicode version. It returns "" for what is not text.
func NormalizeSerial(s string) string {
	s, ok := cleanText(s)
	if !ok {
		return ""
	}
	return strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' {
			return r - 'a' + 'A'
		}
		return r
	}, s)
}

// NormalizeUUID returns a UUID in lower case with dashes, as 8-4-4-4-12. It takes exactly that form or the same 32 digits
// without dashes, in either case, and reports false for everything else. Version and variant are not checked: real
// boards get them wrong.
func NormalizeUUID(s string) (string, bool) {
	s, ok := cleanText(s)
	if !ok {
		return "", false
	}
	digits := s
	if len(s) == 36 {
		if s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
			return "", false
		}
		digits = s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	}
	if len(digits) != 32 {
		return "", false
	}
	raw, err := hex.DecodeString(digits)
	if err != nil {
		return "", false
	}
	return formatUUID([16]byte(raw)), true
}

func formatUUID(u [16]byte) string {
	d := hex.EncodeToString(u[:])
	return d[:8] + "-" + d[8:12] + "-" + d[12:16] + "-" + d[16:20] + "-" + d[20:]
}

func parseUUID(s string) ([16]byte, bool) {
	s, ok := NormalizeUUID(s)
	if !ok {
		return [16]byte{}, false
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil {
		return [16]byte{}, false
	}
	return [16]byte(raw), true
}

// NormalizeMAC returns a 6-byte hardware address as aa:bb:cc:dd:ee:ff. It takes aa:bb:cc:dd:ee:ff, aa-bb-cc-dd-ee-ff,
// aabb.ccdd.eeff and aabbccddeeff in either case, and reports false for everything else.
func NormalizeMAC(s string) (string, bool) {
	mac, ok := parseMAC(s)
	if !ok {
		return "", false
	}
	return formatMAC(mac), true
}

// BootMAC returns the address of a NIC that boots from the network as [NormalizeMAC] does, and reports false for one that no
// NIC can have: a group address, or all zero. One that identifies no machine, such as a virtual machine's, is good.
func BootMAC(s string) (string, bool) {
	m, ok := parseMAC(s)
	if !ok || m[0]&1 != 0 || m == [6]byte{} {
		return "", false
	}
	return formatMAC(m), true
}

func formatMAC(m [6]byte) string {
	const digits = "0123456789abcdef"
	b := make([]byte, 0, 17)
	for i, x := range m {
		if i > 0 {
			b = append(b, ':')
		}
		b = append(b, digits[x>>4], digits[x&15])
	}
	return string(b)
}

func parseMAC(s string) ([6]byte, bool) {
	s, ok := cleanText(s)
	if !ok {
		return [6]byte{}, false
	}
	digits := s
	switch len(s) {
	case 17:
		sep := s[2]
		if sep != ':' && sep != '-' {
			return [6]byte{}, false
		}
		if strings.Count(s, string(sep)) != 5 {
			return [6]byte{}, false
		}
		digits = s[0:2] + s[3:5] + s[6:8] + s[9:11] + s[12:14] + s[15:17]
	case 14:
		if s[4] != '.' || s[9] != '.' {
			return [6]byte{}, false
		}
		digits = s[0:4] + s[5:9] + s[10:14]
	}
	if len(digits) != 12 {
		return [6]byte{}, false
	}
	raw, err := hex.DecodeString(digits)
	if err != nil {
		return [6]byte{}, false
	}
	return [6]byte(raw), true
}

// NormalizeGPU returns a whole GPU's UUID as "GPU-" and the UUID in lower case with dashes. It reports false for
// everything else: a MIG or vGPU instance's id, and the question marks of a GPU that did not start.
func NormalizeGPU(s string) (string, bool) {
	s, ok := cleanText(s)
	if !ok || len(s) != len(gpuPrefix)+36 || !strings.EqualFold(s[:len(gpuPrefix)], gpuPrefix) {
		return "", false
	}
	u, ok := NormalizeUUID(s[len(gpuPrefix):])
	if !ok {
		return "", false
	}
	return gpuPrefix + u, true
}

const gpuPrefix = "GPU-"

package hwclaims

import (
	"encoding/hex"
	"strings"
)

// fillerMAC says why an address is no identifier, "" when it may be one: an identifier is unicast, globally administered
// and not shared.
func fillerMAC(m [6]byte) string {
	d := hex.EncodeToString(m[:])
	k := knownFiller()
	switch {
	case m == [6]byte{}:
		return "all zero"
	case k.mac[m]:
		return "known shared MAC"
	case m[0]&1 != 0:
		return "multicast"
	case m[0]&2 != 0:
		return "locally administered"
	case strings.Repeat(d[:2], 6) == d:
		return "one repeated byte"
	case countingMAC(m, d):
		return "counting"
	case m[0] == 0 && m[1] == 0 && m[2] == 0 && m[3] == 0:
		return "nearly all zero"
	}
	for _, p := range k.prefix {
		if strings.HasPrefix(d, p) {
			return "known shared MAC"
		}
	}
	return ""
}

// countingMAC finds 00:11:22:33:44:55, 00:01:02:03:04:05, 00:12:34:56:78:9a and their kind.
func countingMAC(m [6]byte, digits string) bool {
	step := m[1] - m[0]
	if step == 1 || step == 0x11 || step == 0xff || step == 0xef {
		same := true
		for i := 1; i < len(m); i++ {
			same = same && m[i]-m[i-1] == step
		}
		if same {
			return true
		}
	}
	return upwards(digits) || upwards(digits[1:])
}

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

// countingMAC finds at least five bytes that count by one or by 0x11, and digits that count: 00:11:22:33:44:55,
// 00:02:03:04:05:06, 00:12:34:56:78:9a.
func countingMAC(m [6]byte, digits string) bool {
	for _, step := range []byte{1, 0xff, 0x11, 0xef} {
		run := 0
		for i := 1; i < len(m); i++ {
			if run = next(run, m[i]-m[i-1] == step); run == 4 {
				return true
			}
		}
	}
	return upwards(digits) || upwards(digits[1:])
}

package hwclaims

import (
	"encoding/hex"
	"strings"
)

// minMACBytes is how many equal steps in a row count: 00:11:22:33:44:.., ..:02:03:04:05:06, 00:a0:b0:c0:d0:e0.
const minMACBytes = 4

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
	case oneByte(d[2:]), d[:4] == d[4:8] && d[:4] == d[8:], d[:6] == d[6:]:
		return "repeated bytes"
	case equalSteps(m[:]) >= minMACBytes, upwards("0" + strings.TrimLeft(d, "0")):
		return "counting"
	case [4]byte(m[:4]) == [4]byte{}, [4]byte(m[1:5]) == [4]byte{}:
		return "nearly all zero"
	}
	if why := hexWord(d); why != "" {
		return why
	}
	for _, p := range k.prefix {
		if strings.HasPrefix(d, p) {
			return "known shared MAC"
		}
	}
	return ""
}

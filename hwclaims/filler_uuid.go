package hwclaims

import (
	"encoding/hex"
	"math/bits"
	"strings"
)

// whyNotUUID says why a product UUID that does not parse is dropped.
func whyNotUUID(raw string) string {
	s, ok := cleanText(raw)
	switch {
	case !ok:
		return whyNotText
	case s == "":
		return whyBlank
	default:
		return "not a UUID"
	}
}

// fillerUUID says why a UUID is no identifier, "" when it may be one. Both byte orders of the first three groups are
// judged: older firmware and kernels print the other one.
func fillerUUID(u [16]byte) string {
	swapped := swapUUID(u)
	if k := knownFiller().uuid; k[u] || k[swapped] {
		return "known placeholder"
	}
	for _, v := range [][16]byte{u, swapped} {
		for _, rule := range uuidRules() {
			if why := rule(v); why != "" {
				return why
			}
		}
	}
	return ""
}

// uuidRules judge one byte order. Real UUIDs come close: a MAC after twenty zeros (Supermicro), the text of a SKU and a
// serial (HP), a service tag in a fixed frame (Dell), a MAC in a fixed frame (AMI).
func uuidRules() []func([16]byte) string {
	return []func([16]byte) string{repeatedUUID, countingUUID, sparseUUID, hexWordUUID, macUUID, dellUUID, amiUUID, textUUID}
}

// repeatedUUID finds one repeated digit, byte or unit of up to eight bytes, two digits in any order, and bytes or groups
// of one repeated digit each.
func repeatedUUID(u [16]byte) string {
	d := hex.EncodeToString(u[:])
	if strings.Trim(d[1:], d[:1]) == "" {
		return "one repeated digit"
	}
	for _, n := range []int{2, 4, 8, 16} {
		if strings.Repeat(d[:n], 32/n) == d {
			return "one repeated unit"
		}
	}
	if rest := strings.ReplaceAll(d, d[:1], ""); strings.Trim(rest, rest[:1]) == "" && strings.Trim(d, "0"+rest[:1]) != "" {
		return "two digits"
	}
	if doubledBytes(u) {
		return "bytes of one repeated digit"
	}
	for _, group := range strings.Split(formatUUID(u), "-") {
		if strings.Trim(group, group[:1]) != "" {
			return ""
		}
	}
	return "groups of one repeated digit"
}

func doubledBytes(u [16]byte) bool {
	for _, b := range u {
		if b>>4 != b&15 {
			return false
		}
	}
	return true
}

const (
	minUUIDDigits = 18 // of 31 steps from digit to digit; two are expected in a random UUID
	minUUIDBytes  = 7  // steps in a row from byte to byte
)

// countingUUID finds digits or bytes that count: 12345678-90ab-…, 00010203-0405-…, …-0807-060504030201.
func countingUUID(u [16]byte) string {
	d := hex.EncodeToString(u[:])
	steps := 0
	for i := 1; i < len(d); i++ {
		if d[i] != d[i-1] && upwards(d[i-1:i+1]) {
			steps++
		}
	}
	up, down := 0, 0
	for i := 1; i < len(u); i++ {
		up, down = next(up, u[i] == u[i-1]+1), next(down, u[i] == u[i-1]-1)
		if up >= minUUIDBytes || down >= minUUIDBytes {
			return "counting bytes"
		}
	}
	if steps >= minUUIDDigits {
		return "counting digits"
	}
	return ""
}

func next(run int, goesOn bool) int {
	if goesOn {
		return run + 1
	}
	return 0
}

// maxStrayBits is how many bits differ from all zeros or all ones by accident.
const maxStrayBits = 4

// sparseUUID finds a few single bits: 10000000-0000-8000-0040-000000000000.
func sparseUUID(u [16]byte) string {
	set := 0
	for _, b := range u {
		set += bits.OnesCount8(b)
	}
	switch {
	case set <= maxStrayBits:
		return "nearly all zero"
	case set >= 8*len(u)-maxStrayBits:
		return "nearly all ones"
	default:
		return ""
	}
}

// hexWords are words that programmers spell in hex digits where a value is still missing.
var hexWords = []string{"deadbeef", "deadc0de", "cafebabe", "feedface", "baadf00d", "badc0ffee", "deaddead"}

func hexWordUUID(u [16]byte) string {
	d := hex.EncodeToString(u[:])
	for _, w := range hexWords {
		if strings.Contains(d, w) {
			return "a programmer's hex word"
		}
	}
	return ""
}

// macUUID judges a UUID that is nothing but a MAC after ten zero bytes: it is as good as the MAC.
func macUUID(u [16]byte) string {
	if [10]byte(u[:10]) != [10]byte{} {
		return ""
	}
	if why := fillerMAC([6]byte(u[10:])); why != "" {
		return "a MAC alone: " + why
	}
	return ""
}

// dellUUID decodes the service tag inside a Dell UUID (DELL, then the tag in a fixed frame) and judges it. A board whose
// tag was never written has blanks there.
func dellUUID(u [16]byte) string {
	if string(u[:4]) != "LLED" || u[4] != 0 || u[7] != 0x10 || u[8] != 0x80 || u[11] != 0xc0 || u[12] != 0x4f {
		return ""
	}
	tag := strings.TrimRight(string([]byte{u[10] & 0x7f, u[5], u[6], u[9], u[13], u[14], u[15]}), " \x00")
	if len(tag) < 5 || strings.Trim(strings.ToLower(tag), "0123456789abcdefghijklmnopqrstuvwxyz") != "" {
		return "a Dell UUID without a service tag"
	}
	if why := fillerText(tag, nil); why != "" {
		return "a Dell UUID of a placeholder tag: " + why
	}
	return ""
}

// amiUUID decodes the MAC inside AMI's template (03..02..-04..-05..-..06-..07..080009) and judges it. Where the MAC was
// never programmed it is the same UUID on every board.
func amiUUID(u [16]byte) string {
	if u[0] != 3 || u[2] != 2 || u[4] != 4 || u[6] != 5 || u[9] != 6 || u[11] != 7 || u[12] != 0 || u[13] != 8 || u[14] != 0 || u[15] != 9 {
		return ""
	}
	if why := fillerMAC([6]byte{u[3], u[1], u[5], u[7], u[8], u[10]}); why != "" {
		return "AMI's template: " + why
	}
	return ""
}

// textUUID judges a UUID whose bytes are text, as HP makes it: six characters of SKU and ten of serial.
func textUUID(u [16]byte) string {
	const sku = 6
	for i, b := range u {
		blank := b == 0 || b == 0xff
		if !blank && (b < 0x20 || b > 0x7e) || blank && i < sku {
			return ""
		}
	}
	text := strings.Map(func(r rune) rune {
		if r == 0 || r > 0x7e {
			return ' '
		}
		return r
	}, string(latin1(u[:])))
	serial, _ := cleanText(text[sku:])
	whole, _ := cleanText(text)
	for _, s := range []string{serial, whole} {
		if why := fillerText(s, nil); why != "" {
			return "text of a placeholder: " + why
		}
	}
	return ""
}

// latin1 reads bytes as one rune each.
func latin1(b []byte) []rune {
	r := make([]rune, len(b))
	for i, x := range b {
		r[i] = rune(x)
	}
	return r
}

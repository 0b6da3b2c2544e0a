package hwclaims

import (
	"encoding/binary"
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

// minUUIDKinds is the fewest different digits of a UUID that was not typed by hand.
const minUUIDKinds = 4

// repeatedUUID finds one repeated digit, byte or unit of up to eight bytes, a few digits in any order, bytes of one
// repeated digit each, groups of one repeated byte each, and a number before one repeated byte.
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
	if kinds(d) < minUUIDKinds {
		return "few different digits"
	}
	if doubledBytes(u) {
		return "bytes of one repeated digit"
	}
	if oneByte(d[8:]) { // FreeBSD refuses ????????-ffff-ffff-ffff-ffffffffffff
		return "a number and one repeated byte"
	}
	for _, group := range strings.Split(formatUUID(u), "-") {
		if !oneByte(group) {
			return ""
		}
	}
	return "groups of one repeated byte"
}

// kinds counts the different characters of a text.
func kinds(s string) int {
	n := 0
	for i := range len(s) {
		if strings.IndexByte(s, s[i]) == i {
			n++
		}
	}
	return n
}

// oneByte reports hex digits of one repeated byte.
func oneByte(digits string) bool { return strings.Repeat(digits[:2], len(digits)/2) == digits }

// doubledBytes reports bytes of one repeated digit each, but for the two that hold version and variant. A MAC after
// zeros ("00000000-0000-0000-0000-002590000001") is none.
func doubledBytes(u [16]byte) bool {
	strays, zeros := 0, 0
	for i, b := range u {
		if b>>4 != b&15 && i != 6 && i != 8 {
			strays++
		}
		if b == 0 {
			zeros++
		}
	}
	return strays == 0 && zeros <= len(u)/2
}

const (
	minUUIDDigits = 18 // of 31 steps from digit to digit; four are expected in a random UUID
	minUUIDBytes  = 7  // equal steps in a row from byte to byte
	minUUIDWords  = 5  // equal steps in a row from one pair of bytes to the next
)

// countingUUID finds digits, bytes or pairs of bytes that count by whatever step: 12345678-90ab-…, 00010203-0405-…,
// …-0807-060504030201, 10203040-5060-…, 00010002-0003-….
func countingUUID(u [16]byte) string {
	d := hex.EncodeToString(u[:])
	steps := 0
	for i := 1; i < len(d); i++ {
		if d[i] != d[i-1] && inOrder(d[i-1:i+1]) {
			steps++
		}
	}
	if steps >= minUUIDDigits {
		return "counting digits"
	}
	if equalSteps(u[:]) >= minUUIDBytes {
		return "counting bytes"
	}
	words := make([]uint16, 8)
	for i := range words {
		words[i] = binary.BigEndian.Uint16(u[2*i:])
	}
	if equalSteps(words) >= minUUIDWords {
		return "counting"
	}
	return ""
}

// equalSteps returns how often in a row numbers go on by one step that is not zero.
func equalSteps[T byte | uint16](numbers []T) int {
	longest, run := 0, 0
	for i := 1; i < len(numbers); i++ {
		step := numbers[i] - numbers[i-1]
		switch {
		case step == 0:
			run = 0
		case i > 1 && step == numbers[i-1]-numbers[i-2]:
			run++
		default:
			run = 1
		}
		longest = max(longest, run)
	}
	return longest
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

func hexWordUUID(u [16]byte) string { return hexWord(hex.EncodeToString(u[:])) }

func hexWord(digits string) string {
	for _, w := range hexWords {
		if strings.Contains(digits, w) {
			return "a programmer's hex word"
		}
	}
	return ""
}

// macUUID judges a UUID that is nothing but a MAC, after ten zero bytes or after Apple's constant: it is as good as the
// MAC.
func macUUID(u [16]byte) string {
	if head := [10]byte(u[:10]); head != [10]byte{} && head != [10]byte{6: 0x10, 8: 0x80} {
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

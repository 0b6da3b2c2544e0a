package hwclaims

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

//go:embed placeholders.txt
var placeholdersTxt string

// known is the list of placeholders: whole texts, UUIDs, MAC addresses and MAC prefixes that no rule can tell from real
// ones, or that were simply seen.
type known struct {
	text   map[string]bool   // folded
	uuid   map[[16]byte]bool // in the spelling of the list
	mac    map[[6]byte]bool
	prefix []string // lower-case hex digits of a MAC's start
}

// knownFiller is read once, at first use. The list is part of the program, so a malformed line is a bug of the program.
var knownFiller = sync.OnceValue(func() known {
	k, err := parsePlaceholders(placeholdersTxt)
	if err != nil {
		panic(fmt.Sprintf("hwclaims: placeholders.txt: %v", err))
	}
	return k
})

// parsePlaceholders reads lines of kind, value and source, separated by tabs. Kinds are text, uuid, mac and mac-prefix.
// A line that starts with # is a comment.
func parsePlaceholders(list string) (known, error) {
	k := known{text: map[string]bool{}, uuid: map[[16]byte]bool{}, mac: map[[6]byte]bool{}}
	for i, line := range strings.Split(list, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, "\t")
		if len(parts) != 3 || parts[2] == "" {
			return known{}, fmt.Errorf("line %d: want kind, value and source, separated by tabs", i+1)
		}
		if !k.add(parts[0], parts[1]) {
			return known{}, fmt.Errorf("line %d: %q is no value of kind %q", i+1, parts[1], parts[0])
		}
	}
	return k, nil
}

func (k *known) add(kind, value string) bool {
	switch kind {
	case "text":
		f := fold(value)
		k.text[f] = true
		return f != ""
	case "uuid":
		u, ok := parseUUID(value)
		k.uuid[u] = true
		return ok
	case "mac":
		m, ok := parseMAC(value)
		k.mac[m] = true
		return ok
	case "mac-prefix":
		p := strings.ReplaceAll(value, ":", "")
		k.prefix = append(k.prefix, p)
		return len(p) >= 6 && len(p) < 12 && strings.Trim(p, "0123456789abcdef") == ""
	default:
		return false
	}
}

// minText is the fewest letters and digits that can tell machines apart: product lines ship with the serial "42".
const minText = 3

// fillerText says why a text (clean, as claimed) is no identifier, "" when it may be one. names are the words of the
// vendor's and the product's name.
func fillerText(text string, names []string) string {
	f := fold(text)
	switch {
	case f == "":
		return "only punctuation"
	case oneRune(f) || oneRune(strings.TrimPrefix(f, "0x")):
		return "one repeated character"
	case utf8.RuneCountInString(f) < minText:
		return fmt.Sprintf("fewer than %d letters and digits", minText)
	case knownFiller().text[f]:
		return "known placeholder"
	case templateToken(text, f):
		return "template token"
	case counting(f):
		return "counting"
	case nearlyZero(f):
		return "nearly all zero"
	case repeatedUnit(f):
		return "repeated characters"
	case fillerUUIDText(f):
		return "a placeholder UUID"
	case fillerWords(text, f):
		return "names of fields, or words for nothing"
	case echo(f, names):
		return "echo of vendor/product name"
	case onlyWords(text, f):
		return "words, not a serial"
	default:
		return ""
	}
}

// fillerUUIDText judges a serial that spells a UUID, as virtual machines have: bare, or after the hypervisor's name.
func fillerUUIDText(f string) bool {
	u, ok := parseUUID(strings.TrimPrefix(f, "vmware"))
	return ok && fillerUUID(u) != ""
}

// echo reports words of the vendor's and the product's name, filler's words among them, or the cut start of the names.
func echo(f string, names []string) bool {
	for i := range names {
		if whole := strings.Join(names[i:], ""); len(f) >= minPart && strings.HasPrefix(whole, f) {
			return true
		}
	}
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	echoed := false
	return madeOf(f, func(w string) bool {
		if set[w] {
			echoed = true
			return true
		}
		return len(w) >= minText && fillerVocabulary().words[w]
	}) && echoed
}

func oneRune(s string) bool {
	first, n := utf8.DecodeRuneInString(s)
	return strings.Trim(s[n:], string(first)) == ""
}

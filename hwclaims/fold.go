package hwclaims

import (
	"regexp"
	"strings"
	"sync"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// fold returns the letters and digits of s, in lower case and without accents: the form in which filler is compared.
// It never reaches the hardware key, so it may follow Unicode.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, norm.NFKD.String(s))
}

func foldAll(values []string) map[string]bool {
	folded := make(map[string]bool, len(values))
	for _, v := range values {
		if f := fold(v); f != "" {
			folded[f] = true
		}
	}
	return folded
}

// foldWords returns the words of s, folded: parts between anything but letters and digits, between a small and a capital
// letter, and between letters and digits.
func foldWords(s string) []string {
	var words []string
	var b strings.Builder
	flush := func() {
		if b.Len() > 0 {
			words = append(words, b.String())
			b.Reset()
		}
	}
	var last rune
	for _, r := range norm.NFKD.String(s) {
		switch {
		case unicode.Is(unicode.Mn, r): // an accent, taken off its letter
			continue
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			flush()
		case unicode.IsUpper(r) && unicode.IsLower(last), unicode.IsDigit(r) != unicode.IsDigit(last):
			flush()
			b.WriteRune(unicode.ToLower(r))
		default:
			b.WriteRune(unicode.ToLower(r))
		}
		last = r
	}
	flush()
	return words
}

// nameWords returns the words of the names, folded, cut only where no letter or digit stands: "R750" stays one.
func nameWords(names ...string) []string {
	var words []string
	for _, n := range names {
		for _, w := range strings.FieldsFunc(norm.NFKD.String(n), func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.Is(unicode.Mn, r)
		}) {
			if f := fold(w); len(f) >= 2 {
				words = append(words, f)
			}
		}
	}
	return words
}

// maxWord is the length of the longest word that [madeOf] looks for, in bytes. It bounds the work that a hostile claim
// makes.
const maxWord = 32

// madeOf reports whether s is a sequence of words from a set.
func madeOf(s string, word func(string) bool) bool {
	ends := make([]bool, len(s)+1) // ends[i]: s[:i] is such a sequence
	ends[0] = true
	for i := 1; i <= len(s); i++ {
		for j := max(0, i-maxWord); j < i; j++ {
			if ends[j] && word(s[j:i]) {
				ends[i] = true
				break
			}
		}
	}
	return len(s) > 0 && ends[len(s)]
}

func hasDigit(s string) bool { return strings.ContainsFunc(s, unicode.IsDigit) }

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// pattern returns a regular expression that is compiled at its first use: most runs of the programs that link this
// package need none.
func pattern(s string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(s) })
}

package hwclaims

import (
	_ "embed"
	"strings"
	"sync"
	"unicode"
)

//go:embed words.txt
var wordsTxt string

// vocabulary is what filler is made of: words that name a field or its absence, and the texts that contain them.
type vocabulary struct {
	words  map[string]bool
	marks  []string // folded text that no serial contains
	wholes []string // defaults that are cut short or partly overwritten, folded
}

var fillerVocabulary = sync.OnceValue(func() vocabulary {
	v := vocabulary{words: map[string]bool{}}
	for line := range strings.SplitSeq(wordsTxt, "\n") {
		kind, rest, _ := strings.Cut(line, ":")
		for part := range strings.SplitSeq(rest, ",") {
			f := fold(part)
			if strings.HasPrefix(line, "#") || f == "" {
				continue
			}
			switch kind {
			case "word":
				v.words[f] = true
			case "mark":
				v.marks = append(v.marks, f)
			case "whole":
				v.wholes = append(v.wholes, f)
			default:
				panic("hwclaims: words.txt: unknown kind " + kind)
			}
		}
	}
	return v
})

const (
	minPart = 5 // letters of a default that was cut short
	minRest = 8 // letters in a row of a default that was partly overwritten
	maxSlip = 2 // misspelt letters in a default
	// maxIndex is the most digits that number a field ("SYS_CHASSIS_MANUFACTURER_1") and not a machine.
	maxIndex = 3
)

// fillerWords reports text made of words that name a field or its absence, in whole or cut, overwritten or misspelt.
func fillerWords(text, f string) bool {
	v := fillerVocabulary()
	plain := unleet(f)
	for _, m := range v.marks {
		if strings.Contains(f, m) || strings.Contains(plain, m) {
			return true
		}
	}
	for _, w := range v.wholes {
		if len(f) >= minPart && (strings.HasPrefix(w, f) || strings.HasSuffix(w, f)) ||
			shareRun(plain, w, minRest) || len(w) > 4*maxSlip && distanceAtMost(plain, w, maxSlip) {
			return true
		}
	}
	return v.composed(text)
}

// oem is "O.E.M." as one word.
var oem = pattern(`(?i)o\.e\.m\.?`)

// composed reports text in which every word belongs to the vocabulary and no number is longer than an index. Where there
// is a number, one of the words must be long: short ones stand in real serials by chance.
func (v vocabulary) composed(text string) bool {
	digits, letters, longest := 0, 0, 0
	for _, w := range foldWords(oem().ReplaceAllString(text, "oem ")) {
		if hasDigit(w) {
			digits += len(w)
			continue
		}
		letters += len(w)
		longest = max(longest, len(w))
		if !v.words[w] && !v.misspelt(w) && !v.glued(strings.TrimSuffix(w, "sn")) {
			return false
		}
	}
	return letters >= minText && digits <= maxIndex && (digits == 0 || longest > minText)
}

// glued reports words of the vocabulary without anything between them: "SYSTEMSERIAL".
func (v vocabulary) glued(w string) bool {
	return madeOf(w, func(part string) bool { return len(part) >= minText && v.words[part] })
}

// misspelt reports a word that is one letter off, or two off where it is long, or the long start of one.
func (v vocabulary) misspelt(w string) bool {
	if len(w) < 6 || !isASCII(w) {
		return false
	}
	for known := range v.words {
		slips := 1
		if len(known) >= 9 {
			slips = maxSlip
		}
		if len(known) >= 6 && distanceAtMost(w, known, slips) || strings.HasPrefix(known, w) {
			return true
		}
	}
	return false
}

// onlyWords reports text without a digit that is a phrase (two words or more, one of them of four letters), or that is
// written in another script than a serial's. A serial without digits is one run of ASCII letters.
func onlyWords(text, f string) bool {
	if hasDigit(f) {
		return false
	}
	if !isASCII(f) {
		return true
	}
	words, long := 0, false
	for _, w := range strings.FieldsFunc(text, func(r rune) bool { return !unicode.IsLetter(r) && r != '\'' }) {
		if len(w) >= 2 {
			words++
		}
		long = long || len(w) >= 4
	}
	return words >= 2 && long
}

var leet = strings.NewReplacer("0", "o", "1", "l", "3", "e", "4", "a", "5", "s", "7", "t")

// unleet reads digits as the letters that they resemble: "T0 be fi11ed". A serial's digits are digits ("GJG8N07537A22307"
// does not say "not set"): text is letters for the most part.
func unleet(f string) string {
	digits := 0
	for _, r := range f {
		if unicode.IsDigit(r) {
			digits++
		}
	}
	if 3*digits > len(f) {
		return f
	}
	return leet.Replace(f)
}

// shareRun reports whether s and whole have n bytes in a row in common.
func shareRun(s, whole string, n int) bool {
	for i := 0; i+n <= len(whole); i++ {
		if strings.Contains(s, whole[i:i+n]) {
			return true
		}
	}
	return false
}

// distanceAtMost reports whether at most n inserted, removed or replaced bytes turn a into b.
func distanceAtMost(a, b string, n int) bool {
	if len(a)-len(b) > n || len(b)-len(a) > n {
		return false
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = min(diagonal, row[j], row[j+1]) + 1
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return row[len(b)] <= n
}

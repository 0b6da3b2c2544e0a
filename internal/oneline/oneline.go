// Package oneline makes text that somebody else wrote safe to print: a gateway's message, a name in a file, a hardware
// string.
//
// The result is one line that cannot move the cursor, begin an escape sequence, turn the direction of writing or add a
// field of its own to a protocol of lines (sd_notify's, for instance). What is printable stays as it is, in any script.
// The package decides nothing about what a text means, and quotes nothing that is printable: that is %q's.
package oneline

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with every character that does not print, and every byte that is no UTF-8, as a Go escape (\n, \x1b,
// \u202e).
func Text(s string) string {
	if Printable(s) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if escaped(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Bounded returns [Text] of at most limit bytes of s, and says with an ellipsis that it cut.
func Bounded(s string, limit int) string {
	if len(s) <= limit {
		return Text(s)
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return Text(s[:limit]) + "…"
}

// Printable reports whether [Text] returns s as it is.
func Printable(s string) bool { return !strings.ContainsFunc(s, escaped) }

// escaped reports whether a character may not be printed. The replacement character stands for bytes that are no UTF-8.
func escaped(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }

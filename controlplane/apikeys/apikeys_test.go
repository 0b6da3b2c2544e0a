package apikeys_test

import (
	"strings"
	"testing"

	"github.com/better-compute/bcd/controlplane/apikeys"
)

func TestTextOfKeys(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		text, digest := apikeys.New()
		if len(text) != len("bcak_")+43 || seen[text] {
			t.Fatalf("key %q", text)
		}
		seen[text] = true
		if got, ok := apikeys.Digest(text); !ok || got != digest {
			t.Fatalf("the digest of %q is not the one that it was made with", text)
		}
	}
	good, _ := apikeys.New()
	for name, text := range map[string]string{
		"nothing":                           "",
		"no prefix":                         strings.TrimPrefix(good, "bcak_"),
		"another prefix":                    "bcjt_" + strings.TrimPrefix(good, "bcak_"),
		"cut off":                           good[:len(good)-1],
		"longer":                            good + "A",
		"padded":                            good + "=",
		"a line break":                      good[:20] + "\n" + good[20:],
		"standard base64":                   "bcak_" + strings.Repeat("+", 43),
		"another spelling of the last bits": good[:len(good)-1] + string("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[1+strings.IndexByte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", good[len(good)-1])]),
	} {
		if _, ok := apikeys.Digest(text); ok {
			t.Errorf("%s: %q is a key", name, text)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		entries []string
		entry   string
		want    bool
	}{
		{nil, "compute:nodes:read", false},
		{[]string{"compute:nodes:read"}, "compute:nodes:read", true},
		{[]string{"compute:nodes:*"}, "compute:nodes:read", true},
		{[]string{"compute:*"}, "compute:nodes:read", true},
		{[]string{"compute:*"}, "compute:nodes:*", true},
		{[]string{"compute:*"}, "compute:*", true},
		{[]string{"compute:nodes:*"}, "compute:nodes:*", true},
		{[]string{"compute:nodes:*"}, "compute:*", false},
		{[]string{"compute:nodes:read", "compute:nodes:adopt"}, "compute:nodes:*", false},
		{[]string{"compute:nodes:read"}, "compute:nodes:reader", false},
		{[]string{"compute:nod*"}, "compute:nodes:read", false},
		{[]string{"*"}, "compute:nodes:read", false},
		{[]string{""}, "compute:nodes:read", false},
		{[]string{":*"}, "compute:nodes:read", false},
		{[]string{"compute:nodes:"}, "compute:nodes:read", false},
	} {
		if got := apikeys.Covers(c.entries, c.entry); got != c.want {
			t.Errorf("%q covers %q: %t", c.entries, c.entry, got)
		}
	}
}

// What a chain of keys can do never grows.
func FuzzCovers(f *testing.F) {
	f.Add("compute:*", "compute:nodes:*", "compute:nodes:read")
	f.Add("compute:nodes:*", "compute:*", "compute:events:read")
	f.Add(":*", "::*", "::")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		if apikeys.Covers([]string{a}, b) && apikeys.Covers([]string{b}, c) && !apikeys.Covers([]string{a}, c) {
			t.Errorf("%q covers %q, that covers %q, and the first does not", a, b, c)
		}
	})
}

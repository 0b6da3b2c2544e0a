package bearer_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/better-compute/bcd/internal/bearer"
)

const (
	id     = "jt_01k5w0x5eqf2rvs3y5c6hz8m9t"
	secret = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8" // the bytes 0 to 31
	text   = "bcjt_" + id + "." + secret
)

// Req: JT-002 JT-003 JT-004
func TestParse(t *testing.T) {
	got, s, err := bearer.Parse([]byte(text))
	if err != nil || got != id {
		t.Fatalf("%q, %v", got, err)
	}
	raw, err := base64.RawURLEncoding.DecodeString(secret)
	if err != nil {
		t.Fatal(err)
	}
	if s.Digest() != sha256.Sum256(raw) {
		t.Error("the digest is not of the secret's bytes")
	}
	for name, bad := range map[string]string{
		"empty":                      "",
		"no prefix":                  id + "." + secret,
		"prefix in capitals":         "BCJT_" + id + "." + secret,
		"another prefix":             "bcst_" + id + "." + secret,
		"no dot":                     "bcjt_" + id + secret,
		"two dots":                   text + ".",
		"two dots in the middle":     "bcjt_" + id + ".." + secret,
		"no id":                      "bcjt_." + secret,
		"no secret":                  "bcjt_" + id + ".",
		"id of another kind":         "bcjt_node_01k5w0x5eqf2rvs3y5c6hz8m9t." + secret,
		"id without jt_":             "bcjt_01k5w0x5eqf2rvs3y5c6hz8m9t." + secret,
		"id with nothing after jt_":  "bcjt_jt_." + secret,
		"id in capitals":             "bcjt_jt_01K5W0X5EQF2RVS3Y5C6HZ8M9T." + secret,
		"id with a hyphen":           "bcjt_jt_01k5-." + secret,
		"id that is too long":        "bcjt_jt_" + strings.Repeat("0", 62) + "." + secret,
		"white space before":         " " + text,
		"white space after":          text + "\n",
		"white space inside":         "bcjt_" + id + ". " + secret,
		"line break in the secret":   "bcjt_" + id + "." + secret[:20] + "\n" + secret[20:],
		"line break for a character": "bcjt_" + id + "." + secret[:42] + "\n",
		"secret of 42 characters":    "bcjt_" + id + "." + secret[:42],
		"secret of 44 characters":    "bcjt_" + id + "." + secret + "A",
		"padded secret":              "bcjt_" + id + "." + secret + "=",
		"stray bits in the secret":   "bcjt_" + id + "." + secret[:42] + "9",
		"standard base64":            "bcjt_" + id + ".+/" + secret[2:],
		"not ASCII":                  "bcjt_" + id + "." + secret[:41] + "é",
		"NUL":                        text + "\x00",
	} {
		gotID, gotSecret, err := bearer.Parse([]byte(bad))
		if err == nil {
			t.Errorf("%s: parsed", name)
			continue
		}
		if gotID != "" || gotSecret != (bearer.Secret{}) {
			t.Errorf("%s: an error with a result", name)
		}
		if strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("%s: %v shows the secret", name, err)
		}
	}
}

// Req: JT-002
func TestParseLoose(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"a token":                     {text, true},
		"a longer secret of tomorrow": {text + "AAAA", true},
		"an id of tomorrow":           {"bcjt_JT2-x." + secret, true},
		"the largest":                 {"bcjt_a." + strings.Repeat("b", 4096-7), true},
		"too large":                   {"bcjt_a." + strings.Repeat("b", 4096-6), false},
		"empty":                       {"", false},
		"the prefix alone":            {"bcjt_", false},
		"no prefix":                   {id + "." + secret, false},
		"no dot":                      {"bcjt_" + id, false},
		"two dots":                    {text + ".x", false},
		"no id":                       {"bcjt_." + secret, false},
		"no secret":                   {"bcjt_" + id + ".", false},
		"white space inside":          {"bcjt_" + id + ". " + secret, false},
		"two tokens":                  {text + "\n" + text, false},
		"a line break at the end":     {text + "\n", false},
		"not ASCII":                   {text + "é", false},
		"NUL":                         {text + "\x00", false},
		"DEL":                         {text + "\x7f", false},
	} {
		token, err := bearer.ParseLoose([]byte(c.text))
		if (err == nil) != c.ok || token.IsZero() == c.ok {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok && string(token.Bytes()) != c.text {
			t.Errorf("%s: reads as %q", name, token.Bytes())
		}
		if err != nil && strings.Contains(err.Error(), secret[:20]) {
			t.Errorf("%s: %v shows the secret", name, err)
		}
	}
	token, err := bearer.ParseLoose([]byte(text))
	if err != nil || token.ID() != id {
		t.Errorf("id %q, %v", token.ID(), err)
	}
}

// Req: JT-004
func TestNewSecretsAreDistinctAndParse(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		s := bearer.NewSecret()
		token, err := s.Token(id)
		if err != nil {
			t.Fatal(err)
		}
		_, secretText, _ := strings.Cut(string(token.Bytes()), ".")
		if len(secretText) != 43 || seen[secretText] {
			t.Fatalf("secret of %d characters, seen before: %v", len(secretText), seen[secretText])
		}
		seen[secretText] = true
		gotID, again, err := bearer.Parse(token.Bytes())
		if err != nil || gotID != id || again != s {
			t.Fatalf("%q, %v", gotID, err)
		}
	}
	if _, err := bearer.NewSecret().Token("node_1"); err == nil {
		t.Error("a token with an id of another kind")
	}
}

func TestMatches(t *testing.T) {
	_, s, err := bearer.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	digest := s.Digest()
	if !s.Matches(digest[:]) {
		t.Error("not its own digest")
	}
	if bearer.NewSecret().Matches(digest[:]) || s.Matches(digest[:31]) || s.Matches(nil) || s.Matches(make([]byte, 32)) {
		t.Error("matches another digest")
	}
}

// A dump of the control plane's database must not be usable as tokens.
//
// Req: JT-007
func TestDigestIsNoSecret(t *testing.T) {
	_, s, err := bearer.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	digest := s.Digest()
	_, forged, err := bearer.Parse([]byte("bcjt_" + id + "." + base64.RawURLEncoding.EncodeToString(digest[:])))
	if err != nil {
		t.Fatal(err)
	}
	if forged.Matches(digest[:]) {
		t.Error("the stored digest passes as the secret")
	}
}

func TestNothingIsPrinted(t *testing.T) {
	token, err := bearer.ParseLoose([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	_, s, err := bearer.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	type holder struct {
		Token  bearer.Token
		Secret bearer.Secret
		Many   []bearer.Token
	}
	h := holder{token, s, []bearer.Token{token}}
	var out bytes.Buffer
	for _, v := range []any{token, &token, s, &s, h, &h, map[string]bearer.Token{"a": token}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%T:%v"} {
			if strings.HasPrefix(verb, "%T") {
				fmt.Fprintf(&out, verb+"\n", v, v)
				continue
			}
			fmt.Fprintf(&out, verb+"\n", v)
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		out.Write(b)
		slog.New(slog.NewTextHandler(&out, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "v", v)
	}
	got := out.String()
	raw, _ := base64.RawURLEncoding.DecodeString(secret)
	for _, leak := range []string{secret[:12], id, fmt.Sprintf("%x", text[:12]), fmt.Sprintf("%X", text[:12]), fmt.Sprintf("%x", raw[4:12]), "[98 99 106", "4 5 6 7 8", "0x4, 0x5"} {
		if strings.Contains(got, leak) {
			t.Errorf("%q is shown in %s", leak, got)
		}
	}
	if !strings.Contains(got, "token(redacted)") {
		t.Error("nothing says that there was a token")
	}
}

func TestWipeAndEqual(t *testing.T) {
	a, err := bearer.ParseLoose([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	b, err := bearer.ParseLoose([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !a.Equal(b) || a.Equal(bearer.Token{}) {
		t.Error("Equal")
	}
	alias := a
	a.Wipe()
	if a.Equal(b) || strings.Trim(string(alias.Bytes()), "\x00") != "" {
		t.Error("the text is still there")
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(text))
	f.Add([]byte("bcjt_jt_a." + strings.Repeat("-", 43)))
	f.Fuzz(func(t *testing.T, b []byte) {
		gotID, s, err := bearer.Parse(b)
		if err != nil {
			return
		}
		token, err := s.Token(gotID)
		if err != nil || !bytes.Equal(token.Bytes(), b) {
			t.Errorf("%q has another spelling", b)
		}
		if _, err := bearer.ParseLoose(b); err != nil {
			t.Errorf("the daemon refuses %q, which the control plane reads: %v", b, err)
		}
	})
}

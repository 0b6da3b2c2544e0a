package pin_test

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"os"
	"strings"
	"testing"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// vectors is testdata/vectors/pin.json.
type vectors struct {
	Valid []struct {
		SPKI string `json:"spki_pem"`
		Pin  string `json:"pin"`
		Hex  string `json:"sha256_hex"`
	} `json:"valid"`
	Invalid []struct {
		Text string `json:"text"`
		Why  string `json:"why"`
	} `json:"invalid"`
}

func load(t *testing.T) (v vectors) {
	t.Helper()
	b, err := os.ReadFile("../../testdata/vectors/pin.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Valid) == 0 || len(v.Invalid) == 0 {
		t.Fatal("no vectors")
	}
	return v
}

func TestVectors(t *testing.T) {
	for _, v := range load(t).Valid {
		block, _ := pem.Decode([]byte(v.SPKI))
		if block == nil {
			t.Fatalf("vector has no PEM: %s", v.SPKI)
		}
		got := pin.OfSPKI(block.Bytes)
		if got.String() != v.Pin || hex.EncodeToString(got[:]) != v.Hex {
			t.Errorf("pin of %s is %s, want %s", v.SPKI, got, v.Pin)
		}
		pub, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if of, err := pin.Of(pub); err != nil || of != got {
			t.Errorf("Of = %s, %v; want %s", of, err, got)
		}
		parsed, err := pin.Parse(v.Pin)
		if err != nil || parsed != got {
			t.Errorf("Parse(%q) = %s, %v", v.Pin, parsed, err)
		}
	}
}

// Req: CF-008 CF-009 CF-010
func TestOtherFormsAreRefusedWithAHint(t *testing.T) {
	for _, v := range load(t).Invalid {
		_, err := pin.Parse(v.Text)
		if fault.CodeOf(err) != fault.Config {
			t.Errorf("%s: %q is not refused as configuration: %v", v.Why, v.Text, err)
		}
		if !strings.Contains(fault.HintOf(err), "sha256/") {
			t.Errorf("%s: hint %q does not show the expected form", v.Why, fault.HintOf(err))
		}
	}
}

func TestHintShowsTheMeantPin(t *testing.T) {
	v := load(t).Valid[0]
	_, err := pin.Parse(v.Hex)
	if !strings.Contains(fault.HintOf(err), v.Pin) {
		t.Errorf("hint %q does not show %s", fault.HintOf(err), v.Pin)
	}
}

func TestSet(t *testing.T) {
	a, b := pin.OfSPKI([]byte("a")), pin.OfSPKI([]byte("b"))
	s := pin.Set{a}.With(b, a)
	if len(s) != 2 || !s.Has(a) || !s.Has(b) || s.Has(pin.OfSPKI([]byte("c"))) {
		t.Errorf("set %s", s)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("sha256/47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=")
	f.Fuzz(func(t *testing.T, s string) {
		p, err := pin.Parse(s)
		if err == nil && p.String() != s {
			t.Errorf("%q parses and prints as %q: a pin has one spelling", s, p)
		}
	})
}

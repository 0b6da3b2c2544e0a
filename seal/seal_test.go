package seal_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/seal"
)

var (
	csr   = []byte("any bytes: the seal binds a hash and does not read the request")
	now   = time.Date(2026, 11, 29, 11, 6, 11, 999, time.UTC)
	token = []byte("bcjt_jt_01k5w0x5eqf2rvs3y5c6hz8m9t.AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8")
)

func newKey(t testing.TB) (*ecdh.PrivateKey, seal.Key) {
	t.Helper()
	private, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.NewKey(private.PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	return private, key
}

func mustSeal(t testing.TB, to seal.Key) string {
	t.Helper()
	compact, err := seal.Seal(to, token, csr, now)
	if err != nil {
		t.Fatal(err)
	}
	return compact
}

// Req: SE-001 SE-002 SE-003 SE-005 SE-006 SE-007
func TestHeaderIsExactlyTheDocuments(t *testing.T) {
	_, key := newKey(t)
	compact := mustSeal(t, key)
	if n := len(strings.Split(compact, ".")); n != 5 {
		t.Fatalf("%d parts", n)
	}
	if _, err := jose.ParseEncryptedCompact(compact,
		[]jose.KeyAlgorithm{jose.ECDH_ES_A256KW}, []jose.ContentEncryption{jose.A256GCM}); err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(compact, ".")
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	var h map[string]json.RawMessage
	if err := json.Unmarshal(b, &h); err != nil {
		t.Fatal(err)
	}
	var epk map[string]string
	if err := json.Unmarshal(h["epk"], &epk); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(epk)); !slices.Equal(got, []string{"crv", "kty", "x", "y"}) {
		t.Errorf("epk has %q", got)
	}
	delete(h, "epk")
	sum := sha256.Sum256(csr)
	want := map[string]json.RawMessage{
		"alg": json.RawMessage(`"ECDH-ES+A256KW"`), "enc": json.RawMessage(`"A256GCM"`), "typ": json.RawMessage(`"bcjt+jwe"`),
		"iat": json.RawMessage("1795950371"), "csr": json.RawMessage(`"` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`),
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Error(diff)
	}
}

func TestOpenReturnsWhatWasSealed(t *testing.T) {
	private, key := newKey(t)
	got, err := seal.Open([]ecdh.KeyExchanger{private}, mustSeal(t, key), csr)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(seal.Opened{Token: token, IssuedAt: now.Truncate(time.Second)}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSealsOfOneTokenDiffer(t *testing.T) {
	_, key := newKey(t)
	first, second := mustSeal(t, key), mustSeal(t, key)
	if first == second {
		t.Error("two seals are equal")
	}
}

func TestPreviousKeyOpensDuringARotation(t *testing.T) {
	previous, key := newKey(t)
	current, _ := newKey(t)
	compact := mustSeal(t, key)
	if _, err := seal.Open([]ecdh.KeyExchanger{current, previous}, compact, csr); err != nil {
		t.Error(err)
	}
	_, err := seal.Open([]ecdh.KeyExchanger{current}, compact, csr)
	if err == nil || errors.Is(err, seal.ErrKeyUnavailable) {
		t.Errorf("after the rotation: %v", err)
	}
}

// Req: SE-013
func TestSealIsForOneRequest(t *testing.T) {
	private, key := newKey(t)
	if _, err := seal.Open([]ecdh.KeyExchanger{private}, mustSeal(t, key), []byte("another request")); err == nil {
		t.Error("opened for another request")
	}
}

func TestSealRefuses(t *testing.T) {
	_, key := newKey(t)
	for name, f := range map[string]func() (string, error){
		"no key":     func() (string, error) { return seal.Seal(seal.Key{}, token, csr, now) },
		"no token":   func() (string, error) { return seal.Seal(key, nil, csr, now) },
		"no request": func() (string, error) { return seal.Seal(key, token, nil, now) },
		"no clock":   func() (string, error) { return seal.Seal(key, token, csr, time.Time{}) },
		"far future": func() (string, error) {
			return seal.Seal(key, token, csr, time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC))
		},
		"a huge token":  func() (string, error) { return seal.Seal(key, make([]byte, seal.MaxSize), csr, now) },
		"just too huge": func() (string, error) { return seal.Seal(key, make([]byte, 5900), csr, now) },
	} {
		if got, err := f(); err == nil || got != "" {
			t.Errorf("%s: sealed, %v", name, err)
		}
	}
	if _, err := seal.Seal(key, make([]byte, 4096), csr, now); err != nil {
		t.Errorf("the largest token that is read anywhere: %v", err)
	}
}

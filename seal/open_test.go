package seal_test

import (
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"strings"
	"testing"

	"github.com/better-compute/bcd/seal"
)

// broken is a private key whose holder does not answer.
type broken struct{ *ecdh.PrivateKey }

var errHolder = errors.New("the key service is down")

func (broken) ECDH(*ecdh.PublicKey) ([]byte, error) { return nil, errHolder }

// Req: SE-010
func TestKeysAreTriedInOrderUntilOneOpens(t *testing.T) {
	private, key := newKey(t)
	stranger, _ := newKey(t)
	current, previous, older := &counter{PrivateKey: stranger}, &counter{PrivateKey: private}, &counter{PrivateKey: stranger}
	got, err := seal.Open([]ecdh.KeyExchanger{current, previous, older}, mustSeal(t, key), csr)
	if err != nil || string(got.Token) != string(token) {
		t.Fatalf("%q, %v", got.Token, err)
	}
	if current.calls != 1 || previous.calls != 1 || older.calls != 0 {
		t.Errorf("uses of the keys: %d, %d, %d; want 1, 1, 0", current.calls, previous.calls, older.calls)
	}
}

func TestKeyHolderThatFailsIsNoJudgement(t *testing.T) {
	private, key := newKey(t)
	stranger, _ := newKey(t)
	p384, err := ecdh.P384().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	compact := mustSeal(t, key)
	for name, keys := range map[string][]ecdh.KeyExchanger{
		"no key":                        nil,
		"the only holder fails":         {broken{private}},
		"the previous key's fails":      {stranger, broken{private}},
		"the current key's fails":       {broken{private}, stranger},
		"the key is on the wrong curve": {p384},
	} {
		_, err := seal.Open(keys, compact, csr)
		if !errors.Is(err, seal.ErrKeyUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err = seal.Open([]ecdh.KeyExchanger{broken{private}}, compact, csr)
	if !errors.Is(err, errHolder) {
		t.Errorf("the holder's error is lost: %v", err)
	}
	if _, err := seal.Open([]ecdh.KeyExchanger{broken{stranger}, private}, compact, csr); err != nil {
		t.Errorf("the other key opens it all the same: %v", err)
	}
	_, err = seal.Open(nil, "garbage", csr)
	if errors.Is(err, seal.ErrKeyUnavailable) {
		t.Errorf("garbage is judged without a key: %v", err)
	}
}

func TestErrorsStaySmall(t *testing.T) {
	private, _ := newKey(t)
	f := base("long names")
	f.header = strings.Replace(plain, "{", `{"`+strings.Repeat("x", 4000)+`":1,`, 1)
	_, err := seal.Open([]ecdh.KeyExchanger{private}, f.seal(), csr)
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("%v", err)
	}
}

// FuzzOpen holds that whatever opens is canonical: the same bytes again, in five parts, with our header's binding. The
// seeds are the vectors, so that mutations start from seals that are nearly right.
func FuzzOpen(f *testing.F) {
	for _, v := range append(validVectors(), refusedVectors()...) {
		f.Add(v.Compact)
	}
	valid := map[string]bool{}
	for _, v := range validVectors() {
		valid[v.Compact] = true
	}
	f.Fuzz(func(t *testing.T, compact string) {
		key := &counter{PrivateKey: recipientKey}
		got, err := seal.Open([]ecdh.KeyExchanger{key}, compact, csr)
		if err != nil {
			if got.Token != nil || !got.IssuedAt.IsZero() {
				t.Errorf("an error with a result: %v", got)
			}
			return
		}
		// A mutation cannot be authentic. Only the seals that were made here open, in the one spelling that they have.
		if !valid[compact] {
			t.Errorf("%q opens", compact)
		}
	})
}

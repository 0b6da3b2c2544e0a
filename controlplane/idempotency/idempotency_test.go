package idempotency_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

func TestOnce(t *testing.T) {
	db, err := store.Open(t.Context(), store.Options{Path: filepath.Join(t.TempDir(), "db"), Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	things := map[string]string{}
	fail := error(nil)
	call := func(key store.IdempotencyKey, request any) (made string, replayed bool, err error) {
		err = db.Write(t.Context(), func(tx *store.Tx) (err error) {
			made, replayed, err = idempotency.Once(tx, key, request,
				func(id string) (string, error) { return things[id], nil },
				func() (string, string, error) {
					id := tx.NewID(store.PrefixPool)
					things[id] = "made"
					return "made", id, fail
				})
			return err
		})
		return made, replayed, err
	}
	key := store.IdempotencyKey{TenantID: "tn_a", Identity: "key_a", Method: "things.create", Key: "k"}

	// What failed was not made: the key is free.
	fail = errors.New("no")
	if _, _, err := call(key, "a"); !errors.Is(err, fail) {
		t.Errorf("a call that fails: %v", err)
	}
	fail, things = nil, map[string]string{}
	if made, replayed, err := call(key, "a"); made != "made" || replayed || err != nil {
		t.Errorf("the first call: %q, %t, %v", made, replayed, err)
	}
	for id := range things {
		things[id] = "changed since"
	}
	if made, replayed, err := call(key, "a"); made != "changed since" || !replayed || err != nil {
		t.Errorf("a repeat: %q, %t, %v", made, replayed, err)
	}
	if _, _, err := call(key, "b"); !fault.Is(err, fault.Conflict) || fault.HintOf(err) == "" {
		t.Errorf("another request: %v", err)
	}
	// A key is its tenant's, its identity's and its method's.
	for name, other := range map[string]store.IdempotencyKey{
		"tenant":   {TenantID: "tn_b", Identity: "key_a", Method: "things.create", Key: "k"},
		"identity": {TenantID: "tn_a", Identity: "key_b", Method: "things.create", Key: "k"},
		"method":   {TenantID: "tn_a", Identity: "key_a", Method: "others.create", Key: "k"},
		"key":      {TenantID: "tn_a", Identity: "key_a", Method: "things.create", Key: "K"},
	} {
		if _, replayed, err := call(other, "b"); replayed || err != nil {
			t.Errorf("another %s: %t, %v", name, replayed, err)
		}
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"adopt-rack-b7-u12": true, "Zürich 7": true, strings.Repeat("k", 255): true,
		"": false, strings.Repeat("k", 256): false, "a\x00": false, "a\n": false, "\ufffd": false, "\xff": false,
	} {
		err := idempotency.CheckKey(key)
		if (err == nil) != ok || err != nil && !fault.Is(err, fault.InvalidArgument) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// Package idempotency makes the calls of the API that create something repeatable: a call that is sent again, because its
// answer was lost for instance, makes nothing twice.
//
// A key is the caller's own text, scoped to the tenant, the calling identity and the method. What the first call asked
// for is kept as a digest, in the transaction that made the thing: a repeat gets what was made, as it is now, and one that
// asks for something else is a conflict.
//
// The package decides nothing about what is made, nor who may make it.
package idempotency

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// MaxKey is the length of a key, in bytes.
const MaxKey = 255

// CheckKey refuses what is no key: it has 1 to [MaxKey] bytes, all printable.
func CheckKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return fault.New(fault.InvalidArgument, "", "idempotencyKey must have 1 to %d bytes", MaxKey)
	}
	// A decoder makes one replacement character of every text that is none, and two keys must not become one.
	if !oneline.Printable(key) {
		return fault.New(fault.InvalidArgument, "", "idempotencyKey holds a character that cannot be printed")
	}
	return nil
}

// Once calls create, which makes something and returns it with its id, where the key was not used before; then replayed is
// false. Otherwise it returns what load finds under the id that was made. request is what is asked for, as JSON that is
// the same for the same request; another request under the key is [fault.Conflict].
func Once[T any](
	tx *store.Tx, key store.IdempotencyKey, request any, load func(id string) (T, error), create func() (T, string, error),
) (made T, replayed bool, err error) {
	var none T
	text, err := json.Marshal(request)
	if err != nil {
		return none, false, fmt.Errorf("cannot encode the request of an idempotency key: %w", err)
	}
	digest := sha256.Sum256(text)
	first, err := tx.Idempotent(key)
	switch {
	case errors.Is(err, store.ErrNotFound):
		made, id, err := create()
		if err != nil {
			return none, false, err
		}
		return made, false, tx.InsertIdempotencyKey(key, store.Idempotent{ResourceID: id, RequestSHA256: digest[:]})
	case err != nil:
		return none, false, err
	case string(first.RequestSHA256) != string(digest[:]):
		return none, false, fault.New(fault.Conflict, "use another idempotency key for another request",
			"idempotency key %q was used for %q with other values", key.Key, first.ResourceID)
	}
	made, err = load(first.ResourceID)
	if err != nil {
		return none, false, fmt.Errorf("cannot read %q of an idempotency key: %w", first.ResourceID, err)
	}
	return made, true, nil
}

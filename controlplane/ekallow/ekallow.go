// Package ekallow is the allow-list of endorsement keys (EKs): the TPMs that operators let into a pool without a token. It
// has the rules of ekAllow.add, list and remove.
//
// An EK is named by the SHA-256 of its public key (DER SubjectPublicKeyInfo), which "bcd tpm identify" prints on the machine.
// At a site an EK stands once, whichever tenant listed it, so that it is never in doubt where its machine lands.
//
// Who may call is the caller's to have decided: httpapi authorizes before it calls. The package admits nobody: joinservice
// does, once the machine's TPM has proved that the EK is its own. An entry that is removed ends no node that joined by it.
package ekallow

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/idempotency"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/attest"
)

const (
	// MaxNote is the length of a note, in bytes.
	MaxNote = 256
	// MaxPublic is the length of an EK's public key in PEM, in bytes.
	MaxPublic = 4096
)

// methodAdd is the scope of idempotency keys: the name of the API's method.
const methodAdd = "ekAllow.add"

// Service keeps the allow-list. All methods are safe for concurrent use.
type Service struct {
	Store store.Store
}

// AddRequest is what ekAllow.add takes.
type AddRequest struct {
	TenantID, PoolID string
	// EKSHA256 names the EK.
	EKSHA256 [sha256.Size]byte
	// Note is at most [MaxNote] bytes of printable text, or empty.
	Note string
	// IdempotencyKey makes the call repeatable by the same caller. Required.
	IdempotencyKey string
}

// HashOfPublic returns the name of an EK by its public key in PEM, a PUBLIC KEY as "openssl pkey -pubout" writes it.
func HashOfPublic(text string) ([sha256.Size]byte, error) {
	if len(text) > MaxPublic {
		return [sha256.Size]byte{}, invalid("the public key has %d bytes, at most %d are allowed", len(text), MaxPublic)
	}
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "PUBLIC KEY" || len(rest) > 0 {
		return [sha256.Size]byte{}, invalid("the public key is not one PEM block PUBLIC KEY")
	}
	key, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return [sha256.Size]byte{}, invalid("cannot read the public key: %w", err)
	}
	spki, err := attest.MarshalSPKI(key) // the encoding that machines send
	if err != nil {
		return [sha256.Size]byte{}, invalid("unusable public key: %w", err)
	}
	return attest.EK{SPKI: spki}.Hash(), nil
}

// ParseHash reads the name of an EK, 64 hex digits.
func ParseHash(text string) (digest [sha256.Size]byte, err error) {
	if b, err := hex.DecodeString(text); err == nil && len(b) == len(digest) {
		return [sha256.Size]byte(b), nil
	}
	return digest, invalid("the SHA-256 of an endorsement key is %d hex digits", 2*sha256.Size)
}

// Add lets the machine whose TPM has the EK join a pool of the tenant, on behalf of the identity. A repeat with the same
// idempotency key returns the entry that was made.
func (s *Service) Add(ctx context.Context, identity string, r AddRequest) (store.EKAllow, error) {
	if err := checkNote(r.Note); err != nil {
		return store.EKAllow{}, err
	}
	if err := idempotency.CheckKey(r.IdempotencyKey); err != nil {
		return store.EKAllow{}, err
	}
	var made store.EKAllow
	err := s.Store.Write(ctx, func(tx *store.Tx) error {
		pool, err := poolOf(tx, r.TenantID, r.PoolID)
		if err != nil {
			return err
		}
		key := store.IdempotencyKey{TenantID: r.TenantID, Identity: identity, Method: methodAdd, Key: r.IdempotencyKey}
		asked := AddRequest{PoolID: r.PoolID, EKSHA256: r.EKSHA256, Note: r.Note}
		made, _, err = idempotency.Once(tx, key, asked, tx.EKAllow, func() (store.EKAllow, string, error) {
			e, err := add(tx, identity, pool, r)
			return e, e.ID, err
		})
		return err
	})
	if err != nil {
		return store.EKAllow{}, fmt.Errorf("cannot allow the endorsement key: %w", err)
	}
	return made, nil
}

func add(tx *store.Tx, identity string, pool store.Pool, r AddRequest) (store.EKAllow, error) {
	if err := usable(pool); err != nil {
		return store.EKAllow{}, err
	}
	listed, err := tx.EKAllowsOf(r.EKSHA256)
	if err != nil {
		return store.EKAllow{}, err
	}
	for _, e := range listed {
		switch {
		case e.SiteID != pool.SiteID:
		case e.TenantID == r.TenantID:
			return store.EKAllow{}, fault.New(fault.AlreadyExists, "remove that entry first, if the machine belongs into another pool",
				"endorsement key %x is listed already, as %q for pool %q", r.EKSHA256, e.ID, e.PoolID)
		default:
			return store.EKAllow{}, fault.New(fault.AlreadyExists, "ask the platform's operator",
				"endorsement key %x is listed at site %q by another tenant", r.EKSHA256, e.SiteID)
		}
	}
	made := store.EKAllow{
		ID: tx.NewID(store.PrefixEKAllow), TenantID: r.TenantID, SiteID: pool.SiteID, PoolID: pool.ID, EKSHA256: r.EKSHA256,
		Note: r.Note, CreatedBy: identity, CreatedAt: tx.Now(),
	}
	if err := tx.InsertEKAllow(made); err != nil {
		return store.EKAllow{}, err
	}
	return made, tell(tx, made, events.ActionEKAllowAdded, identity, events.EKAllowAdded{
		EntryID: made.ID, PoolID: made.PoolID, SiteID: made.SiteID, EKSHA256: hex.EncodeToString(made.EKSHA256[:]), AddedBy: identity,
	})
}

// Remove ends an entry of a pool of the tenant, on behalf of the identity, and returns it. Removing twice is no error and is
// told once.
func (s *Service) Remove(ctx context.Context, identity, tenantID, poolID, entryID string) (store.EKAllow, error) {
	var e store.EKAllow
	err := s.Store.Write(ctx, func(tx *store.Tx) (err error) {
		if _, err := poolOf(tx, tenantID, poolID); err != nil {
			return err
		}
		e, err = tx.EKAllow(entryID)
		if errors.Is(err, store.ErrNotFound) || err == nil && e.PoolID != poolID {
			return fault.New(fault.NotFound, "", "endorsement key entry %q does not exist in pool %q", entryID, poolID)
		}
		if err != nil {
			return err
		}
		ended, err := tx.RemoveEKAllow(e.ID)
		if err != nil || !ended {
			return err
		}
		e.RemovedAt = tx.Now()
		return tell(tx, e, events.ActionEKAllowRemoved, identity, events.EKAllowRemoved{
			EntryID: e.ID, PoolID: e.PoolID, SiteID: e.SiteID, EKSHA256: hex.EncodeToString(e.EKSHA256[:]), RemovedBy: identity,
		})
	})
	if err != nil {
		return store.EKAllow{}, fmt.Errorf("cannot remove the endorsement key: %w", err)
	}
	return e, nil
}

// List returns the entries of a pool of the tenant that admit, oldest first, from the one after the id on, at most limit.
func (s *Service) List(ctx context.Context, tenantID, poolID, after string, limit int) ([]store.EKAllow, error) {
	var all []store.EKAllow
	err := s.Store.Read(ctx, func(tx *store.Tx) (err error) {
		if _, err := poolOf(tx, tenantID, poolID); err != nil {
			return err
		}
		all, err = tx.EKAllowsOfPool(poolID, after, limit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list the allowed endorsement keys: %w", err)
	}
	return all, nil
}

// poolOf returns the pool if the tenant owns it. To any other tenant it does not exist.
func poolOf(tx *store.Tx, tenantID, poolID string) (store.Pool, error) {
	pool, err := tx.PoolOfTenant(tenantID, poolID)
	if errors.Is(err, store.ErrNotFound) {
		return store.Pool{}, fault.New(fault.NotFound, "", "pool %q does not exist", poolID)
	}
	return pool, err
}

// usable checks that the pool can take a machine of the list: an entry that no join can use is not made.
func usable(p store.Pool) error {
	switch {
	case p.Agent != store.AgentBCD:
		return fault.New(fault.InvalidState, "", "pool %q has agent %q: its machines run no daemon", p.ID, p.Agent)
	case !p.ArchivedAt.IsZero():
		return fault.New(fault.InvalidState, "", "pool %q is archived", p.ID)
	case !p.Policy.Admits("tpm"):
		return fault.New(fault.InvalidState, "", "the policy of pool %q does not admit attestor %q", p.ID, "tpm")
	}
	return nil
}

func checkNote(note string) error {
	if len(note) > MaxNote {
		return invalid("note has %d bytes, at most %d are allowed", len(note), MaxNote)
	}
	for _, c := range note {
		if c == utf8.RuneError || !unicode.IsPrint(c) {
			return invalid("note holds a character that cannot be printed")
		}
	}
	return nil
}

// tell publishes the event of an entry and records it in the audit log.
func tell(tx *store.Tx, e store.EKAllow, action events.Action, actor string, p events.Payload) error {
	if err := tx.Publish(e.TenantID, p); err != nil {
		return err
	}
	return tx.Record(e.TenantID, action, actor, e.ID, p)
}

func invalid(format string, args ...any) error {
	return fault.New(fault.InvalidArgument, "", format, args...)
}

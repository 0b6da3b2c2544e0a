package identity

import (
	"context"
	"crypto"
	"slices"

	"github.com/better-compute/bcd/internal/statefile"
)

// Renewal is a renewal under way. The next key is on the disk; the current identity stays good until [Renewal.Accept].
type Renewal struct {
	s          *Store
	current    *Identity
	currentKey crypto.Signer
	key        crypto.Signer
	csr        []byte
	done       bool

	room *statefile.Reserved
}

// BeginRenewal makes the next key and its certificate request. The same Renewal serves every retry, so that an answer
// which was lost on its way is given again. The caller ends it with [Renewal.Accept], and always with [Renewal.Close].
func (s *Store) BeginRenewal(ctx context.Context) (*Renewal, error) {
	if err := s.Recover(); err != nil {
		return nil, err
	}
	current, currentKey, err := s.Load()
	if err != nil {
		return nil, err
	}
	key, csr, err := s.newKey(ctx, NextKeyFile)
	if err != nil {
		return nil, err
	}
	return &Renewal{s: s, current: current, currentKey: currentKey, key: key, csr: csr}, nil
}

// Current returns the identity that is renewed, and its key.
func (r *Renewal) Current() (*Identity, crypto.Signer) { return r.current, r.currentKey }

// CSR returns the certificate request of the next key, PKCS#10 DER.
func (r *Renewal) CSR() []byte { return slices.Clone(r.csr) }

// Key returns the next key.
func (r *Renewal) Key() crypto.Signer { return r.key }

// Reserve takes room on the disk for what [Renewal.Accept] writes. It is called before the request is sent. A second
// call does nothing.
func (r *Renewal) Reserve() (err error) {
	if r.room == nil {
		r.room, err = r.s.dir.Reserve(IdentityFile, maxFile)
	}
	return err
}

// Accept makes id, which [Check] returned, this machine's identity: it commits identity.json and gives the key its
// name. After an error it may be called again.
func (r *Renewal) Accept(id *Identity) error {
	if err := checkAccept(id, r.key, r.done); err != nil {
		return err
	}
	room := r.room
	r.room = nil
	if err := r.s.commit(id, room); err != nil {
		return err
	}
	if err := r.s.settle(r.s.resetWaits()); err != nil {
		return err
	}
	r.done = true
	return nil
}

// Close gives the reserved room back.
func (r *Renewal) Close() { r.room.Discard() }

package store

import (
	"crypto/sha256"
	"fmt"
	"time"
)

// Join is an admission: which request got which certificate, by what right. A repeat of the request finds it.
type Join struct {
	CSRSHA256 [sha256.Size]byte
	Attestor  string
	// TokenID is empty where the attestor needs no token.
	TokenID string
	// Role is the role that the machine asked for.
	Role   string
	NodeID string
	PoolID string
	Serial string
	// JoinedAt is the transaction's time.
	JoinedAt time.Time
}

// InsertJoin records an admission. A CSR that was admitted before is [ErrDuplicate].
func (tx *Tx) InsertJoin(j Join) error {
	return tx.insert("insert the join",
		`INSERT INTO joins (csr_sha256, attestor, token_id, role, node_id, pool_id, serial, joined_at)
		 VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		j.CSRSHA256[:], j.Attestor, nullText(j.TokenID), j.Role, j.NodeID, nullText(j.PoolID), j.Serial, millis(tx.now))
}

// Join returns the admission of a CSR, or [ErrNotFound].
func (tx *Tx) Join(csrSHA256 [sha256.Size]byte) (Join, error) {
	return one(tx, func(s scanner) (j Join, err error) {
		j.CSRSHA256 = csrSHA256
		err = s.Scan(&j.Attestor, textOf{&j.TokenID}, &j.Role, &j.NodeID, textOf{&j.PoolID}, &j.Serial, timeOf{&j.JoinedAt})
		return j, err
	}, `SELECT attestor, token_id, role, node_id, pool_id, serial, joined_at FROM joins WHERE csr_sha256 = ?`, csrSHA256[:])
}

// pruneProofs is how many old proofs one renewal forgets at most. It is more than one, so their number shrinks.
const pruneProofs = 100

// UseProof records the use of a renewal's proof, keyed by the SHA-256 of what it signs, and forgets some of those that are
// older than keep. A proof that was used less than keep ago is [ErrDuplicate].
func (tx *Tx) UseProof(digest [sha256.Size]byte, keep time.Duration) error {
	before := millis(tx.now.Add(-keep))
	if err := tx.insert("forget old proofs", `DELETE FROM renew_proofs WHERE digest IN
		(SELECT digest FROM renew_proofs WHERE used_at < ? ORDER BY used_at LIMIT ?)`, before, pruneProofs); err != nil {
		return err
	}
	n, err := tx.exec("record the proof", `INSERT INTO renew_proofs (digest, used_at) VALUES (?, ?)
		ON CONFLICT (digest) DO UPDATE SET used_at = excluded.used_at WHERE renew_proofs.used_at < ?`,
		digest[:], millis(tx.now), before)
	if err == nil && n == 0 {
		err = fmt.Errorf("cannot record the proof: %w", ErrDuplicate)
	}
	return err
}

// ProofUsed reports whether a renewal's proof was used less than keep ago.
func (tx *Tx) ProofUsed(digest [sha256.Size]byte, keep time.Duration) (bool, error) {
	n, err := one(tx, scalar[int64], `SELECT COUNT(*) FROM renew_proofs WHERE digest = ? AND used_at >= ?`,
		digest[:], millis(tx.now.Add(-keep)))
	return n > 0, err
}

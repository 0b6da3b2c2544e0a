package store

import (
	"crypto/sha256"
	"time"
)

// Cert is a node certificate that was issued.
type Cert struct {
	// Serial is lower-case hex, as [big.Int.Text] gives it.
	Serial string
	NodeID string
	// Generation is the node's identity generation when the certificate was issued.
	Generation int64
	// Role is the certificate's: `node`, `site`, `ramdisk` or `node-tenant`.
	Role       string
	SPKISHA256 [sha256.Size]byte
	CSRSHA256  [sha256.Size]byte
	// DER is the leaf.
	DER []byte
	// Issuers are the certificates above the leaf, DER, one after the other; it may be empty.
	Issuers []byte
	// AllowedKinds restricts the command kinds that the certificate accepts; nil accepts all.
	AllowedKinds []string
	// Statements are the urn:bc: URIs of the leaf.
	Statements []string
	// MaxLifetime is the attestor's bound on this certificate and those that it is renewed to, in whole milliseconds; 0
	// is none beside the configured one.
	MaxLifetime time.Duration
	NotBefore   time.Time
	NotAfter    time.Time
	IssuedAt    time.Time
	// Predecessor is the serial of the certificate that was renewed; empty after a join.
	Predecessor string
	// FirstUsedAt is when a session or a renewal first presented it.
	FirstUsedAt  time.Time
	RevokedAt    time.Time
	RevokeReason string
}

const certColumns = `serial, node_id, generation, role, spki_sha256, csr_sha256, der, issuers, allowed_kinds, statements,
	max_lifetime, not_before, not_after, issued_at, predecessor, first_used_at, revoked_at, revoke_reason`

func scanCert(s scanner) (c Cert, err error) {
	var spki, csr []byte
	var maxLifetime int64
	err = s.Scan(&c.Serial, &c.NodeID, &c.Generation, &c.Role, &spki, &csr, &c.DER, &c.Issuers,
		jsonOf[[]string]{&c.AllowedKinds}, jsonOf[[]string]{&c.Statements}, &maxLifetime, timeOf{&c.NotBefore},
		timeOf{&c.NotAfter}, timeOf{&c.IssuedAt}, textOf{&c.Predecessor}, timeOf{&c.FirstUsedAt}, timeOf{&c.RevokedAt}, textOf{&c.RevokeReason})
	c.MaxLifetime = time.Duration(maxLifetime) * time.Millisecond
	if err == nil {
		err = copyDigest(&c.SPKISHA256, spki)
	}
	if err == nil {
		err = copyDigest(&c.CSRSHA256, csr)
	}
	return c, err
}

// InsertCert records a certificate. IssuedAt is the transaction's time. A public key that ever had one is
// [ErrDuplicate].
func (tx *Tx) InsertCert(c Cert) error {
	kinds, err := nullJSON(c.AllowedKinds)
	if err != nil {
		return err
	}
	statements, err := nullJSON(c.Statements)
	if err != nil {
		return err
	}
	return tx.insert("insert the certificate",
		`INSERT INTO node_certs (serial, node_id, generation, role, spki_sha256, csr_sha256, der, issuers, allowed_kinds,
			statements, max_lifetime, not_before, not_after, issued_at, predecessor)
		 VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		c.Serial, c.NodeID, c.Generation, c.Role, c.SPKISHA256[:], c.CSRSHA256[:], c.DER, append([]byte{}, c.Issuers...),
		kinds, statements, c.MaxLifetime.Milliseconds(), millis(c.NotBefore), millis(c.NotAfter), millis(tx.now), nullText(c.Predecessor))
}

// Cert returns a certificate or [ErrNotFound].
func (tx *Tx) Cert(serial string) (Cert, error) {
	return one(tx, scanCert, `SELECT `+certColumns+` FROM node_certs WHERE serial = ?`, serial)
}

// CertBySPKI returns the certificate that a public key has or had, or [ErrNotFound].
func (tx *Tx) CertBySPKI(spkiSHA256 [sha256.Size]byte) (Cert, error) {
	return one(tx, scanCert, `SELECT `+certColumns+` FROM node_certs WHERE spki_sha256 = ?`, spkiSHA256[:])
}

// CertsOfNode lists a node's certificates, oldest first.
func (tx *Tx) CertsOfNode(nodeID string) ([]Cert, error) {
	return many(tx, scanCert, `SELECT `+certColumns+` FROM node_certs WHERE node_id = ? ORDER BY issued_at, serial`, nodeID)
}

// NewestCert returns the newest certificate of a node's newest generation, or [ErrNotFound].
func (tx *Tx) NewestCert(nodeID string) (Cert, error) {
	return one(tx, scanCert, `SELECT `+certColumns+` FROM node_certs WHERE node_id = ?
		ORDER BY generation DESC, issued_at DESC, serial DESC LIMIT 1`, nodeID)
}

// Successors lists the certificates that a certificate was renewed to, oldest first.
func (tx *Tx) Successors(serial string) ([]Cert, error) {
	return many(tx, scanCert, `SELECT `+certColumns+` FROM node_certs WHERE predecessor = ? ORDER BY issued_at, serial`, serial)
}

// MarkCertUsed records the first use of a certificate, once. From then on its predecessor opens no session.
func (tx *Tx) MarkCertUsed(serial string) error {
	return tx.update("mark the certificate used",
		`UPDATE node_certs SET first_used_at = COALESCE(first_used_at, ?) WHERE serial = ?`, millis(tx.now), serial)
}

// RevokeCerts revokes a node's certificates up to a generation that are not revoked yet, and returns them as they are
// now. It wakes the node's watchers.
func (tx *Tx) RevokeCerts(nodeID string, upToGeneration int64, reason string) ([]Cert, error) {
	valid, err := many(tx, scanCert, `SELECT `+certColumns+` FROM node_certs
		WHERE node_id = ? AND generation <= ? AND revoked_at IS NULL ORDER BY issued_at, serial`, nodeID, upToGeneration)
	if err != nil {
		return nil, err
	}
	for i := range valid {
		if err := tx.RevokeCert(&valid[i], reason); err != nil {
			return nil, err
		}
	}
	return valid, nil
}

// RevokeCert revokes one certificate at the transaction's time. It wakes the node's watchers.
func (tx *Tx) RevokeCert(c *Cert, reason string) error {
	c.RevokedAt, c.RevokeReason = tx.now, reason
	tx.Notify(NodeTopic(c.NodeID))
	return tx.update("revoke the certificate",
		`UPDATE node_certs SET revoked_at = ?, revoke_reason = ? WHERE serial = ? AND revoked_at IS NULL`,
		millis(tx.now), reason, c.Serial)
}

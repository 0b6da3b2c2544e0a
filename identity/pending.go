package identity

import (
	"crypto"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
)

// The versions of join-pending.json. A reset has the second one: a program that ignored its members would drop its request,
// or commit its answer over the old identity.
const (
	joinVersion  = 1
	resetVersion = 2
)

// pending is the content of join-pending.json: a join that was begun. It never holds a token.
type pending struct {
	Version int `json:"version"`
	// CSR is the certificate request that every try of this join sends, PKCS#10 DER. A reset that joins nothing has none.
	CSR []byte `json:"csr,omitempty"`
	// Attestor and Role are what the join asked with. Another one is another join.
	Attestor string `json:"attestor"`
	Role     string `json:"role"`
	// TokenID is the public id of the token, jt_….
	TokenID string `json:"tokenId,omitempty"`
	// RequestID is the join request that an operator is to decide on, jreq_….
	RequestID string `json:"requestId,omitempty"`
	// Refused is that the control plane, or a gateway in its place, refused the request with that id.
	Refused bool `json:"refused,omitempty"`
	// Reset is a join that replaces an identity.
	Reset bool `json:"reset,omitempty"`
	// Suffix is what is added to the names of the old identity's files. From here on they move.
	Suffix string `json:"resetSuffix,omitempty"`
	// Answer is the verified answer. From here on the join ends well, with or without this process.
	Answer *Identity `json:"answer,omitempty"`
}

func parsePending(data []byte) (*pending, error) {
	if err := checkVersion(data, resetVersion); err != nil {
		return nil, err
	}
	p := new(pending)
	if err := json.Unmarshal(data, p); err != nil {
		return nil, err
	}
	if p.Version == joinVersion {
		p.Reset, p.Suffix = false, ""
	}
	if p.Suffix != "" && (!p.Reset || !suffixForm.MatchString(p.Suffix)) {
		return nil, fmt.Errorf("its suffix %q is not one of a reset", p.Suffix)
	}
	if !p.movesOnly() {
		if _, err := p.keyPin(); err != nil {
			return nil, err
		}
	}
	// Ids are for people. One that cannot be an id is none, and no reason to lose the join.
	for _, id := range []*string{&p.RequestID, &p.TokenID} {
		if !isName(*id) {
			*id = ""
		}
	}
	if p.Answer != nil {
		if err := p.Answer.validate(); err != nil {
			return nil, fmt.Errorf("its answer: %w", err)
		}
	}
	return p, nil
}

// movesOnly reports whether all that is to be done is to move the old identity's files.
func (p *pending) movesOnly() bool { return p.Suffix != "" && p.Answer == nil && len(p.CSR) == 0 }

// keyPin returns the pin of the key that the CSR is for.
func (p *pending) keyPin() (pin.Pin, error) {
	csr, err := x509.ParseCertificateRequest(p.CSR)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return pin.Pin{}, fmt.Errorf("its certificate request: %w", err)
	}
	return pin.OfSPKI(csr.RawSubjectPublicKeyInfo), nil
}

// readPending returns the join that was begun and its key. All are nil where there is none: no join-pending.json, one
// that is damaged, or one whose certificate request is not join.key's, which was never sent or was refused for good. Of a
// reset that was moving files without an answer, the moves are left, without a key. An error means that it can't be told
// now, and that neither file may be touched.
func (s *Store) readPending() (*pending, crypto.Signer, error) {
	p, err := s.readPendingFile()
	if p == nil || p.movesOnly() {
		return p, nil, err
	}
	key, err := s.openJoinKey(p)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case key != nil:
		return p, key, nil
	case p.Suffix != "" && p.Answer == nil:
		return &pending{Version: resetVersion, Reset: true, Suffix: p.Suffix}, nil, nil
	default:
		return nil, nil, nil
	}
}

func (s *Store) readPendingFile() (*pending, error) {
	data, err := s.dir.Read(PendingFile, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, inTheWay(err)
	}
	p, err := parsePending(data)
	if fault.Is(err, fault.Newer) {
		return nil, fmt.Errorf("cannot use %q: %w", s.path(PendingFile), err)
	}
	if err != nil {
		return nil, nil //nolint:nilerr // damaged: nothing can be resumed
	}
	return p, nil
}

// openJoinKey returns the key of a join's request; nil where join.key has another one, or none.
func (s *Store) openJoinKey(p *pending) (crypto.Signer, error) {
	record, err := s.dir.Read(JoinKeyFile, maxKey)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, inTheWay(err)
	}
	key, err := s.keys.Open(record)
	if code := fault.CodeOf(err); code.Temporary() || code == fault.Newer {
		return nil, fmt.Errorf("cannot use %q: %w", s.path(JoinKeyFile), err)
	}
	if err != nil {
		return nil, nil //nolint:nilerr // damaged, or lost with its TPM: nothing can be resumed
	}
	want, err := p.keyPin()
	if err != nil || !isKeyOf(key, want) {
		return nil, err
	}
	if p.Answer != nil && p.Answer.KeySPKISHA256 != want {
		p.Answer = nil
	}
	return key, nil
}

// inTheWay adds what to do about a file of a join that cannot be read. Without it the next join begins afresh.
func inTheWay(err error) error {
	if fault.HintOf(err) != "" {
		return err
	}
	return fault.New(fault.Failed, "find out who put it there, then move it away", "%w", err)
}

func (s *Store) writePending(p *pending) error {
	data, err := encode(p)
	if err != nil {
		return err
	}
	return s.dir.Replace(PendingFile, data)
}

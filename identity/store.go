package identity

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/statefile"
)

// The files of an identity, in the data directory.
const (
	IdentityFile = "identity.json"
	PendingFile  = "join-pending.json"
	JoinKeyFile  = "join.key"
	KeyFile      = "node.key"
	NextKeyFile  = "node.key.next"
)

// maxKey is the size in bytes of a key's record.
const maxKey = 16 << 10

// Keys makes and opens node keys: ECDSA P-256, in a TPM or not.
type Keys interface {
	// New makes a key and returns what is to be stored of it.
	New(ctx context.Context) (record []byte, key crypto.Signer, err error)
	// Open returns the key of a record. It must not need the TPM: an identity loads without one.
	Open(record []byte) (crypto.Signer, error)
}

// Store is the identity of one data directory. [Store.Load] may be called at any time; every other method needs the
// directory's lock, and one of them at a time.
type Store struct {
	dir  *statefile.Dir
	keys Keys
}

// New returns the store of a directory.
func New(dir *statefile.Dir, keys Keys) *Store { return &Store{dir: dir, keys: keys} }

// Load returns the identity and its key. It needs no lock, no network, no TPM and no valid date, and changes nothing. A
// machine that has not joined is [fault.NoIdentity]; an identity that is there and does not load is
// [fault.IdentityInvalid], or [fault.Newer] where a newer version wrote it.
func (s *Store) Load() (*Identity, crypto.Signer, error) {
	id, k, err := s.load()
	if err != nil {
		return nil, nil, err
	}
	return id, k.key, nil
}

// loadTries bounds how often a reader without the lock looks again when a renewal's commit passes between its reads.
const loadTries = 5

func (s *Store) load() (id *Identity, k keyFile, err error) {
	for range loadTries {
		if id, err = s.readIdentity(); err != nil {
			break
		}
		if k, err = s.findKey(id); err == nil {
			return id, k, nil
		}
	}
	return nil, keyFile{}, s.halfMoved(err)
}

func (s *Store) readIdentity() (*Identity, error) {
	data, err := s.dir.Read(IdentityFile, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NoIdentity, `run "bcd join"`, "this machine has not joined: %q does not exist", s.path(IdentityFile))
	}
	if err != nil {
		return nil, invalid(err)
	}
	id, err := parseIdentity(data)
	if err != nil {
		return nil, invalid(fmt.Errorf("cannot use %q: %w", s.path(IdentityFile), err))
	}
	return id, nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir.Path(), name) }

// invalid is the error of an identity that does not load.
func invalid(err error) error {
	code, hint := fault.IdentityInvalid, "put the file back from a backup, or "+fault.HintJoinAgain
	if fault.Is(err, fault.Newer) {
		code = fault.Newer
	}
	if fault.HintOf(err) != "" {
		hint = "" // the cause knows better
	}
	return fault.New(code, hint, "the identity does not load: %w", err)
}

// keyFile is a key and the file that it is in.
type keyFile struct {
	name string
	key  crypto.Signer
}

// findKey returns the key that the leaf certifies. Wherever a commit was stopped, it is in one of three files.
func (s *Store) findKey(id *Identity) (keyFile, error) {
	var first error
	for _, name := range []string{KeyFile, NextKeyFile, JoinKeyFile} {
		key, err := s.openKey(name)
		if err == nil && isKeyOf(key, id.KeySPKISHA256) {
			return keyFile{name, key}, nil
		}
		if err == nil {
			err = fmt.Errorf("%q is not the certificate's key", s.path(name))
		}
		if first == nil {
			first = err
		}
	}
	return keyFile{}, invalid(first)
}

func (s *Store) openKey(name string) (crypto.Signer, error) {
	record, err := s.dir.Read(name, maxKey)
	if err != nil {
		return nil, err
	}
	key, err := s.keys.Open(record)
	if err != nil {
		return nil, fmt.Errorf("cannot use %q: %w", s.path(name), err)
	}
	return key, nil
}

func isKeyOf(key crypto.Signer, want pin.Pin) bool {
	got, err := pin.Of(key.Public())
	return err == nil && got == want
}

// newKey makes a key, puts it on the disk under name, and returns it with a certificate request that it signed.
func (s *Store) newKey(ctx context.Context, name string) (key crypto.Signer, csr []byte, err error) {
	record, key, err := s.keys.New(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a node key: %w", err)
	}
	if pub, ok := key.Public().(*ecdsa.PublicKey); !ok || pub.Curve != elliptic.P256() {
		return nil, nil, fmt.Errorf("cannot make a node key: a %T is not ECDSA P-256", key.Public())
	}
	if csr, err = newCSR(key); err != nil {
		return nil, nil, err
	}
	if err := s.dir.Replace(name, record); err != nil {
		return nil, nil, err
	}
	return key, csr, nil
}

// newCSR returns a PKCS#10 request (RFC 2986), DER, with an empty subject: the control plane decides every name.
func newCSR(key crypto.Signer) ([]byte, error) {
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate request: %w", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate request: the key signs wrongly: %w", err)
	}
	return der, nil
}

// commit makes id the identity of this machine: the commit point of every join and renewal.
func (s *Store) commit(id *Identity, room *statefile.Reserved) error {
	data, err := encode(id)
	if err != nil {
		return err
	}
	return s.write(IdentityFile, data, room)
}

// write replaces a file, in the room that was reserved for it where there is one.
func (s *Store) write(name string, data []byte, room *statefile.Reserved) error {
	if room != nil {
		return room.Commit(data)
	}
	return s.dir.Replace(name, data)
}

func encode(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("cannot encode the identity: %w", err)
	}
	if data = append(data, '\n'); len(data) > maxFile {
		return nil, fmt.Errorf("cannot encode the identity: %d bytes are more than %d", len(data), maxFile)
	}
	return data, nil
}

package helper

import (
	"context"
	"crypto"
	"errors"
	"io/fs"
	"sync"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
	"github.com/better-compute/bcd/tpmkey"
)

const (
	// maxRecord is the size in bytes of a key's record.
	maxRecord = 16 << 10
	// maxMade is how many keys are remembered that may not be on the disk yet. A node makes one at a time.
	maxMade = 4
)

// The key files that a call may use. A key's file gets another name when its certificate is there: the name that it has first
// is looked for first, so that a key is found whenever that happens.
var (
	allKeys  = []string{identity.JoinKeyFile, identity.NextKeyFile, identity.KeyFile}
	nextKeys = []string{identity.NextKeyFile}
)

// keyFiles finds keys in the node's data directory, and among those that were just made.
type keyFiles struct {
	tpm      *tpmkey.Store
	dataDir  string
	uid, gid int

	mu   sync.Mutex
	made []madeKey // newest last
}

type madeKey struct {
	id     keyID
	record []byte
}

func newKeyFiles(o Options) *keyFiles {
	return &keyFiles{tpm: o.TPM, dataDir: o.DataDir, uid: o.UID, gid: o.GID}
}

// make makes a key in the TPM, never in a file, and returns its record.
func (k *keyFiles) make(ctx context.Context) ([]byte, error) {
	record, key, err := k.tpm.Require().New(ctx)
	if err != nil {
		return nil, err
	}
	id, err := idOf(key.Public())
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.made = append(k.made, madeKey{id, record})
	k.made = k.made[max(0, len(k.made)-maxMade):]
	return record, nil
}

// find returns the key of the TPM that has the id, from one of the files or from those that were just made.
func (k *keyFiles) find(ctx context.Context, id keyID, files []string) (crypto.Signer, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	dir, err := statefile.Open(k.dataDir, statefile.WithOwner(k.uid, k.gid))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var unreadable error
	for _, name := range files {
		record, err := dir.Read(name, maxRecord)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) && unreadable == nil {
				unreadable = err
			}
			continue
		}
		if isRecordOf(record, id) {
			return k.tpm.Open(record)
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, m := range k.made {
		if m.id == id {
			return k.tpm.Open(m.record)
		}
	}
	if unreadable != nil {
		return nil, unreadable
	}
	return nil, fault.New(fault.NotFound, "", "no key file in %q is of the TPM's key that the node asks for", k.dataDir)
}

// isRecordOf reports whether a record is of the TPM's key with the id. A key in a file is the node's to use.
func isRecordOf(record []byte, id keyID) bool {
	d, err := tpmkey.Describe(record)
	if err != nil || d.Kind != tpmkey.KindTPM {
		return false
	}
	got, err := idOf(d.Public)
	return err == nil && got == id
}

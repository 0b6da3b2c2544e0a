package tpmkey

import (
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"
)

// persistentSRK is where the TCG's provisioning guidance (section 7.8) keeps a storage root key.
const persistentSRK tpm2.TPMHandle = 0x81000001

// storageKey is a key that node keys are wrapped by: one that the TPM keeps at a handle, or one that is derived from
// the owner hierarchy's seed, the same each time for the same template.
type storageKey struct {
	handle   tpm2.TPMHandle   // persistent; 0 for a derived key
	template *tpm2.TPMTPublic // of a derived key
}

// derivedECC is the storage key that a record's parent TPM_RH_OWNER stands for: draft-bottomley-tpm2-keys, section 3.1.6,
// takes the template H-2 of the TCG's EK Credential Profile, whose unique fields are empty.
var derivedECC = storageKey{template: withEmptyPoint(tpm2.ECCSRKTemplate)}

// Storage root keys are also made from the older templates, whose unique fields are zeros. When a TPM lost the
// persistent handle that a record names, the key that was there can be derived again from one of these.
var (
	derivedECCZeros = storageKey{template: &tpm2.ECCSRKTemplate}
	derivedRSAZeros = storageKey{template: &tpm2.RSASRKTemplate}
)

func withEmptyPoint(t tpm2.TPMTPublic) *tpm2.TPMTPublic {
	t.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{})
	return &t
}

// storageKeysOf lists what may have wrapped a key whose record names parent, best guess first. A key under a derived
// parent has only that one: bcd makes no other, and trying an RSA key costs a chip many seconds.
func storageKeysOf(parent tpm2.TPMHandle) []storageKey {
	if parent == tpm2.TPMRHOwner {
		return []storageKey{derivedECC, derivedECCZeros}
	}
	return []storageKey{{handle: parent}, derivedECC, derivedECCZeros, derivedRSAZeros}
}

// recordAs returns the handle that stands for the key in a record.
func (k storageKey) recordAs() tpm2.TPMHandle {
	if k.template != nil {
		return tpm2.TPMRHOwner
	}
	return k.handle
}

// errUnfit is a storage key that is absent or not one to put a node's key under.
var errUnfit = errors.New("it is no storage key for a node")

// withStorageKey runs use with a storage key. A derived key exists no longer than that.
func (l *link) withStorageKey(k storageKey, use func(parent tpm2.AuthHandle) error) (err error) {
	if k.template == nil {
		parent, err := l.persistentKey(k.handle)
		if err != nil {
			return err
		}
		return use(parent)
	}
	made, err := l.createPrimary(ownerHierarchy, *k.template)
	if isUnsupported(err) {
		err = fmt.Errorf("%w: %w", err, errUnfit)
	}
	if err != nil {
		return fmt.Errorf("cannot derive a storage key from the owner hierarchy: %w", err)
	}
	defer l.flushInto(&err, made.ObjectHandle)
	return use(tpm2.AuthHandle{Handle: made.ObjectHandle, Name: made.Name, Auth: emptyAuth})
}

// persistentKey reads the key at a persistent handle and says whether node keys go under it.
func (l *link) persistentKey(handle tpm2.TPMHandle) (tpm2.AuthHandle, error) {
	read, err := tpm2.ReadPublic{ObjectHandle: handle}.Execute(l)
	if errors.Is(err, tpm2.TPMRCHandle) {
		return tpm2.AuthHandle{}, fmt.Errorf("handle 0x%08x is empty: %w", uint32(handle), errUnfit)
	} else if err != nil {
		return tpm2.AuthHandle{}, fmt.Errorf("cannot read the key at 0x%08x: %w", uint32(handle), err)
	}
	area, err := read.OutPublic.Contents()
	if err != nil {
		return tpm2.AuthHandle{}, fmt.Errorf("cannot read the key at 0x%08x: %w", uint32(handle), err)
	}
	// noDA matters for a key whose authorisation is only assumed to be empty: a wrong guess must not count towards the
	// TPM's lockout, and a lockout must not take the node's key away. fixedTPM keeps the child from moving with it.
	a := area.ObjectAttributes
	if !a.Restricted || !a.Decrypt || a.SignEncrypt || !a.FixedTPM || !a.FixedParent || !a.UserWithAuth || !a.NoDA {
		return tpm2.AuthHandle{}, fmt.Errorf("the key at 0x%08x has other attributes: %w", uint32(handle), errUnfit)
	}
	return tpm2.AuthHandle{Handle: handle, Name: read.Name, Auth: emptyAuth}, nil
}

package tpmkey

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/go-tpm/tpm2"
)

// handlesFrom lists the handles in [first, last] that are in use.
func (l *link) handlesFrom(first, last tpm2.TPMHandle) ([]tpm2.TPMHandle, error) {
	var all []tpm2.TPMHandle
	for next := first; len(all) < maxListed; {
		listed, err := tpm2.GetCapability{
			Capability: tpm2.TPMCapHandles, Property: uint32(next), PropertyCount: maxHandles,
		}.Execute(l)
		if err != nil {
			return nil, fmt.Errorf("cannot list the handles from 0x%08x: %w", uint32(next), err)
		}
		handles, err := listed.CapabilityData.Data.Handles()
		if err != nil {
			return nil, fmt.Errorf("cannot list the handles from 0x%08x: %w", uint32(next), err)
		}
		for _, h := range handles.Handle {
			if h < next || h > last {
				return all, nil
			}
			all = append(all, h)
			next = h + 1
		}
		if !bool(listed.MoreData) || len(handles.Handle) == 0 {
			return all, nil
		}
	}
	return all, nil
}

// maxListed bounds how many handles are looked at: far more than a TPM has NV indices.
const maxListed = 1024

// maxNV bounds what is read of one NV index, in bytes. Chips allow 2 KiB.
const maxNV = 16 << 10

// nvChunk is how much of an NV index is asked for at once, in bytes: the least that the PC Client profile lets a TPM
// give (TPM_PT_NV_BUFFER_MAX).
const nvChunk = 512

// readNV reads an NV index that exists. It returns nil for one that nothing was written to.
func (l *link) readNV(index tpm2.TPMHandle) ([]byte, error) {
	data, err := l.tryNV(index)
	if err != nil {
		return nil, fmt.Errorf("cannot read the NV index 0x%08x: %w", uint32(index), err)
	}
	return data, nil
}

// errNVClosed is an index that only the platform or a policy reads.
var errNVClosed = errors.New("neither its own authorisation nor the owner's reads it")

func (l *link) tryNV(index tpm2.TPMHandle) ([]byte, error) {
	read, err := tpm2.NVReadPublic{NVIndex: index}.Execute(l)
	if err != nil {
		return nil, err
	}
	public, err := read.NVPublic.Contents()
	if err != nil {
		return nil, err
	}
	a := public.Attributes
	switch size := int(public.DataSize); {
	case !a.Written:
		return nil, nil
	case size > maxNV:
		return nil, fmt.Errorf("it has %d bytes, more than %d", size, maxNV)
	// An index's own authorisation is assumed to be empty. Where a wrong guess counts towards the TPM's lockout, none is made.
	case a.AuthRead && a.NoDA:
		return l.readChunks(tpm2.AuthHandle{Handle: index, Name: read.NVName, Auth: emptyAuth}, index, read.NVName, size)
	case a.OwnerRead:
		var data []byte
		err := l.withAuth(ownerHierarchy, func(auth tpm2.Session) (err error) {
			data, err = l.readChunks(tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: auth}, index, read.NVName, size)
			return err
		})
		return data, err
	default:
		return nil, errNVClosed
	}
}

func (l *link) readChunks(auth tpm2.AuthHandle, index tpm2.TPMHandle, name tpm2.TPM2BName, size int) ([]byte, error) {
	var data []byte
	for len(data) < size {
		part, err := tpm2.NVRead{
			AuthHandle: auth, NVIndex: tpm2.NamedHandle{Handle: index, Name: name},
			Size: uint16(min(nvChunk, size-len(data))), Offset: uint16(len(data)),
		}.Execute(l)
		if err != nil {
			return nil, err
		}
		if len(part.Data.Buffer) == 0 {
			return nil, errors.New("it ends too early")
		}
		data = append(data, part.Data.Buffer...)
	}
	return data, nil
}

// isNVRefusal reports whether the TPM gives no one in bcd's place the content of an index: another state than "not now".
func isNVRefusal(err error) bool {
	return errors.Is(err, errNVClosed) || slices.ContainsFunc([]tpm2.TPMRC{
		tpm2.TPMRCNVAuthorization, tpm2.TPMRCNVLocked, tpm2.TPMRCNVUninitialized, tpm2.TPMRCNVRange, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail,
		tpm2.TPMRCAuthUnavailable,
	}, func(rc tpm2.TPMRC) bool { return errors.Is(err, rc) })
}

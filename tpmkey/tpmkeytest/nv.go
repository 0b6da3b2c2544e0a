package tpmkeytest

import (
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
)

// ProviderNV are the attributes that makers give NV indices of certificates, but for what only the platform may set.
var ProviderNV = tpm2.TPMANV{NT: tpm2.TPMNTOrdinary, OwnerWrite: true, AuthRead: true, OwnerRead: true, NoDA: true}

// DefineNV makes an NV index and writes data to it; it writes nothing where data is nil, and the index has size 8 then.
func (m *TPM) DefineNV(t testing.TB, index tpm2.TPMHandle, attributes tpm2.TPMANV, data []byte) {
	t.Helper()
	size := len(data)
	if data == nil {
		size = 8
	}
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	m.Do(t, func(tpm transport.TPM) {
		public := tpm2.TPMSNVPublic{NVIndex: index, NameAlg: tpm2.TPMAlgSHA256, Attributes: attributes, DataSize: uint16(size)}
		if _, err := (tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: tpm2.New2B(public)}).Execute(tpm); err != nil {
			t.Fatalf("cannot define the NV index 0x%08x: %v", index, err)
		}
		for written := 0; written < len(data); {
			read, err := tpm2.NVReadPublic{NVIndex: index}.Execute(tpm)
			if err != nil {
				t.Fatalf("cannot read the NV index 0x%08x: %v", index, err)
			}
			part := data[written:min(written+512, len(data))]
			_, err = tpm2.NVWrite{
				AuthHandle: owner, NVIndex: tpm2.NamedHandle{Handle: index, Name: read.NVName},
				Data: tpm2.TPM2BMaxNVBuffer{Buffer: part}, Offset: uint16(written),
			}.Execute(tpm)
			if err != nil {
				t.Fatalf("cannot write the NV index 0x%08x: %v", index, err)
			}
			written += len(part)
		}
	})
}

// UndefineNV removes an NV index that [TPM.DefineNV] made.
func (m *TPM) UndefineNV(t testing.TB, index tpm2.TPMHandle) {
	t.Helper()
	m.Do(t, func(tpm transport.TPM) {
		read, err := tpm2.NVReadPublic{NVIndex: index}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot read the NV index 0x%08x: %v", index, err)
		}
		_, err = tpm2.NVUndefineSpace{
			AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
			NVIndex:    tpm2.NamedHandle{Handle: index, Name: read.NVName},
		}.Execute(tpm)
		if err != nil {
			t.Fatalf("cannot remove the NV index 0x%08x: %v", index, err)
		}
	})
}

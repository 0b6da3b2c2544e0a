package tpmkey

import (
	"context"
	"io"
	"syscall"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// NodeKeyTemplate is the public area of a node's key before the TPM fills in its point.
var NodeKeyTemplate = area.NodeKey

// PauseBudget bounds how long a command is retried.
const PauseBudget = pauseBudget

// SetPause replaces the waiting between retries.
func (s *Store) SetPause(pause func(context.Context, time.Duration) error) { s.tpm.pause = pause }

// SetConnect replaces the opening of the device.
func (s *Store) SetConnect(connect func(context.Context) (io.ReadWriteCloser, error)) {
	s.tpm.connect = connect
}

// SetSysfs replaces where the kernel tells of its TPMs.
func (s *Store) SetSysfs(root string) { s.tpm.sysfs = root }

// DeviceName returns the device as configured.
func (s *Store) DeviceName() string { return s.tpm.name }

// ExplainOpen is the error of a device that the system refuses to open with errno.
func (s *Store) ExplainOpen(errno syscall.Errno) error { return s.tpm.explainOpen(errno) }

// Blobs returns what a TPM record holds.
func Blobs(record []byte) (tpm2.TPM2BPublic, tpm2.TPM2BPrivate, error) {
	der, _, err := decodePEM(record)
	if err != nil {
		return tpm2.TPM2BPublic{}, tpm2.TPM2BPrivate{}, err
	}
	r, err := parseTPMRecord(der)
	if err != nil {
		return tpm2.TPM2BPublic{}, tpm2.TPM2BPrivate{}, err
	}
	return r.public, r.private, nil
}

// EncodeTPM returns the record of a key with these parts.
func EncodeTPM(parent tpm2.TPMHandle, public tpm2.TPM2BPublic, private tpm2.TPM2BPrivate) []byte {
	return (&tpmRecord{parent: parent, public: public, private: private}).encode()
}

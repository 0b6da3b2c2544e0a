package tpmkey

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/better-compute/bcd/internal/fault"
)

// maxAuth bounds an authorisation value, in bytes: the largest digest of a TPM.
const maxAuth = 64

// ownerAuth reads the owner hierarchy's authorisation. It is read for each use, so that a file that was corrected counts
// without a restart and the value stays in memory no longer than needed.
func (d *device) ownerAuth() ([]byte, error) {
	if d.ownerAuthFile == "" {
		return nil, nil
	}
	auth, err := readSecret(d.ownerAuthFile)
	if err != nil {
		return nil, fault.New(fault.Config, "correct the file that [tpm] owner_auth_file names",
			"cannot use the owner authorisation file %q: %w", d.ownerAuthFile, err)
	}
	// A TPM drops zeros at the end of an authorisation value (TPM 2.0 Part 1, section 19.6.4.3).
	return bytes.TrimRight(auth, "\x00"), nil
}

// readSecret reads a regular file that only its owner may read. The checks are made on the opened file.
func readSecret(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pathErr *fs.PathError
		if errors.As(err, &pathErr) {
			return nil, pathErr.Err // the caller names the file
		}
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("its mode is %04o, it must be 0600 or 0400", info.Mode().Perm())
	}
	value, err := io.ReadAll(io.LimitReader(f, maxAuth+3))
	if err != nil {
		return nil, err
	}
	value = bytes.TrimSuffix(bytes.TrimSuffix(value, []byte("\n")), []byte("\r"))
	switch {
	case len(value) == 0:
		return nil, errors.New("it is empty")
	case len(value) > maxAuth:
		return nil, fmt.Errorf("its value has more than %d bytes", maxAuth)
	}
	return value, nil
}

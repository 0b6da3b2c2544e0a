package tpmkey

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
)

// hierarchy is one of the TPM's hierarchies of keys, and what an operator is told about it.
type hierarchy struct {
	handle   tpm2.TPMHandle
	name     string
	option   string // names the file with its authorisation
	hintAuth string
	hintOff  string
}

var (
	ownerHierarchy = hierarchy{tpm2.TPMRHOwner, "owner", "[tpm] owner_auth_file", hintOwnerAuth, hintHierarchy}

	endorsementHierarchy = hierarchy{
		tpm2.TPMRHEndorsement, "endorsement", "[tpm] endorsement_auth_file",
		"put the endorsement hierarchy's authorisation into a file with mode 0600 and name it in [tpm] endorsement_auth_file",
		"enable the TPM's endorsement hierarchy in the firmware's setup",
	}
)

// explain gives the refusals that are about the hierarchy itself their code and its hint.
func (h hierarchy) explain(err error) error {
	for _, rc := range []tpm2.TPMRC{tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail, tpm2.TPMRCAuthMissing, tpm2.TPMRCAuthUnavailable} {
		if errors.Is(err, rc) {
			return fault.New(fault.TPMAuth, h.hintAuth, "%w (the %s hierarchy has an authorisation)", err, h.name)
		}
	}
	if errors.Is(err, tpm2.TPMRCHierarchy) {
		return fault.New(fault.TPMUnusable, h.hintOff, "%w (the %s hierarchy is disabled)", err, h.name)
	}
	return err
}

// maxAuth bounds an authorisation value, in bytes: the largest digest of a TPM.
const maxAuth = 64

// auth reads a hierarchy's authorisation. It is read for each use, so that a file that was corrected counts without a
// restart and the value stays in memory no longer than needed.
func (d *device) auth(h hierarchy) ([]byte, error) {
	path := d.authFiles[h.handle]
	if path == "" {
		return nil, nil
	}
	auth, err := readSecret(path)
	if err != nil {
		return nil, fault.New(fault.Config, "correct the file that "+h.option+" names",
			"cannot use the %s authorisation file %q: %w", h.name, path, err)
	}
	// A TPM drops zeros at the end of an authorisation value (TPM 2.0 Part 1, section 19.6.4.3).
	return bytes.TrimRight(auth, "\x00"), nil
}

// withAuth runs use with what authorises the use of a hierarchy. A session for it exists no longer than that.
func (l *link) withAuth(h hierarchy, use func(tpm2.Session) error) (err error) {
	auth, err := l.dev.auth(h)
	if err != nil {
		return err
	}
	if len(auth) == 0 {
		return h.explain(use(emptyAuth))
	}
	// HMAC, so that the value itself does not cross the bus to the chip.
	session, _, err := tpm2.HMACSession(l, tpm2.TPMAlgSHA256, sessionNonce, tpm2.Auth(auth))
	if err != nil {
		return fmt.Errorf("cannot start a session: %w", err)
	}
	l.live = append(l.live, session.Handle())
	defer l.flushInto(&err, session.Handle())
	return h.explain(use(session))
}

// emptyAuth authorises what has no authorisation value.
var emptyAuth = tpm2.PasswordAuth(nil)

// sessionNonce is the size of a session's nonces, in bytes: the least that a TPM takes.
const sessionNonce = 16

// createPrimary derives a primary key of a hierarchy, the same each time for the same template. The caller flushes it.
func (l *link) createPrimary(h hierarchy, template tpm2.TPMTPublic) (made *tpm2.CreatePrimaryResponse, err error) {
	defer func() {
		if err != nil && made != nil {
			_ = l.flush(made.ObjectHandle) // the first failure is the news
			made = nil
		}
	}()
	err = l.withAuth(h, func(auth tpm2.Session) error {
		made, err = tpm2.CreatePrimary{
			PrimaryHandle: tpm2.AuthHandle{Handle: h.handle, Auth: auth},
			InPublic:      tpm2.New2B(template),
		}.Execute(l)
		if err != nil {
			return err
		}
		l.live = append(l.live, made.ObjectHandle)
		return nil
	})
	return made, err
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

package tpmkey

import (
	"context"
	"crypto"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

// DefaultDevice is the TPM behind the kernel's resource manager. The raw device, /dev/tpm0, is never used: what one
// program leaves loaded there fails the next one.
const DefaultDevice = "/dev/tpmrm0"

// DefaultTimeout is the longest that one TPM command may take. Slow chips need tens of seconds for a key at boot.
const DefaultTimeout = 90 * time.Second

// Mode says whether new keys are made in the TPM.
type Mode string

// The modes. The empty mode is [Auto].
const (
	// Auto makes keys in the TPM when it can, else in a file.
	Auto Mode = "auto"
	// Required makes keys in the TPM or fails.
	Required Mode = "required"
	// Off never opens the TPM, not even for a key that is already in it.
	Off Mode = "off"
)

// Options configure a [Store]. The zero value is the machine's TPM in mode [Auto].
type Options struct {
	// Mode says whether new keys are made in the TPM.
	Mode Mode
	// Device is a TPM character device, or "unix:PATH" for a software TPM's socket. Empty is [DefaultDevice].
	Device string
	// OwnerAuthFile names a file, readable by its owner only, with the authorisation value of the owner hierarchy; one
	// line end at its end is not part of the value. Empty is the empty authorisation that a TPM comes with.
	OwnerAuthFile string
	// EndorsementAuthFile is the same for the endorsement hierarchy. Only an [Attester] needs it.
	EndorsementAuthFile string
	// EK is the NV index of the certificate of the endorsement key that an [Attester] uses, such as 0x01c0000a, whether there
	// is a certificate or not. Zero is the fixed order of [Attester].
	EK uint32
	// Timeout bounds one TPM command. Zero is [DefaultTimeout].
	Timeout time.Duration
	// Log hears, once in the life of the store, that and why keys are made in files. Nil is silence.
	Log *slog.Logger
}

// Store makes and opens keys. It is safe for concurrent use; its TPM operations take turns.
type Store struct {
	mode Mode
	tpm  *device
	log  *slog.Logger
	said *sync.Once // of the fallback to files; shared with the stores that Require makes
}

// New returns a store. It opens nothing: a TPM that is absent is an error of the first key that needs it.
func New(o Options) (*Store, error) {
	switch o.Mode {
	case "":
		o.Mode = Auto
	case Auto, Required, Off:
	default:
		return nil, fault.New(fault.Config, `set [tpm] mode to "auto", "required" or "off"`, "unknown TPM mode %q", o.Mode)
	}
	dev, err := newDevice(o)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Store{mode: o.Mode, tpm: dev, log: o.Log, said: new(sync.Once)}, nil
}

// Require returns a store over the same TPM whose New never falls back to a file. It is for the successor of a key that
// is in the TPM already: such a node must not be downgraded in silence because its TPM is away for a moment. A store
// in mode [Off] stays off, and its New fails.
func (s *Store) Require() *Store {
	strict := *s
	if strict.mode == Off {
		strict.tpm = s.tpm.refusing()
	}
	strict.mode = Required
	return &strict
}

// New makes a key and returns its record (PEM, to be stored with mode 0600) and the key. In mode [Auto] a TPM that
// cannot make the key is no error: the key is then one in a file, and the log says why once.
func (s *Store) New(ctx context.Context) (record []byte, key crypto.Signer, err error) {
	if s.mode == Off {
		return newFileKey()
	}
	record, key, err = s.newTPMKey(ctx)
	switch {
	case err == nil:
		return record, key, nil
	case s.mode == Required, ctx.Err() != nil, fault.Is(err, fault.Config):
		// A file that the configuration names and that cannot be used is the operator's to correct, in any mode.
		return nil, nil, err
	}
	s.said.Do(func() {
		s.log.WarnContext(ctx, "make keys in files", "tpm_device", s.tpm.name, "reason", err.Error(), "hint", fault.HintOf(err))
	})
	return newFileKey()
}

func (s *Store) newTPMKey(ctx context.Context) ([]byte, crypto.Signer, error) {
	var made *tpmRecord
	err := s.tpm.do(ctx, "make a key in the TPM", func(l *link) (err error) {
		made, err = l.createNodeKey()
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	return made.encode(), &tpmKey{record: made, tpm: s.tpm}, nil
}

// Open returns the key of a record that New made. It opens no TPM. A key in the TPM opens it for each signature.
func (s *Store) Open(record []byte) (crypto.Signer, error) {
	der, kind, err := decodePEM(record)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	if kind == pemTSS2 {
		r, err := parseTPMRecord(der)
		if err != nil {
			return nil, fmt.Errorf("cannot read the TPM key's record: %w", err)
		}
		tpm := s.tpm
		if s.mode == Off {
			tpm = tpm.refusing()
		}
		return &tpmKey{record: r, tpm: tpm}, nil
	}
	key, err := parseFileKey(kind, der)
	if err != nil {
		return nil, fmt.Errorf("cannot read the key: %w", err)
	}
	return key, nil
}

// Kind says where a key lives.
type Kind string

// The kinds of key.
const (
	// KindTPM is a key in a TPM.
	KindTPM Kind = "tpm"
	// KindFile is a key that is its own record.
	KindFile Kind = "file"
)

// Description is what can be told of a key from its record alone.
type Description struct {
	// Kind says where the key lives.
	Kind Kind
	// Parent is the handle of a TPM key's parent: a persistent handle (0x81……), or 0x40000001 for the storage key that
	// is derived from the owner hierarchy. It is 0 for a file key.
	Parent uint32
	// Public is the key's public key.
	Public crypto.PublicKey
}

// Describe reads a record without opening a TPM.
func Describe(record []byte) (Description, error) {
	key, err := (&Store{mode: Off, tpm: new(device)}).Open(record)
	if err != nil {
		return Description{}, err
	}
	if k, ok := key.(*tpmKey); ok {
		return Description{Kind: KindTPM, Parent: uint32(k.record.parent), Public: k.Public()}, nil
	}
	return Description{Kind: KindFile, Public: key.Public()}, nil
}

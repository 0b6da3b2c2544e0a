package helper

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// Keys makes and opens a node's keys: those in the TPM by the helper, those in files by itself.
type Keys struct {
	client *Client
	mode   tpmkey.Mode
	files  *tpmkey.Store // never opens a TPM
	log    *slog.Logger
	said   *sync.Once // of the fallback to files; shared with the keys that Require returns
}

// Keys returns the keys of a node whose configuration has the TPM mode. It opens nothing.
func (c *Client) Keys(mode tpmkey.Mode, log *slog.Logger) (*Keys, error) {
	files, err := tpmkey.New(tpmkey.Options{Mode: tpmkey.Off})
	if err != nil {
		return nil, err
	}
	return &Keys{client: c, mode: mode, files: files, log: log, said: new(sync.Once)}, nil
}

// Require returns keys that are made in the TPM or not at all, as [tpmkey.Store.Require] does.
func (k *Keys) Require() *Keys {
	strict := *k
	strict.files = k.files.Require()
	if strict.mode != tpmkey.Off {
		strict.mode = tpmkey.Required
	}
	return &strict
}

// New makes a key and returns its record and the key. In mode [tpmkey.Auto] a TPM that cannot make the key, or a helper that
// cannot be asked, is no error: the key is then one in a file, and the log says why once.
func (k *Keys) New(ctx context.Context) (record []byte, key crypto.Signer, err error) {
	if k.mode == tpmkey.Off {
		return k.files.New(ctx)
	}
	record, key, err = k.newTPMKey(ctx)
	if err == nil {
		return record, key, nil
	}
	if k.mode == tpmkey.Required || ctx.Err() != nil || fault.Is(err, fault.Config) {
		return nil, nil, err
	}
	k.said.Do(func() {
		k.log.WarnContext(ctx, "make keys in files", "helper", k.client.socket, "reason", err.Error(), "hint", fault.HintOf(err))
	})
	return k.files.New(ctx)
}

func (k *Keys) newTPMKey(ctx context.Context) (record []byte, key crypto.Signer, err error) {
	var a newKeyAnswer
	if err := k.client.call(ctx, pathNewNextKey, nothing{}, &a); err != nil {
		return nil, nil, fmt.Errorf("cannot have the helper make a key: %w", err)
	}
	if key, err = k.Open(a.Record); err != nil {
		return nil, nil, fmt.Errorf("cannot use the helper's key: %w", err)
	}
	if tpmkey.KindOf(key) != tpmkey.KindTPM {
		return nil, nil, errors.New("cannot use the helper's key: it is not in the TPM")
	}
	return a.Record, key, nil
}

// Open returns the key of a record. It asks nobody.
func (k *Keys) Open(record []byte) (crypto.Signer, error) {
	d, err := tpmkey.Describe(record)
	if err != nil {
		return nil, err
	}
	if d.Kind != tpmkey.KindTPM || k.mode == tpmkey.Off {
		return k.files.Open(record)
	}
	public, ok := d.Public.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("cannot use the TPM's key: it is a %T", d.Public)
	}
	id, err := idOf(public)
	if err != nil {
		return nil, err
	}
	return &Key{client: k.client, public: public, id: id}, nil
}

// Key is a key in the TPM that the helper signs with. It is a [crypto.MessageSigner], so that the helper sees what it signs.
type Key struct {
	client *Client
	public *ecdsa.PublicKey
	id     keyID
}

// Kind says where the key lives, for [tpmkey.KindOf].
func (k *Key) Kind() tpmkey.Kind { return tpmkey.KindTPM }

// Public returns the *[ecdsa.PublicKey].
func (k *Key) Public() crypto.PublicKey { return k.public }

// Sign refuses: a digest does not show what it is of.
func (k *Key) Sign(io.Reader, []byte, crypto.SignerOpts) ([]byte, error) {
	return nil, errors.New("cannot sign with the TPM's key: the helper signs no digests")
}

// signWithin bounds a signature, which has no context.
const signWithin = callWithin

// SignMessage has the helper sign the SHA-256 of a message that a node's key may sign: of a TLS 1.3 client, of a purpose, or a
// certificate request.
func (k *Key) SignMessage(_ io.Reader, message []byte, opts crypto.SignerOpts) ([]byte, error) {
	if opts == nil || opts.HashFunc() != crypto.SHA256 {
		return nil, errors.New("cannot sign with the TPM's key: it signs with SHA-256 only")
	}
	ctx, cancel := context.WithTimeout(context.Background(), signWithin) //nolint:forbidigo // crypto.MessageSigner has no context
	defer cancel()
	path, request := pathSignCSR, signRequest{Key: k.id, Message: message}
	if bytes.HasPrefix(message, tls13Head) {
		path = pathSignTLS13
	} else if p, payload, ok := signing.Parse(message); ok {
		path, request = pathSignPurpose, signRequest{Key: k.id, Purpose: p, Payload: payload}
	}
	var a signAnswer
	if err := k.client.call(ctx, path, request, &a); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fault.New(fault.TPMUnavailable, "look at the helper's log: journalctl -u bcd-helper", "the helper at %q did not answer within %s", k.client.socket, signWithin)
		}
		return nil, fmt.Errorf("cannot sign with the TPM's key: %w", err)
	}
	return a.Signature, nil
}

// Attester has the TPM vouch for the node's keys, as far as a node needs that to stay who it is. It has the methods of a
// [tpmkey.Attester]; those that make a machine join are root's.
type Attester struct{ client *Client }

// Attester returns the attester of the helper's TPM.
func (k *Keys) Attester() *Attester { return &Attester{k.client} }

// AKPublic returns the public area of the TPM's attestation key (TPMT_PUBLIC).
func (a *Attester) AKPublic(ctx context.Context) ([]byte, error) {
	var answer attestationKeyAnswer
	if err := a.client.call(ctx, pathAttestationKey, nothing{}, &answer); err != nil {
		return nil, fmt.Errorf("cannot have the helper derive the attestation key: %w", err)
	}
	return answer.Public, nil
}

// Certify has the attestation key vouch for the node's next key. qualifying is SHA-256 of the certificate request that it is in.
func (a *Attester) Certify(ctx context.Context, key crypto.Signer, qualifying [32]byte) (attest.Certification, error) {
	k, ok := key.(*Key)
	if !ok {
		return attest.Certification{}, fault.New(fault.TPMUnusable, `set [tpm] mode to "required", and join again so that the node's key is made in the TPM`,
			"cannot certify the node's key with the TPM: the key is not in the TPM")
	}
	var answer certifyAnswer
	if err := a.client.call(ctx, pathCertifyNextKey, certifyRequest{k.id, qualifying[:]}, &answer); err != nil {
		return attest.Certification{}, fmt.Errorf("cannot have the helper certify the node's key: %w", err)
	}
	return answer.Certification, nil
}

// errRootJoins is what a helper never does.
func errRootJoins(what string) error {
	return fault.New(fault.NotRoot, "run the command as root", "cannot %s: under [helper] only root joins a machine by its TPM", what)
}

// Identify refuses: the endorsement key is for a join.
func (a *Attester) Identify(context.Context) (tpmkey.Identity, error) {
	return tpmkey.Identity{}, errRootJoins("identify the TPM")
}

// ActivateCredential refuses: a challenge is answered in a join.
func (a *Attester) ActivateCredential(context.Context, []byte, []byte) ([]byte, error) {
	return nil, errRootJoins("answer the control plane's challenge with the TPM")
}

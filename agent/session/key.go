package session

import (
	"crypto"
	"crypto/tls"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/better-compute/bcd/internal/fault"
)

// watchedKey counts the signatures that are under way, and remembers why the last one failed. A TLS handshake that waits for
// a TPM looks from outside like one that waits for the gateway, and of a failed signature TLS keeps the text alone.
type watchedKey struct {
	crypto.Signer
	underWay *atomic.Int32
	failed   *atomic.Pointer[error] // why the last signature failed, nil where it did not
}

func (k watchedKey) remember(sig []byte, err error) ([]byte, error) {
	if err != nil {
		k.failed.Store(&err)
	} else {
		k.failed.Store(nil)
	}
	return sig, err
}

// Sign implements [crypto.Signer].
func (k watchedKey) Sign(random io.Reader, digest []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.underWay.Add(1)
	defer k.underWay.Add(-1)
	return k.remember(k.Signer.Sign(random, digest, opts))
}

// SignMessage implements [crypto.MessageSigner], with what the key has of it.
func (k watchedKey) SignMessage(random io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	k.underWay.Add(1)
	defer k.underWay.Add(-1)
	return k.remember(crypto.SignMessage(k.Signer, random, msg, opts))
}

// watched returns the certificate with a watched key.
func (t *transport) watched(c *tls.Certificate) *tls.Certificate {
	key, ok := c.PrivateKey.(crypto.Signer)
	if !ok {
		return c
	}
	w := *c
	w.PrivateKey = watchedKey{key, &t.signing, &t.keyFailed}
	return &w
}

// keyError is why the node's own key did not sign in the handshake that just failed; nil where it did, or was not asked to.
func (t *transport) keyError() error {
	if failed := t.keyFailed.Swap(nil); failed != nil {
		return fmt.Errorf("the TLS handshake needs this machine's own key: %w", *failed)
	}
	return nil
}

// lateKey is the error of a handshake whose time ran out while the node's own key was to sign; nil where it was not.
func (t *transport) lateKey() error {
	if t.signing.Load() == 0 {
		return nil
	}
	return fault.New(fault.TPMUnavailable, "look at the TPM that holds the key, and at the log of whatever provides it",
		"the TLS handshake waits for this machine's own key, which did not sign in time")
}

package tpmkey

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// createNodeKey makes a node's key: under the persistent storage root key where that fits, else under a derived one.
// TPM2_Create and TPM2_Load, never TPM2_CreateLoaded, which some TPMs do not have.
func (l *link) createNodeKey() (*tpmRecord, error) {
	if err := l.checkCurve(hintNoP256); err != nil {
		return nil, err
	}
	made, err := l.createUnder(storageKey{handle: persistentSRK})
	if err == nil {
		return made, nil
	}
	made, derivedErr := l.createUnder(derivedECC)
	if derivedErr != nil && !errors.Is(err, errUnfit) {
		derivedErr = fmt.Errorf("%w (before that: %v)", derivedErr, err)
	}
	return made, derivedErr
}

func (l *link) createUnder(k storageKey) (made *tpmRecord, err error) {
	err = l.withStorageKey(k, func(parent tpm2.AuthHandle) error {
		created, err := tpm2.Create{ParentHandle: parent, InPublic: tpm2.New2B(area.NodeKey)}.Execute(l)
		if err != nil {
			return fmt.Errorf("cannot create it under 0x%08x: %w", uint32(k.recordAs()), err)
		}
		made, err = newTPMRecord(k.recordAs(), created.OutPublic, created.OutPrivate)
		return err
	})
	if err != nil {
		return nil, err
	}
	return made, nil
}

// checkCurve asks for P-256 before anything is made: the answers of chips without it differ, and tell nobody anything.
func (l *link) checkCurve(hint string) error {
	listed, err := tpm2.GetCapability{
		Capability: tpm2.TPMCapECCCurves, Property: uint32(tpm2.TPMECCNistP256), PropertyCount: 1,
	}.Execute(l)
	if err != nil {
		return fmt.Errorf("cannot list the curves: %w", err)
	}
	curves, err := listed.CapabilityData.Data.ECCCurves()
	if err != nil {
		return fmt.Errorf("cannot list the curves: %w", err)
	}
	if !slices.Contains(curves.ECCCurves, tpm2.TPMECCNistP256) {
		return fault.New(fault.TPMUnusable, hint, "the TPM has no P-256")
	}
	return nil
}

// tpmKey is a key in a TPM. It holds nothing open.
type tpmKey struct {
	record *tpmRecord
	tpm    *device
}

// Public returns the *[ecdsa.PublicKey], from the record.
func (k *tpmKey) Public() crypto.PublicKey { return k.record.point }

// SignMessage signs the SHA-256 of msg.
func (k *tpmKey) SignMessage(random io.Reader, msg []byte, opts crypto.SignerOpts) ([]byte, error) {
	digest := sha256.Sum256(msg)
	return k.Sign(random, digest[:], opts)
}

// Sign signs a SHA-256 digest: ECDSA, ASN.1 DER. The TPM uses its own randomness.
func (k *tpmKey) Sign(_ io.Reader, digest []byte, opts crypto.SignerOpts) (sig []byte, err error) {
	if err := checkDigest(digest, opts); err != nil {
		return nil, err
	}
	// crypto.Signer has no context. Every wait below has a bound of its own.
	err = k.tpm.do(context.Background(), "sign with the TPM's key", func(l *link) (err error) {
		sig, err = l.sign(k.record, digest)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !ecdsa.VerifyASN1(k.record.point, digest, sig) {
		// A bus that flips bits or a broken chip; a peer would only say that the handshake failed.
		return nil, fault.New(fault.TPMUnavailable, hintReboot, "cannot sign with the TPM's key: the TPM made a signature that does not verify")
	}
	return sig, nil
}

// sign loads the key and signs.
func (l *link) sign(r *tpmRecord, digest []byte) (sig []byte, err error) {
	err = l.withNodeKey(r, func(key tpm2.AuthHandle) error {
		sig, err = l.signLoaded(key, digest)
		return err
	})
	return sig, err
}

// withNodeKey runs use with the loaded key. Its storage key is flushed by then, which leaves room for another object.
func (l *link) withNodeKey(r *tpmRecord, use func(tpm2.AuthHandle) error) (err error) {
	key, err := l.loadNodeKey(r)
	if err != nil {
		return err
	}
	defer l.flushInto(&err, key.ObjectHandle)
	return use(tpm2.AuthHandle{Handle: key.ObjectHandle, Name: key.Name, Auth: emptyAuth})
}

// loadNodeKey finds the storage key that unwraps the record, and loads the key under it. The caller flushes the key.
func (l *link) loadNodeKey(r *tpmRecord) (*tpm2.LoadResponse, error) {
	var other error // the first failure that is not "this storage key did not wrap the record"
	lost := error(errUnfit)
	for _, k := range storageKeysOf(r.parent) {
		var key *tpm2.LoadResponse
		err := l.withStorageKey(k, func(parent tpm2.AuthHandle) (err error) {
			key, err = tpm2.Load{ParentHandle: parent, InPrivate: r.private, InPublic: r.public}.Execute(l)
			if err != nil {
				return fmt.Errorf("cannot load the key under 0x%08x: %w", uint32(k.recordAs()), err)
			}
			l.live = append(l.live, key.ObjectHandle)
			return nil
		})
		switch {
		case err == nil:
			return key, nil
		case key != nil:
			_ = l.flush(key.ObjectHandle) // the first failure is the news
			return nil, err
		case l.broken != nil, l.ctx.Err() != nil:
			return nil, err
		case errors.Is(err, tpm2.TPMRCIntegrity):
			lost = err
		case !errors.Is(err, errUnfit) && other == nil:
			other = err
		}
	}
	if other != nil {
		return nil, other
	}
	return nil, fault.New(fault.TPMKeyLost, fault.HintJoinAgain,
		"the TPM was cleared or replaced, and no longer loads the key: %w", lost)
}

func (l *link) signLoaded(key tpm2.AuthHandle, digest []byte) ([]byte, error) {
	signed, err := tpm2.Sign{
		KeyHandle:  key,
		Digest:     tpm2.TPM2BDigest{Buffer: digest},
		Validation: tpm2.TPMTTKHashCheck{Tag: tpm2.TPMSTHashCheck},
	}.Execute(l)
	if err != nil {
		return nil, err
	}
	parts, err := signed.Signature.Signature.ECDSA()
	if err != nil {
		return nil, fmt.Errorf("cannot read the signature: %w", err)
	}
	return asn1.Marshal(struct{ R, S *big.Int }{
		new(big.Int).SetBytes(parts.SignatureR.Buffer), new(big.Int).SetBytes(parts.SignatureS.Buffer),
	})
}

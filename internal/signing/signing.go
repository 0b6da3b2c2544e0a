// Package signing makes and checks purpose-bound signatures.
//
// A signature covers DSSE's pre-authentication encoding of a type and a payload, where the type names the purpose. So a
// signature made for one purpose never verifies for another. Keys are ECDSA P-256, the hash is SHA-256, signatures are
// ASN.1 DER (RFC 3279 section 2.2.3). The payload is always the bytes that travel: they are verified before they are
// parsed and never serialised again.
//
// A P-256 signature has a twin (r, n-s) that verifies too. Nothing may use a signature's bytes as an identifier of what
// was signed.
package signing

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Purpose says what a signature is for.
type Purpose string

// The purposes. Their text is part of every signed input.
const (
	JoinRequest     Purpose = "join-request"     // by the CSR's key, over the request's body
	JoinResponse    Purpose = "join-response"    // by the pinned join-signing key, over the response's body
	RenewResponse   Purpose = "renew-response"   // by the pinned join-signing key
	RenewPoP        Purpose = "renew-pop"        // by the current certificate's key, over [PoP]
	X509PoP         Purpose = "x509pop"          // by the expired certificate's key, over [PoP]
	Command         Purpose = "command"          // by the command-signing key
	CommandResult   Purpose = "command-result"   // by the node key
	ResultAck       Purpose = "result-ack"       // by the command-signing key
	ReleaseManifest Purpose = "release-manifest" // by the release key
	SiteVouch       Purpose = "site-vouch"       // by a site agent's key, over the vouch's body
)

// Type returns the DSSE payload type of the purpose.
func (p Purpose) Type() string { return "application/vnd.better-compute." + string(p) + ".v1" }

// PAE returns the signed input for a payload: DSSE v1's pre-authentication encoding.
func (p Purpose) PAE(payload []byte) []byte {
	typ := p.Type()
	b := make([]byte, 0, len("DSSEv1    ")+len(typ)+len(payload)+2*20)
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(typ)), 10)
	b = append(b, ' ')
	b = append(b, typ...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	b = append(b, ' ')
	return append(b, payload...)
}

// Parse takes a signed input apart: it is the inverse of [Purpose.PAE], and takes nothing else. A purpose that this package
// does not know is none.
func Parse(input []byte) (p Purpose, payload []byte, ok bool) {
	for _, p := range purposes {
		head := p.PAE(nil)
		head = head[:len(head)-len("0 ")]
		rest, found := bytes.CutPrefix(input, head)
		if !found {
			continue
		}
		_, payload, _ := bytes.Cut(rest, []byte(" "))
		if bytes.Equal(p.PAE(payload), input) { // the length is the payload's, in its one form
			return p, payload, true
		}
	}
	return "", nil, false
}

// purposes are all of them.
var purposes = []Purpose{
	JoinRequest, JoinResponse, RenewResponse, RenewPoP, X509PoP, Command, CommandResult, ResultAck, ReleaseManifest, SiteVouch,
}

// Digest returns SHA-256 of the signed input. A record of used proofs is keyed by it.
func (p Purpose) Digest(payload []byte) [sha256.Size]byte { return sha256.Sum256(p.PAE(payload)) }

// Sign signs a payload. A key that is a [crypto.MessageSigner] gets the whole input, so that it can see what it signs.
func Sign(key crypto.Signer, p Purpose, payload []byte) ([]byte, error) {
	if err := checkKey(key.Public()); err != nil {
		return nil, fmt.Errorf("cannot sign a %s: %w", p, err)
	}
	sig, err := crypto.SignMessage(key, rand.Reader, p.PAE(payload), crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("cannot sign a %s: %w", p, err)
	}
	return sig, nil
}

// ErrSignature is a signature that does not verify under the key for the purpose.
var ErrSignature = errors.New("signature does not verify")

// Verify checks a signature of a payload. It returns [ErrSignature], or an error about the key.
func Verify(pub crypto.PublicKey, p Purpose, payload, sig []byte) error {
	if err := checkKey(pub); err != nil {
		return fmt.Errorf("cannot verify a %s: %w", p, err)
	}
	digest := p.Digest(payload)
	if !ecdsa.VerifyASN1(pub.(*ecdsa.PublicKey), digest[:], sig) {
		return fmt.Errorf("%s: %w", p, ErrSignature)
	}
	return nil
}

func checkKey(pub crypto.PublicKey) error {
	k, ok := pub.(*ecdsa.PublicKey)
	if !ok {
		return fmt.Errorf("key is %T, not ECDSA", pub)
	}
	if k.Curve != elliptic.P256() {
		return fmt.Errorf("key is on %s, not P-256", k.Curve.Params().Name)
	}
	return nil
}

// PoP returns the payload of [RenewPoP] and [X509PoP]: the CSR's SHA-256 (32 bytes), the client's time as Unix
// milliseconds (8 bytes, big endian), and the node id (UTF-8).
func PoP(csrSHA256 [sha256.Size]byte, clientTime time.Time, nodeID string) []byte {
	b := make([]byte, 0, len(csrSHA256)+8+len(nodeID))
	b = append(b, csrSHA256[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(clientTime.UnixMilli())) //nolint:gosec // two's complement is the encoding
	return append(b, nodeID...)
}

// Package seal closes a join token so that only JoinService can read it, and opens it there.
//
// A seal is a compact JWE (RFC 7516): ECDH-ES+A256KW to JoinService's P-256 encryption key, A256GCM over the token. Its
// protected header has exactly the members alg, enc, epk, typ ("bcjt+jwe"), iat (when it was made, integer Unix
// seconds) and csr (base64url without padding of the SHA-256 of the DER certificate request that it is made for). The
// gateway that relays a seal can neither read it nor use it with a request of its own. The format has vectors and a
// description in testdata/vectors/seal.
//
// [Open] reads one spelling only and decides everything that it can before a private key is used: a stranger who sends
// garbage costs no key operation, and two readers can never see two meanings.
//
// The package does no I/O and knows nothing of what a token means; iat is reported and never judged, because the
// clock of a machine that joins may be wrong and the binding to the request already ends replay. Whether a [Key] is the
// right one is decided by pins, outside.
package seal

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// MaxSize is the size of the largest seal, in bytes of its compact serialization.
const MaxSize = 8 << 10

// maxTime is the last second of the year 9999, in Unix seconds: what the text forms of a time can hold.
const maxTime = 253402300799

// Type is the typ of a seal's header.
const Type = "bcjt+jwe"

const (
	keyAlgorithm      = jose.ECDH_ES_A256KW
	contentEncryption = jose.A256GCM
)

// Seal encrypts a token to JoinService's key, for the certificate request csrDER (DER PKCS#10) and no other. now goes
// into the seal in whole seconds. The caller wipes the token.
func Seal(to Key, token, csrDER []byte, now time.Time) (string, error) {
	switch at := now.Unix(); {
	case to.pub == nil:
		return "", errors.New("cannot seal the token: no key to seal it to")
	case len(token) == 0:
		return "", errors.New("cannot seal the token: it is empty")
	case len(csrDER) == 0:
		return "", errors.New("cannot seal the token: no certificate request to bind it to")
	case at < 0 || at > maxTime:
		return "", fmt.Errorf("cannot seal the token: the clock says %s", now.UTC().Format(time.RFC3339))
	}
	pub, err := to.ecdsa()
	if err != nil {
		return "", fmt.Errorf("cannot seal the token: %w", err)
	}
	encrypter, err := jose.NewEncrypter(contentEncryption,
		jose.Recipient{Algorithm: keyAlgorithm, Key: pub},
		(&jose.EncrypterOptions{}).WithType(Type).WithHeader("iat", now.Unix()).WithHeader("csr", binding(csrDER)))
	if err != nil {
		return "", fmt.Errorf("cannot seal the token: %w", err)
	}
	jwe, err := encrypter.Encrypt(token)
	if err != nil {
		return "", fmt.Errorf("cannot seal the token: %w", err)
	}
	compact, err := jwe.CompactSerialize()
	if err != nil {
		return "", fmt.Errorf("cannot seal the token: %w", err)
	}
	if len(compact) > MaxSize {
		return "", fmt.Errorf("cannot seal the token: its %d bytes make a seal of %d bytes, more than %d", len(token), len(compact), MaxSize)
	}
	return compact, nil
}

// binding returns the csr member for a certificate request.
func binding(csrDER []byte) string {
	sum := sha256.Sum256(csrDER)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

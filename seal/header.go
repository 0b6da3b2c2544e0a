package seal

import (
	"crypto/ecdh"
	"fmt"
	"strconv"
	"time"
)

// header is what a protected header says that is not the same in every seal.
type header struct {
	ephemeral *ecdh.PublicKey
	issuedAt  time.Time
}

// parseHeader reads a protected header and holds it against the request that the seal came with.
func parseHeader(b, csrDER []byte) (header, error) {
	m, err := members(b)
	if err != nil {
		return header{}, err
	}
	if err := m.only("alg", "enc", "epk", "typ", "iat", "csr"); err != nil {
		return header{}, err
	}
	for _, c := range []struct{ name, want string }{
		{"alg", string(keyAlgorithm)}, {"enc", string(contentEncryption)}, {"typ", Type},
	} {
		got, err := m.text(c.name)
		if err != nil {
			return header{}, err
		}
		if got != c.want {
			return header{}, fmt.Errorf("%q is %.64q and must be %q", c.name, got, c.want)
		}
	}
	iat, err := m.seconds("iat")
	if err != nil {
		return header{}, err
	}
	csr, err := m.text("csr")
	if err != nil {
		return header{}, err
	}
	// Texts are compared: the expected one is the only spelling of its hash that is allowed.
	if csr != binding(csrDER) {
		return header{}, fmt.Errorf("%q is not of this certificate request", "csr")
	}
	epk, err := members(m["epk"])
	if err != nil {
		return header{}, fmt.Errorf("%q: %w", "epk", err)
	}
	if err := epk.only("kty", "crv", "x", "y"); err != nil {
		return header{}, fmt.Errorf("%q: %w", "epk", err)
	}
	key, err := epk.point()
	if err != nil {
		return header{}, fmt.Errorf("%q: %w", "epk", err)
	}
	return header{ephemeral: key.pub, issuedAt: time.Unix(iat, 0).UTC()}, nil
}

// seconds returns a member that is a NumericDate (RFC 7519) of whole seconds, written as decimal digits.
func (m object) seconds(name string) (int64, error) {
	raw := string(m[name])
	n, err := strconv.ParseInt(raw, 10, 64)
	// JSON writes integers as 1e9 and 1.0 too; here they have one spelling.
	if err != nil || strconv.FormatInt(n, 10) != raw || n < 0 || n > maxTime {
		return 0, fmt.Errorf("member %q is not a time in whole seconds", name)
	}
	return n, nil
}

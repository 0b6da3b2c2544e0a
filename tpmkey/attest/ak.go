package attest

import (
	"crypto/ecdsa"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey/internal/area"
)

// statementPrefix is what the statement of an AK starts with. SHA-256 is its template's only name algorithm.
const statementPrefix = "urn:bc:tpm-ak:sha256:"

// AKStatement returns what a certificate says of a machine's AK: "urn:bc:tpm-ak:sha256:" and the lower-case hex of the
// AK's Name without its algorithm. akPublic is its TPMT_PUBLIC. A public area that is not exactly bcd's AK is refused: an
// imported key, or one that signs whatever it is given, passes credential activation like any other.
func AKStatement(akPublic []byte) (string, error) {
	if _, err := akPoint(akPublic); err != nil {
		return "", fmt.Errorf("unusable attestation key: %w", err)
	}
	return statementPrefix + hex.EncodeToString(area.Name(akPublic)[2:]), nil
}

func akPoint(akPublic []byte) (*ecdsa.PublicKey, error) {
	public, err := unmarshalArea(akPublic)
	if err != nil {
		return nil, err
	}
	return area.AKPoint(public)
}

func unmarshalArea(public []byte) (*tpm2.TPMTPublic, error) {
	if len(public) > area.Max {
		return nil, fmt.Errorf("the public area has %d bytes, more than %d", len(public), area.Max)
	}
	if len(public) == 0 {
		return nil, errors.New("there is no public area")
	}
	a, err := area.Unmarshal[tpm2.TPMTPublic](public)
	if err != nil {
		return nil, fmt.Errorf("cannot read the public area: %w", err)
	}
	return a, nil
}

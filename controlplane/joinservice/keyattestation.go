package joinservice

import (
	"strings"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
)

// statementTPMAK begins the statement that names a TPM's attestation key.
const statementTPMAK = "urn:bc:tpm-ak:"

// checkKeyAttestation checks that the key which follows a certificate's lives where the certificate says that its own does.
// The statements come from the leaf, never from the CSR. No attestation can be checked, so none is good enough: the
// certificate gets no successor without its statement.
func checkKeyAttestation(leaf store.Cert, _ *daemonv1.KeyAttestation) error {
	for _, statement := range leaf.Statements {
		if strings.HasPrefix(statement, statementTPMAK) {
			return Refuse("key-attestation-missing")
		}
	}
	return nil
}

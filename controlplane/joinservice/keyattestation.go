package joinservice

import (
	"crypto"
	"crypto/sha256"
	"strings"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/tpmkey/attest"
)

// statementTPMAK begins the statement that names a TPM's attestation key.
const statementTPMAK = "urn:bc:tpm-ak:"

// checkKeyAttestation checks that the key which follows a certificate's lives where the certificate says that its own does.
// The statements come from the leaf, never from the CSR. csrKey is the next key, nil where the CSR holds none.
func checkKeyAttestation(leaf store.Cert, attested *daemonv1.KeyAttestation, csrKey crypto.PublicKey, csrSHA256 [sha256.Size]byte) error {
	for _, statement := range leaf.Statements {
		if !strings.HasPrefix(statement, statementTPMAK) {
			continue
		}
		if err := attest.VerifyCertification(certificationOf(attested), statement, csrKey, csrSHA256); err != nil {
			return Refuse(attest.ReasonOf(err))
		}
	}
	return nil
}

// certificationOf is a request's certification of its key; one that is not there is empty.
func certificationOf(a *daemonv1.KeyAttestation) attest.Certification {
	return attest.Certification{
		CertifyInfo: a.GetCertifyInfo(), Signature: a.GetSignature(), NodePublic: a.GetNodePublic(), AKPublic: a.GetAkPublic(),
	}
}

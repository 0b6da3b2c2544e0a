package tpmkey_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"testing"
	"time"

	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

func identify(t testing.TB, s *tpmkey.Store) tpmkey.Identity {
	t.Helper()
	id, err := s.Attester().Identify(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func statementOf(t testing.TB, id tpmkey.Identity) string {
	t.Helper()
	statement, err := attest.AKStatement(id.AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	return statement
}

// prove runs a whole challenge against the store's TPM and fails the test unless its proof is right.
func prove(t testing.TB, s *tpmkey.Store, id tpmkey.Identity) {
	t.Helper()
	secret := [32]byte(randomBytes(32))
	blob, encrypted, err := attest.MakeCredential(id.EK, id.AKPublic, secret)
	if err != nil {
		t.Fatal(err)
	}
	opened, err := s.Attester().ActivateCredential(t.Context(), blob, encrypted)
	if err != nil {
		t.Fatal(err)
	}
	csr := sha256.Sum256([]byte("a certificate request"))
	if !hmac.Equal(attest.Proof([32]byte(opened), csr), attest.Proof(secret, csr)) {
		t.Error("the proof is another one")
	}
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

// Req: JF-014 TP-003
func TestAJoinsWholeProof(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		id := identify(t, s)
		noLeaks(t, tpm)
		if id.EK.Template != "L-2" || id.EKIndex != 0x01c0000a || len(id.EKCertificates) != 0 {
			t.Errorf("a TPM without certificates has the EK %s of 0x%08x with %d certificates", id.EK.Template, id.EKIndex, len(id.EKCertificates))
		}
		if id.Manufacturer == "" || id.FirmwareVersion == "" {
			t.Errorf("the TPM says nothing of itself: %+v", id)
		}
		prove(t, s, id)
		noLeaks(t, tpm)
		_, key := newKey(t, s)
		csr := sha256.Sum256(csrOf(t, key))
		c, err := s.Attester().Certify(t.Context(), key, csr)
		if err != nil {
			t.Fatal(err)
		}
		noLeaks(t, tpm)
		if err := attest.VerifyCertification(c, statementOf(t, id), key.Public(), csr); err != nil {
			t.Error(err)
		}
		// The keys are derived again, the same.
		tpm.Reboot(t)
		tpm.Clear(t)
		again := identify(t, s)
		if again.EK.Hash() != id.EK.Hash() || !bytes.Equal(again.AKPublic, id.AKPublic) {
			t.Error("the TPM is another one after it was cleared")
		}
	})
}

func TestTheEKWithACertificateOfItsMaker(t *testing.T) {
	maker := tpmkeytest.NewMaker(t)
	tpm := maker.Swtpm(t)
	s := storeOn(t, tpm)
	id := identify(t, s)
	if id.EK.Template != "L-1" || id.EKIndex != 0x01c00002 || len(id.EKCertificates) != 1 {
		t.Fatalf("the EK is %s of 0x%08x with %d certificates: %q", id.EK.Template, id.EKIndex, len(id.EKCertificates), id.Notes)
	}
	prove(t, s, id)
	noLeaks(t, tpm)
	roots := []*x509.Certificate{maker.Root(t)}
	chain := append(id.EKCertificates, maker.Issuer(t).Raw)
	if err := attest.VerifyEKChain(id.EK, chain, roots, time.Now()); err != nil {
		t.Error(err)
	}
	high := newStore(t, tpmkey.Options{Device: tpm.Device(), EK: 0x01c00016})
	other := identify(t, high)
	if other.EK.Template != "H-3" || len(other.EKCertificates) != 1 {
		t.Fatalf("the EK is %s with %d certificates: %q", other.EK.Template, len(other.EKCertificates), other.Notes)
	}
	prove(t, high, other)
	noLeaks(t, tpm)
}

package tpmkey_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/internal/area"
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

// Req: JF-014 RN-020
func TestAJoinsWholeProof(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		id := identify(t, s)
		noLeaks(t, tpm)
		if id.EK.Template != "L-2" || id.EKIndex != 0x01c0000a || len(id.EKCertificates) != 0 {
			t.Errorf("a TPM without certificates has the EK %s of 0x%08x with %d certificates", id.EK.Template, id.EKIndex, len(id.EKCertificates))
		}
		// libtpms and the reference implementation as go-tpm-tools builds it.
		if !slices.Contains([]string{"IBM", "MSFT"}, id.Manufacturer) || !strings.HasPrefix(id.Spec, "2.0 revision 1.") || strings.Count(id.FirmwareVersion, ".") != 3 {
			t.Errorf("the TPM says of itself: %q, %q, %q, %q", id.Manufacturer, id.Model, id.FirmwareVersion, id.Spec)
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

func secretFile(t testing.TB, value string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// attestations are the operations of an attester, each ready to run.
func attestations(t testing.TB, s *tpmkey.Store) map[string]func(context.Context) error {
	t.Helper()
	id := identify(t, s)
	_, key := newKey(t, s)
	blob, encrypted, err := attest.MakeCredential(id.EK, id.AKPublic, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	a := s.Attester()
	return map[string]func(context.Context) error{
		"identify": func(ctx context.Context) error { _, err := a.Identify(ctx); return err },
		"AK":       func(ctx context.Context) error { _, err := a.AKPublic(ctx); return err },
		"activate": func(ctx context.Context) error { _, err := a.ActivateCredential(ctx, blob, encrypted); return err },
		"certify":  func(ctx context.Context) error { _, err := a.Certify(ctx, key, [32]byte{2}); return err },
	}
}

func TestEndorsementAuthorisation(t *testing.T) {
	right, wrong := secretFile(t, "endorsement secret"), secretFile(t, "wrong")
	open := secretFile(t, "endorsement secret")
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		on := func(file string) *tpmkey.Store {
			return newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), EndorsementAuthFile: file})
		}
		before := identify(t, on(""))
		tpm.SetEndorsementAuth(t, []byte("endorsement secret"))
		for name, file := range map[string]string{"none": "", "wrong": wrong} {
			_, err := on(file).Attester().Identify(t.Context())
			wantFault(t, err, fault.TPMAuth, "the endorsement hierarchy has an authorisation", "TPM_RC_BAD_AUTH")
			if hint := fault.HintOf(err); !strings.Contains(hint, "[tpm] endorsement_auth_file") || fault.CodeOf(err).Temporary() {
				t.Errorf("%s: hint %q", name, hint)
			}
			noLeaks(t, tpm)
		}
		_, err := on(open).Attester().AKPublic(t.Context())
		wantFault(t, err, fault.Config, "0644", open)
		if hint := fault.HintOf(err); !strings.Contains(hint, "[tpm] endorsement_auth_file") {
			t.Errorf("hint %q", hint)
		}
		for name, operation := range attestations(t, on(right)) {
			if err := operation(t.Context()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			noLeaks(t, tpm)
		}
		if after := identify(t, on(right)); after.EK.Hash() != before.EK.Hash() || !bytes.Equal(after.AKPublic, before.AKPublic) {
			t.Error("with an authorisation the keys are other ones")
		}
		// A node's key is the owner's hierarchy: it needs none of this.
		if _, key := newKey(t, on("")); sign(key) != nil {
			t.Error("a key of the owner's hierarchy does not sign")
		}
	})
}

func TestADisabledEndorsementHierarchy(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	operations := attestations(t, s)
	tpm.DisableEndorsement(t)
	for name, operation := range operations {
		err := operation(t.Context())
		wantFault(t, err, fault.TPMUnusable, "the endorsement hierarchy is disabled")
		if hint := fault.HintOf(err); !strings.Contains(hint, "endorsement hierarchy") {
			t.Errorf("%s: hint %q", name, hint)
		}
		noLeaks(t, tpm)
	}
}

func TestAttestationLeavesNothingLoadedAfterAFailureAtAnyCommand(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		provision(t, tpm, "H-2") // a policy of two branches, certificates, a template with many commands
		tpm.SetEndorsementAuth(t, []byte("secret"))
		s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), EndorsementAuthFile: secretFile(t, "secret")})
		for name, operation := range attestations(t, s) {
			tpm.Commands()
			if err := operation(t.Context()); err != nil {
				t.Fatal(err)
			}
			commands := tpm.Commands()
			// A TPM has as few as three slots for objects, and for sessions: two of each are the most that are needed.
			if most := mostLoaded(commands); most > 4 {
				t.Errorf("%s: %d loaded at once", name, most)
			}
			for i, failing := range commands {
				n := 0
				tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action {
					n++
					if n == i+1 {
						return tpmkeytest.Fail(tpm2.TPMRCFailure)
					}
					return tpmkeytest.Pass()
				})
				err := operation(t.Context())
				tpm.Intercept(nil)
				// A flush is tried again, and a node's key is looked for under a second storage key.
				tolerated := failing == tpm2.TPMCCFlushContext || name == "certify" && (failing == tpm2.TPMCCCreatePrimary || failing == tpm2.TPMCCLoad)
				switch {
				case err != nil && failing == tpm2.TPMCCActivateCredential:
					wantFault(t, err, fault.Verification, "TPM_RC_FAILURE") // the TPM works, so it is the challenge
				case err != nil:
					wantFault(t, err, fault.TPMUnusable, "TPM_RC_FAILURE")
				case !tolerated:
					t.Errorf("%s: no error although command %d (0x%x) failed", name, i, failing)
				}
				if loaded := tpm.Handles(t); len(loaded) > 0 {
					t.Fatalf("%s: command %d (0x%x) failed, still loaded: %#x", name, i, failing, loaded)
				}
			}
		}
	})
}

// mostLoaded counts the objects and sessions that the commands leave loaded, and returns the most.
func mostLoaded(commands []tpm2.TPMCC) (most int) {
	loaded := 0
	for _, command := range commands {
		switch command {
		case tpm2.TPMCCCreatePrimary, tpm2.TPMCCLoad, tpm2.TPMCCStartAuthSession:
			loaded++
		case tpm2.TPMCCFlushContext:
			loaded--
		}
		most = max(most, loaded)
	}
	return most
}

func TestTwoObjectsAreTheMostThatAttestationLoads(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	for name, operation := range attestations(t, storeOn(t, tpm)) {
		tpm.Commands()
		if err := operation(t.Context()); err != nil {
			t.Fatal(err)
		}
		want := 2
		if name == "activate" {
			want = 3 // and the policy's session
		}
		if most := mostLoaded(tpm.Commands()); most > want {
			t.Errorf("%s: %d loaded at once, want %d", name, most, want)
		}
	}
}

func TestAWrongChallenge(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		for _, template := range []string{"L-1", "L-2", "H-3"} {
			t.Run(template, func(t *testing.T) {
				s := newStore(t, tpmkey.Options{Device: tpm.Device(), EK: templateOf(t, template).Index})
				id := identify(t, s)
				blob, encrypted, err := attest.MakeCredential(id.EK, id.AKPublic, [32]byte{1})
				if err != nil {
					t.Fatal(err)
				}
				flip := func(b []byte, i int) []byte {
					b = bytes.Clone(b)
					b[i] ^= 1
					return b
				}
				for name, test := range map[string]struct{ blob, encrypted []byte }{
					"another HMAC":   {flip(blob, 5), encrypted},
					"another secret": {flip(blob, len(blob)-1), encrypted},
					"another seed":   {blob, flip(encrypted, len(encrypted)-1)},
					"cut short":      {blob[:len(blob)-1], encrypted},
					"nothing":        {nil, nil},
					"no seed":        {blob, nil},
					"no blob":        {nil, encrypted},
					"huge":           {make([]byte, 4096), encrypted},
					"a huge seed":    {blob, make([]byte, 1<<20)},
				} {
					secret, err := s.Attester().ActivateCredential(t.Context(), test.blob, test.encrypted)
					if err == nil {
						t.Errorf("%s: opened: %x", name, secret)
						continue
					}
					wantFault(t, err, fault.Verification, "challenge")
					noLeaks(t, tpm)
				}
			})
		}
	})
}

func TestOffMeansNoAttestation(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	operations := attestations(t, storeOn(t, tpm))
	off := newStore(t, tpmkey.Options{Mode: tpmkey.Off, Device: tpm.Device()})
	record, _ := newKey(t, storeOn(t, tpm))
	key, err := off.Open(record)
	if err != nil {
		t.Fatal(err)
	}
	tpm.Commands()
	for _, s := range []*tpmkey.Store{off, off.Require()} {
		_, identifyErr := s.Attester().Identify(t.Context())
		_, akErr := s.Attester().AKPublic(t.Context())
		_, activateErr := s.Attester().ActivateCredential(t.Context(), nil, nil)
		_, certifyErr := s.Attester().Certify(t.Context(), key, [32]byte{})
		for _, err := range []error{identifyErr, akErr, activateErr, certifyErr} {
			wantFault(t, err, fault.Config, `[tpm] mode is "off"`)
		}
	}
	if sent := tpm.Commands(); len(sent) > 0 {
		t.Errorf("sent %#x", sent)
	}
	if len(operations) == 0 {
		t.Error("no operations")
	}
}

func TestOnlyKeysOfThisTPMAreCertified(t *testing.T) {
	tpm, other := tpmkeytest.Any(t), tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	_, foreign := newKey(t, storeOn(t, other))
	_, err := s.Attester().Certify(t.Context(), foreign, [32]byte{})
	wantFault(t, err, fault.TPMKeyLost, "cannot certify the node's key with the TPM", "cleared or replaced")
	_, inFile := newKey(t, newStore(t, tpmkey.Options{Mode: tpmkey.Off}))
	_, err = s.Attester().Certify(t.Context(), inFile, [32]byte{})
	wantFault(t, err, fault.TPMUnusable, "the key is not in the TPM")
	_, err = s.Attester().Certify(t.Context(), nil, [32]byte{})
	wantFault(t, err, fault.TPMUnusable, "the key is not in the TPM")
	_, key := newKey(t, s)
	tpm.Clear(t)
	_, err = s.Attester().Certify(t.Context(), key, [32]byte{})
	wantFault(t, err, fault.TPMKeyLost, "cleared or replaced")
	noLeaks(t, tpm)
}

func TestAReplacedTPMHasAnotherEKAndAK(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	before := identify(t, s)
	_, key := newKey(t, s)
	tpm.ReplaceEndorsementSeed(t)
	after := identify(t, s)
	if before.EK.Hash() == after.EK.Hash() || bytes.Equal(before.AKPublic, after.AKPublic) {
		t.Error("the keys are the same")
	}
	// The storage hierarchy kept its seed: the node's key loads, but another AK vouches for it.
	c, err := s.Attester().Certify(t.Context(), key, [32]byte{1})
	if err != nil {
		t.Fatal(err)
	}
	err = attest.VerifyCertification(c, statementOf(t, before), key.Public(), [32]byte{1})
	if attest.ReasonOf(err) != attest.ReasonAK {
		t.Error(err)
	}
}

func TestABadCertificationIsNotReturned(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	_, key := newKey(t, s)
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command != tpm2.TPMCCCertify {
			return tpmkeytest.Pass()
		}
		return tpmkeytest.Alter(func(response []byte) { response[60] ^= 1 })
	})
	_, err := s.Attester().Certify(t.Context(), key, [32]byte{})
	wantFault(t, err, fault.TPMUnavailable, "does not verify")
	noLeaks(t, tpm)
}

func TestATPMThatCannotAttest(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	for name, test := range map[string]struct {
		command tpm2.TPMCC
		action  tpmkeytest.Action
		text    string
	}{
		"no P-256":    {tpm2.TPMCCGetCapability, tpmkeytest.Alter(func(r []byte) { r[len(r)-2], r[len(r)-1] = 0, 4 }), "the TPM has no P-256"},
		"curve":       {tpm2.TPMCCCreatePrimary, tpmkeytest.Fail(0x2e6), "TPM_RC_CURVE"}, // parameter 2
		"another key": {tpm2.TPMCCCreatePrimary, tpmkeytest.Alter(func(r []byte) { r[10+4+4+2+7] ^= 4 }), "attestation key"},
	} {
		t.Run(name, func(t *testing.T) {
			tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
				if command == test.command {
					return test.action
				}
				return tpmkeytest.Pass()
			})
			defer tpm.Intercept(nil)
			_, err := s.Attester().AKPublic(t.Context())
			wantFault(t, err, fault.TPMUnusable, test.text)
			if hint := fault.HintOf(err); !strings.Contains(hint, "join token") {
				t.Errorf("hint %q", hint)
			}
			noLeaks(t, tpm)
		})
	}
}

func TestAttestationRetriesNotNow(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	operations := attestations(t, s)
	pauses := 0
	s.SetPause(func(context.Context, time.Duration) error { pauses++; return nil })
	for name, operation := range operations {
		n := 0
		tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action {
			if n++; n%3 != 0 {
				return tpmkeytest.Fail([]tpm2.TPMRC{tpm2.TPMRCRetry, tpm2.TPMRCYielded, tpm2.TPMRCTesting}[n%2])
			}
			return tpmkeytest.Pass()
		})
		if err := operation(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		tpm.Intercept(nil)
	}
	if pauses == 0 {
		t.Error("nothing was retried")
	}
	noLeaks(t, tpm)
}

func TestALockoutOfAttestation(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	for name, operation := range attestations(t, s) {
		tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
			if command == tpm2.TPMCCCreatePrimary {
				return tpmkeytest.Fail(tpm2.TPMRCLockout)
			}
			return tpmkeytest.Pass()
		})
		err := operation(t.Context())
		tpm.Intercept(nil)
		wantFault(t, err, fault.TPMLockout, "it forgives one failure every")
		if !fault.CodeOf(err).Temporary() {
			t.Errorf("%s: a lockout is for ever", name)
		}
		noLeaks(t, tpm)
	}
}

func TestACancelledContextAttestsNothing(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	for name, operation := range attestations(t, storeOn(t, tpm)) {
		tpm.Commands()
		total := 0
		for after := 0; ; after++ {
			ctx, cancel := context.WithCancel(t.Context())
			n := 0
			tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action {
				if n++; n > after {
					cancel()
				}
				return tpmkeytest.Pass()
			})
			err := operation(ctx)
			tpm.Intercept(nil)
			cancel()
			noLeaks(t, tpm)
			if err == nil {
				total = after
				break
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if total == 0 {
			t.Errorf("%s was never cancelled", name)
		}
	}
}

func TestAttestationsTakeTurns(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	operations := attestations(t, s)
	var running sync.WaitGroup
	for range 3 {
		for name, operation := range operations {
			running.Go(func() {
				if err := operation(t.Context()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	running.Wait()
	noLeaks(t, tpm)
}

// A key made in software passes credential activation on a real TPM, so that activation alone says nothing about where an AK
// lives: only the check of its public area does.
func TestAnImportedKeyPassesActivationAndIsNoAK(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	id := identify(t, storeOn(t, tpm))
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	point, err := key.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	public, err := key.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	imported := area.AK()
	imported.ObjectAttributes = tpm2.TPMAObject{UserWithAuth: true, NoDA: true, SignEncrypt: true} // all that a TPM allows such a key
	imported.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
		X: tpm2.TPM2BECCParameter{Buffer: public[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: public[33:]},
	})
	name := area.Name(tpm2.Marshal(imported))
	ek := templateOf(t, id.EK.Template)
	ekPublic, err := x509.ParsePKIXPublicKey(id.EK.SPKI)
	if err != nil {
		t.Fatal(err)
	}
	ekArea, err := ek.Filled(ekPublic)
	if err != nil {
		t.Fatal(err)
	}
	to, err := tpm2.ImportEncapsulationKey(&ekArea)
	if err != nil {
		t.Fatal(err)
	}
	secret := randomBytes(32)
	blob, encrypted, err := tpm2.CreateCredential(rand.Reader, to, name, secret)
	if err != nil {
		t.Fatal(err)
	}
	tpm.Do(t, func(direct transport.TPM) {
		loaded, err := tpm2.LoadExternal{
			InPrivate: tpm2.New2B(tpm2.TPMTSensitive{
				SensitiveType: tpm2.TPMAlgECC,
				Sensitive:     tpm2.NewTPMUSensitiveComposite(tpm2.TPMAlgECC, &tpm2.TPM2BECCParameter{Buffer: point}),
			}),
			InPublic: tpm2.New2B(imported), Hierarchy: tpm2.TPMRHNull,
		}.Execute(direct)
		if err != nil {
			t.Fatal(err)
		}
		made, err := tpm2.CreatePrimary{
			PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)}, InPublic: tpm2.New2B(ek.Public),
		}.Execute(direct)
		if err != nil {
			t.Fatal(err)
		}
		session, _, err := tpm2.PolicySession(direct, tpm2.TPMAlgSHA256, 16)
		if err != nil {
			t.Fatal(err)
		}
		_, err = tpm2.PolicySecret{
			AuthHandle:    tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
			PolicySession: session.Handle(),
		}.Execute(direct)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := tpm2.ActivateCredential{
			ActivateHandle: tpm2.AuthHandle{Handle: loaded.ObjectHandle, Name: loaded.Name, Auth: tpm2.PasswordAuth(nil)},
			KeyHandle:      tpm2.AuthHandle{Handle: made.ObjectHandle, Name: made.Name, Auth: session},
			CredentialBlob: tpm2.TPM2BIDObject{Buffer: blob}, Secret: tpm2.TPM2BEncryptedSecret{Buffer: encrypted},
		}.Execute(direct)
		if err != nil || !bytes.Equal(opened.CertInfo.Buffer, secret) {
			t.Errorf("the TPM does not activate it: %v", err)
		}
	})
	if statement, err := attest.AKStatement(tpm2.Marshal(imported)); err == nil {
		t.Errorf("the imported key is the AK %s", statement)
	}
	if _, _, err := attest.MakeCredential(id.EK, tpm2.Marshal(imported), [32]byte(secret)); err == nil {
		t.Error("a challenge is made for the imported key")
	}
}

// A software TPM keeps what is loaded when the connection ends: the next operations find room all the same.
func TestAttestationWithATPMThatGoesAway(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := storeOn(t, tpm)
	for name, operation := range attestations(t, s) {
		tpm.Commands()
		if err := operation(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i := range tpm.Commands() {
			n := 0
			tpm.Intercept(func(tpm2.TPMCC) tpmkeytest.Action {
				if n++; n > i {
					return tpmkeytest.HangUp()
				}
				return tpmkeytest.Pass()
			})
			err := operation(t.Context())
			tpm.Intercept(nil)
			wantFault(t, err, fault.TPMUnavailable)
			if err := operation(t.Context()); err != nil {
				t.Errorf("%s, after the connection ended at command %d: %v", name, i, err)
			}
		}
	}
}

func TestAttestationGivesUpOnATPMThatNeverAnswers(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	s := newStore(t, tpmkey.Options{Device: tpm.Device(), Timeout: time.Second})
	a := s.Attester()
	if _, err := a.AKPublic(t.Context()); err != nil {
		t.Fatal(err)
	}
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command == tpm2.TPMCCCreatePrimary {
			return tpmkeytest.Ignore()
		}
		return tpmkeytest.Pass()
	})
	_, err := a.AKPublic(t.Context())
	wantFault(t, err, fault.TPMUnavailable, "did not answer in time")
	tpm.Intercept(nil)
	if _, err := a.AKPublic(t.Context()); err != nil {
		t.Error(err)
	}
}

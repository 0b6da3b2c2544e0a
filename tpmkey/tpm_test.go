package tpmkey_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

const srk tpm2.TPMHandle = 0x81000001

// noLeaks fails the test when something is still loaded.
func noLeaks(t testing.TB, tpm *tpmkeytest.TPM) {
	t.Helper()
	if loaded := tpm.Handles(t); len(loaded) > 0 {
		t.Errorf("still loaded: %#x", loaded)
	}
}

func parentOf(t *testing.T, record []byte) uint32 {
	t.Helper()
	d, err := tpmkey.Describe(record)
	if err != nil {
		t.Fatal(err)
	}
	return d.Parent
}

// wantFault fails the test unless err has the code, a hint, and all of texts in its message.
func wantFault(t testing.TB, err error, code fault.Code, texts ...string) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Errorf("%v: code %q, want %q", err, fault.CodeOf(err), code)
		return
	}
	if fault.HintOf(err) == "" {
		t.Errorf("%v: no hint", err)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%v: does not say %q", err, text)
		}
	}
}

// Req: TP-007 TP-008
func TestTheNodeKeyIsMadeInTheTPMAndNeverLeavesIt(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
		record, key := newKey(t, storeOn(t, tpm))
		public, private, err := tpmkey.Blobs(record)
		if err != nil {
			t.Fatal(err)
		}
		tpm.Do(t, func(direct transport.TPM) {
			parent, err := tpm2.ReadPublic{ObjectHandle: srk}.Execute(direct)
			if err != nil {
				t.Fatal(err)
			}
			loaded, err := tpm2.Load{
				ParentHandle: tpm2.AuthHandle{Handle: srk, Name: parent.Name, Auth: tpm2.PasswordAuth(nil)},
				InPrivate:    private, InPublic: public,
			}.Execute(direct)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _, _ = tpm2.FlushContext{FlushHandle: loaded.ObjectHandle}.Execute(direct) }()
			// The TPM's own word on what the key is.
			read, err := tpm2.ReadPublic{ObjectHandle: loaded.ObjectHandle}.Execute(direct)
			if err != nil {
				t.Fatal(err)
			}
			area, err := read.OutPublic.Contents()
			if err != nil {
				t.Fatal(err)
			}
			want := tpm2.TPMAObject{
				FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, SignEncrypt: true, NoDA: true,
			}
			if area.ObjectAttributes != want { // reserved bits included
				t.Errorf("attributes %+v, want %+v", area.ObjectAttributes, want)
			}
			pub, err := tpm2.Pub(*area)
			if err != nil || !key.Public().(*ecdsa.PublicKey).Equal(pub) {
				t.Errorf("the TPM's key is %v, %v", pub, err)
			}
			// TPM2_Duplicate wants a policy session for the role DUP.
			session, closeSession, err := tpm2.PolicySession(direct, tpm2.TPMAlgSHA256, 16)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = closeSession() }()
			if _, err := (tpm2.PolicyCommandCode{PolicySession: session.Handle(), Code: tpm2.TPMCCDuplicate}).Execute(direct); err != nil {
				t.Fatal(err)
			}
			_, err = tpm2.Duplicate{
				ObjectHandle:    tpm2.AuthHandle{Handle: loaded.ObjectHandle, Name: loaded.Name, Auth: session},
				NewParentHandle: tpm2.TPMRHNull,
				Symmetric:       tpm2.TPMTSymDef{Algorithm: tpm2.TPMAlgNull},
			}.Execute(direct)
			// The attributes are checked before the policy, so this is the refusal of a fixed key.
			if !errors.Is(err, tpm2.TPMRCAttributes) && !errors.Is(err, tpm2.TPMRCPolicyFail) {
				t.Errorf("TPM2_Duplicate: %v", err)
			}
		})
	})
}

func TestTheParentIsTheStorageRootKeyWhenItFits(t *testing.T) {
	noDA := tpm2.ECCSRKTemplate
	noDA.ObjectAttributes.NoDA = false
	signing := tpmkey.NodeKeyTemplate
	const derived = uint32(tpm2.TPMRHOwner)
	for name, test := range map[string]struct {
		prepare func(*testing.T, *tpmkeytest.TPM)
		want    uint32
	}{
		"none":     {func(*testing.T, *tpmkeytest.TPM) {}, derived},
		"ECC":      {func(t *testing.T, tpm *tpmkeytest.TPM) { tpm.Persist(t, tpm2.ECCSRKTemplate, srk) }, uint32(srk)},
		"RSA":      {func(t *testing.T, tpm *tpmkeytest.TPM) { tpm.Persist(t, tpm2.RSASRKTemplate, srk) }, uint32(srk)},
		"no noDA":  {func(t *testing.T, tpm *tpmkeytest.TPM) { tpm.Persist(t, noDA, srk) }, derived},
		"signing":  {func(t *testing.T, tpm *tpmkeytest.TPM) { tpm.Persist(t, signing, srk) }, derived},
		"password": {func(t *testing.T, tpm *tpmkeytest.TPM) { tpm.PersistWithAuth(t, tpm2.ECCSRKTemplate, srk, []byte("x")) }, derived},
	} {
		t.Run(name, func(t *testing.T) {
			tpm := tpmkeytest.Any(t)
			test.prepare(t, tpm)
			record, key := newKey(t, storeOn(t, tpm))
			if got := parentOf(t, record); got != test.want {
				t.Errorf("the parent is 0x%x, want 0x%x", got, test.want)
			}
			if err := sign(key); err != nil {
				t.Error(err)
			}
			noLeaks(t, tpm)
			for _, command := range tpm.Commands() {
				if command == tpm2.TPMCCEvictControl || command == tpm2.TPMCCCreateLoaded {
					t.Errorf("sent 0x%x", command)
				}
			}
		})
	}
}

func TestAKeySurvivesAReboot(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		_, derived := newKey(t, s)
		tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
		_, persistent := newKey(t, s)
		tpm.Reboot(t)
		for _, key := range []crypto.Signer{derived, persistent} {
			if err := sign(key); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAKeySurvivesTheEvictionOfItsParent(t *testing.T) {
	emptyUnique := tpm2.ECCSRKTemplate
	emptyUnique.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{})
	for name, template := range map[string]tpm2.TPMTPublic{
		"ECC, unique empty": emptyUnique, "ECC, unique zero": tpm2.ECCSRKTemplate, "RSA": tpm2.RSASRKTemplate,
	} {
		t.Run(name, func(t *testing.T) {
			tpm := tpmkeytest.Any(t)
			tpm.Persist(t, template, srk)
			record, key := newKey(t, storeOn(t, tpm))
			if got := parentOf(t, record); got != uint32(srk) {
				t.Fatalf("the parent is 0x%x", got)
			}
			tpm.Evict(t, srk)
			if err := sign(key); err != nil {
				t.Error(err)
			}
			// Another program may put a key of its own there.
			tpm.Persist(t, tpmkey.NodeKeyTemplate, srk)
			if err := sign(key); err != nil {
				t.Error(err)
			}
			noLeaks(t, tpm)
		})
	}
}

func TestAClearedOrReplacedTPMHasLostTheKey(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		derivedRecord, derived := newKey(t, s)
		tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
		persistentRecord, persistent := newKey(t, s)

		other := tpmkeytest.Any(t)
		other.Persist(t, tpm2.ECCSRKTemplate, srk)
		for _, record := range [][]byte{derivedRecord, persistentRecord} {
			key, err := storeOn(t, other).Open(record)
			if err != nil {
				t.Fatal(err)
			}
			wantFault(t, sign(key), fault.TPMKeyLost, "cannot sign with the TPM's key: the TPM was cleared or replaced", "TPM_RC_INTEGRITY")
		}
		noLeaks(t, other)

		tpm.Clear(t)
		for _, key := range []crypto.Signer{derived, persistent} {
			err := sign(key)
			wantFault(t, err, fault.TPMKeyLost, "TPM_RC_INTEGRITY")
			if got, want := fault.HintOf(err), fault.HintJoinAgain; got != want {
				t.Errorf("hint %q, want %q", got, want)
			}
		}
		noLeaks(t, tpm)
	})
}

func TestOwnerAuthorisation(t *testing.T) {
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("owner secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(t.TempDir(), "wrong")
	if err := os.WriteFile(wrong, []byte("wrong"), 0o400); err != nil {
		t.Fatal(err)
	}
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		on := func(file string) *tpmkey.Store {
			return newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), OwnerAuthFile: file})
		}
		tpm.SetOwnerAuth(t, []byte("owner secret"))
		for name, file := range map[string]string{"none": "", "wrong": wrong} {
			_, _, err := on(file).New(t.Context())
			wantFault(t, err, fault.TPMAuth, "cannot make a key in the TPM", "the owner hierarchy", "TPM_RC_BAD_AUTH")
			if fault.CodeOf(err).Temporary() {
				t.Errorf("%s: a wrong authorisation is temporary", name)
			}
		}
		record, key := newKey(t, on(auth))
		if err := sign(key); err != nil {
			t.Error(err)
		}
		unauthorised, err := on("").Open(record)
		if err != nil {
			t.Fatal(err)
		}
		wantFault(t, sign(unauthorised), fault.TPMAuth, "TPM_RC_BAD_AUTH")
		noLeaks(t, tpm)
	})
}

func TestThePersistentKeyNeedsNoOwnerAuthorisation(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
	tpm.SetOwnerAuth(t, []byte("nobody told bcd"))
	record, key := newKey(t, storeOn(t, tpm))
	if got := parentOf(t, record); got != uint32(srk) {
		t.Errorf("the parent is 0x%x", got)
	}
	if err := sign(key); err != nil {
		t.Error(err)
	}
}

func TestUnsafeOwnerAuthorisationFilesAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, value string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tpm := tpmkeytest.Any(t)
	for name, test := range map[string]struct{ path, want string }{
		"readable by the group": {write("a", "x", 0o640), "0640"},
		"readable by all":       {write("b", "x", 0o604), "0604"},
		"empty":                 {write("c", "\n", 0o600), "empty"},
		"too long":              {write("d", strings.Repeat("x", 65), 0o600), "64 bytes"},
		"a folder":              {dir, "not a regular file"},
		"absent":                {filepath.Join(dir, "none"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, tpmkey.Options{Device: tpm.Device(), OwnerAuthFile: test.path}) // auto: no fallback for this
			_, _, err := s.New(t.Context())
			wantFault(t, err, fault.Config, test.path, test.want)
			noLeaks(t, tpm)
		})
	}
	longest := write("longest", strings.Repeat("x", 64)+"\r\n", 0o600)
	_, _, err := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), OwnerAuthFile: longest}).New(t.Context())
	wantFault(t, err, fault.TPMAuth) // the value is taken, and is not this TPM's
}

func TestNothingStaysLoadedAfterManyOperations(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		_, derived := newKey(t, s)
		tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
		_, persistent := newKey(t, s)
		for range 50 {
			for _, key := range []crypto.Signer{derived, persistent} {
				if err := sign(key); err != nil {
					t.Fatal(err)
				}
			}
		}
		noLeaks(t, tpm)
	})
}

func TestNothingStaysLoadedAfterAFailureAtAnyCommand(t *testing.T) {
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		tpm.SetOwnerAuth(t, []byte("secret")) // so that sessions are in it too
		s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), OwnerAuthFile: auth})
		_, key := newKey(t, s)
		operations := map[string]func() error{
			"new":  func() error { _, _, err := s.New(t.Context()); return err },
			"sign": func() error { return sign(key) },
		}
		for name, operation := range operations {
			tpm.Commands()
			if err := operation(); err != nil {
				t.Fatal(err)
			}
			commands := tpm.Commands()
			if len(commands) < 5 {
				t.Fatalf("%s took only %d commands", name, len(commands))
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
				err := operation()
				tpm.Intercept(nil)
				// A flush is tried again; for New a persistent key that cannot be read is one that is not there.
				tolerated := failing == tpm2.TPMCCFlushContext || name == "new" && failing == tpm2.TPMCCReadPublic
				// A derived key is looked for under a second template.
				tolerated = tolerated || name == "sign" && n > i+1 && err == nil
				if err == nil && !tolerated {
					t.Errorf("%s: no error although command %d (0x%x) failed", name, i, failing)
				}
				if err != nil {
					wantFault(t, err, fault.TPMUnusable, "TPM_RC_FAILURE")
				}
				if loaded := tpm.Handles(t); len(loaded) > 0 {
					t.Fatalf("%s: command %d (0x%x) failed, still loaded: %#x", name, i, failing, loaded)
				}
			}
		}
	})
}

func TestAFullSoftwareTPMIsFreedOfWhatDeadClientsLeft(t *testing.T) {
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		s := storeOn(t, tpm)
		_, key := newKey(t, s)
		tpm.Do(t, func(direct transport.TPM) {
			for range 3 {
				_, err := tpm2.CreatePrimary{
					PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
					InPublic:      tpm2.New2B(tpm2.ECCSRKTemplate),
				}.Execute(direct)
				if err != nil {
					t.Fatal(err)
				}
			}
		})
		if got := len(tpm.Handles(t)); got != 3 {
			t.Fatalf("%d objects are loaded, want 3", got)
		}
		if err := sign(key); err != nil {
			t.Error(err)
		}
		noLeaks(t, tpm)
	})
}

func TestAFullSoftwareTPMIsFreedOfSessionsToo(t *testing.T) {
	auth := filepath.Join(t.TempDir(), "auth")
	if err := os.WriteFile(auth, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	forEachTPM(t, func(t *testing.T, tpm *tpmkeytest.TPM) {
		tpm.SetOwnerAuth(t, []byte("secret"))
		tpm.Do(t, func(direct transport.TPM) {
			for {
				// Never closed, as by a client that was killed.
				if _, _, err := tpm2.HMACSession(direct, tpm2.TPMAlgSHA256, 16); errors.Is(err, tpm2.TPMRCSessionMemory) {
					return
				} else if err != nil {
					t.Fatal(err)
				}
			}
		})
		s := newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device(), OwnerAuthFile: auth})
		newKey(t, s)
		noLeaks(t, tpm)
	})
}

func TestABadSignatureIsNotReturned(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	_, key := newKey(t, storeOn(t, tpm))
	tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command != tpm2.TPMCCSign {
			return tpmkeytest.Pass()
		}
		return tpmkeytest.Alter(func(response []byte) { response[30] ^= 1 }) // inside r
	})
	wantFault(t, sign(key), fault.TPMUnavailable, "does not verify")
}

func TestATPMThatComesBackIsUsedAgain(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	_, key := newKey(t, storeOn(t, tpm))
	tpm.Remove()
	wantFault(t, sign(key), fault.TPMUnavailable, "no such file")
	tpm.Return(t)
	if err := sign(key); err != nil {
		t.Error(err)
	}
}

func TestAutoFallsBackToAFileAndSaysSoOnce(t *testing.T) {
	var log bytes.Buffer
	s := newStore(t, tpmkey.Options{
		Device: filepath.Join(t.TempDir(), "tpmrm0"), Log: slog.New(slog.NewTextHandler(&log, nil)),
	})
	for range 3 {
		record, key := newKey(t, s)
		if d, err := tpmkey.Describe(record); err != nil || d.Kind != tpmkey.KindFile {
			t.Errorf("%+v, %v", d, err)
		}
		if err := sign(key); err != nil {
			t.Error(err)
		}
	}
	if got := strings.Count(log.String(), "\n"); got != 1 {
		t.Errorf("%d lines in the log:\n%s", got, log.String())
	}
	for _, want := range []string{"level=WARN", "tpmrm0", "no such file", "hint="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %q:\n%s", want, log.String())
		}
	}
}

func TestAutoMovesToTheTPMWhenItCan(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	tpm.Remove()
	s := newStore(t, tpmkey.Options{Device: tpm.Device()})
	for _, want := range []tpmkey.Kind{tpmkey.KindFile, tpmkey.KindTPM} {
		record, _ := newKey(t, s)
		if d, err := tpmkey.Describe(record); err != nil || d.Kind != want {
			t.Errorf("%+v, %v; want kind %q", d, err, want)
		}
		if want == tpmkey.KindFile {
			tpm.Return(t)
		}
	}
}

func TestRequiredNeverFallsBack(t *testing.T) {
	device := filepath.Join(t.TempDir(), "tpmrm0")
	for name, s := range map[string]*tpmkey.Store{
		"required":         newStore(t, tpmkey.Options{Mode: tpmkey.Required, Device: device}),
		"auto and Require": newStore(t, tpmkey.Options{Device: device}).Require(),
	} {
		t.Run(name, func(t *testing.T) {
			record, key, err := s.New(t.Context())
			if record != nil || key != nil {
				t.Error("a key was made")
			}
			wantFault(t, err, fault.TPMUnavailable, "cannot make a key in the TPM: cannot open TPM", device)
		})
	}
}

func TestOffNeverOpensTheTPM(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	inTPM, _ := newKey(t, storeOn(t, tpm))
	tpm.Commands()

	off := newStore(t, tpmkey.Options{Mode: tpmkey.Off, Device: tpm.Device()})
	record, _ := newKey(t, off)
	if d, err := tpmkey.Describe(record); err != nil || d.Kind != tpmkey.KindFile {
		t.Errorf("%+v, %v", d, err)
	}
	key, err := off.Open(inTPM)
	if err != nil {
		t.Fatal(err)
	}
	if key.Public() == nil {
		t.Error("no public key")
	}
	wantFault(t, sign(key), fault.Config, `mode is "off"`)
	_, _, err = off.Require().New(t.Context())
	wantFault(t, err, fault.Config, `mode is "off"`)
	if sent := tpm.Commands(); len(sent) > 0 {
		t.Errorf("sent %#x", sent)
	}
}

func TestLoadingAKeyNeedsNoTPM(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	record, made := newKey(t, storeOn(t, tpm))
	s := newStore(t, tpmkey.Options{Device: filepath.Join(t.TempDir(), "tpmrm0")})
	key, err := s.Open(record)
	if err != nil {
		t.Fatal(err)
	}
	if !key.Public().(*ecdsa.PublicKey).Equal(made.Public()) {
		t.Error("another public key")
	}
	wantFault(t, sign(key), fault.TPMUnavailable)
}

func TestACancelledContextMakesNoKey(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	for _, mode := range []tpmkey.Mode{tpmkey.Auto, tpmkey.Required} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("shutting down")
		s := newStore(t, tpmkey.Options{Mode: mode, Device: tpm.Device()})
		tpm.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
			if command == tpm2.TPMCCCreate {
				cancel(cause)
			}
			return tpmkeytest.Pass()
		})
		// The command under way ends, the storage key is flushed, and then the cancellation counts.
		record, _, err := s.New(ctx)
		if err == nil && len(record) == 0 {
			t.Error("neither a key nor an error")
		}
		tpm.Intercept(nil)
		noLeaks(t, tpm)
		if _, _, err := s.New(ctx); !errors.Is(err, cause) {
			t.Errorf("mode %s: %v, want the cause of the cancellation", mode, err)
		}
	}
}

func TestASoftwareKeyUnderTheStorageKeyIsRefused(t *testing.T) {
	// An imported key is not one that the TPM made: its record is no node key's.
	tpm := tpmkeytest.Any(t)
	record, _ := newKey(t, storeOn(t, tpm))
	public, private, err := tpmkey.Blobs(record)
	if err != nil {
		t.Fatal(err)
	}
	area, err := public.Contents()
	if err != nil {
		t.Fatal(err)
	}
	imported := *area
	imported.ObjectAttributes.SensitiveDataOrigin = false
	_, err = storeOn(t, tpm).Open(tpmkey.EncodeTPM(tpm2.TPMRHOwner, tpm2.New2B(imported), private))
	if err == nil || !strings.Contains(err.Error(), "attributes") {
		t.Errorf("Open: %v", err)
	}
}

func BenchmarkSign(b *testing.B) {
	digest := sha256.Sum256([]byte("message"))
	for _, parent := range []string{"derived", "persistent"} {
		b.Run(parent, func(b *testing.B) {
			tpm := tpmkeytest.Any(b)
			if parent == "persistent" {
				tpm.Persist(b, tpm2.ECCSRKTemplate, srk)
			}
			s, err := tpmkey.New(tpmkey.Options{Mode: tpmkey.Required, Device: tpm.Device()})
			if err != nil {
				b.Fatal(err)
			}
			_, key, err := s.New(b.Context())
			if err != nil {
				b.Fatal(err)
			}
			tpm.Commands()
			signatures := 0
			for b.Loop() {
				if _, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); err != nil {
					b.Fatal(err)
				}
				signatures++
			}
			b.ReportMetric(float64(len(tpm.Commands()))/float64(signatures), "commands/op")
		})
	}
}

func TestTheCommandsOfASignature(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
	_, key := newKey(t, storeOn(t, tpm))
	tpm.Commands()
	if err := sign(key); err != nil {
		t.Fatal(err)
	}
	// Each costs a chip tens of milliseconds, so none is there without a reason.
	want := []tpm2.TPMCC{tpm2.TPMCCReadPublic, tpm2.TPMCCLoad, tpm2.TPMCCSign, tpm2.TPMCCFlushContext}
	if got := tpm.Commands(); !slices.Equal(got, want) {
		t.Errorf("commands %s, want %s", fmt.Sprintf("%#x", got), fmt.Sprintf("%#x", want))
	}
}

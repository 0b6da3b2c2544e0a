package tpmkey_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"slices"
	"strings"
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

func templateOf(t testing.TB, name string) area.EK {
	t.Helper()
	kind, known := area.EKByName(name)
	if !known {
		t.Fatalf("no template %q", name)
	}
	return kind
}

// ekKey is the public key that a TPM derives from an endorsement key's template; persist keeps the key at a handle.
func ekKey(t testing.TB, tpm *tpmkeytest.TPM, kind area.EK, persist tpm2.TPMHandle) (key crypto.PublicKey) {
	t.Helper()
	tpm.Do(t, func(direct transport.TPM) {
		made, err := tpm2.CreatePrimary{
			PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHEndorsement, Auth: tpm2.PasswordAuth(nil)},
			InPublic:      tpm2.New2B(kind.Public),
		}.Execute(direct)
		if err != nil {
			t.Fatal(err)
		}
		public, err := made.OutPublic.Contents()
		if err != nil {
			t.Fatal(err)
		}
		if key, err = kind.Key(public); err != nil {
			t.Fatal(err)
		}
		if persist != 0 {
			_, err = tpm2.EvictControl{
				Auth:             tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
				ObjectHandle:     tpm2.NamedHandle{Handle: made.ObjectHandle, Name: made.Name},
				PersistentHandle: persist,
			}.Execute(direct)
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := (tpm2.FlushContext{FlushHandle: made.ObjectHandle}).Execute(direct); err != nil {
			t.Fatal(err)
		}
	})
	return key
}

// makerCertificate is a certificate for a key by a maker that lives for one test. It is told apart by its serial number.
func makerCertificate(t testing.TB, key crypto.PublicKey, serial int64) []byte {
	t.Helper()
	maker, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issuer := &x509.Certificate{Subject: pkix.Name{CommonName: "maker"}}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(serial), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0),
		UnknownExtKeyUsage: []asn1.ObjectIdentifier{{2, 23, 133, 8, 1}},
	}, issuer, key, maker)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// provision puts a certificate for a TPM's own key of the template where a maker puts it.
func provision(t testing.TB, tpm *tpmkeytest.TPM, name string) []byte {
	t.Helper()
	kind := templateOf(t, name)
	der := makerCertificate(t, ekKey(t, tpm, kind, 0), 1)
	tpm.DefineNV(t, tpm2.TPMHandle(kind.Index), tpmkeytest.ProviderNV, der)
	return der
}

func TestTheEKIsChosenInAFixedOrder(t *testing.T) {
	stranger, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const l1, l2 = tpm2.TPMHandle(0x01c00002), tpm2.TPMHandle(0x01c0000a)
	for name, test := range map[string]struct {
		prepare      func(testing.TB, *tpmkeytest.TPM)
		option       uint32
		want         string
		certificates int
		note         string // a part of the only note
	}{
		"nothing": {prepare: func(testing.TB, *tpmkeytest.TPM) {}, want: "L-2"},
		"RSA and ECC": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			provision(t, tpm, "L-2")
			provision(t, tpm, "L-1")
		}, want: "L-1", certificates: 1},
		"ECC and the high range": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			provision(t, tpm, "H-3")
			provision(t, tpm, "L-2")
		}, want: "L-2", certificates: 1},
		"the high range": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			provision(t, tpm, "H-3")
			provision(t, tpm, "H-2")
		}, want: "H-2", certificates: 1},
		"RSA of the high range": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) { provision(t, tpm, "H-1") }, want: "H-1", certificates: 1},
		"bytes after the certificate": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			der := makerCertificate(t, ekKey(t, tpm, templateOf(t, "L-2"), 0), 1)
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, append(der, bytes.Repeat([]byte{0xff}, 600)...))
		}, want: "L-2", certificates: 1},
		"a certificate of another TPM": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, stranger.Public(), 1))
			provision(t, tpm, "H-2")
		}, want: "H-2", certificates: 1, note: "0x01c0000a is not used: it is of another key than the TPM's"},
		"only one of another TPM": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, stranger.Public(), 1))
		}, want: "L-2", note: "of another key than the TPM's"},
		"one of another kind of key": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l1, tpmkeytest.ProviderNV, makerCertificate(t, ekKey(t, tpm, templateOf(t, "L-2"), 0), 1))
		}, want: "L-2", note: "0x01c00002 is not used"},
		"rubbish": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l1, tpmkeytest.ProviderNV, []byte("rubbish"))
		}, want: "L-2", note: "0x01c00002 holds no certificate"},
		"a sequence that is no certificate": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l1, tpmkeytest.ProviderNV, []byte{0x30, 3, 2, 1, 0})
		}, want: "L-2", note: "cannot read the certificate's key"},
		"an index that was never written": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l1, tpmkeytest.ProviderNV, nil)
		}, want: "L-2", note: "0x01c00002 holds no certificate"},
		"the owner's index": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			attributes := tpmkeytest.ProviderNV
			attributes.AuthRead = false
			tpm.DefineNV(t, l2, attributes, makerCertificate(t, ekKey(t, tpm, templateOf(t, "L-2"), 0), 1))
		}, want: "L-2", certificates: 1},
		"an index under the lockout": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			attributes := tpmkeytest.ProviderNV
			attributes.NoDA = false
			tpm.DefineNV(t, l2, attributes, makerCertificate(t, ekKey(t, tpm, templateOf(t, "L-2"), 0), 1))
		}, want: "L-2", certificates: 1},
		"a maker's nonce": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			nonce := []byte("a nonce of the maker's")
			kind, fits := templateOf(t, "L-2").WithNonce(nonce)
			if !fits {
				t.Fatal("the nonce does not fit")
			}
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, ekKey(t, tpm, kind, 0), 1))
			tpm.DefineNV(t, l2+1, tpmkeytest.ProviderNV, nonce)
		}, want: "L-2", certificates: 1},
		"a maker's template": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			kind := templateOf(t, "L-2")
			kind.Public.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: []byte("x")}})
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, ekKey(t, tpm, kind, 0), 1))
			tpm.DefineNV(t, l2+2, tpmkeytest.ProviderNV, tpm2.Marshal(kind.Public))
		}, want: "L-2", certificates: 1},
		"a maker's template of another kind": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			kind := templateOf(t, "L-2")
			kind.Public.ObjectAttributes.AdminWithPolicy, kind.Public.ObjectAttributes.UserWithAuth = false, true
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, stranger.Public(), 1))
			tpm.DefineNV(t, l2+2, tpmkeytest.ProviderNV, tpm2.Marshal(kind.Public))
		}, want: "L-2", note: "of another key than the TPM's"},
		"a nonce that is too long": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			tpm.DefineNV(t, l2, tpmkeytest.ProviderNV, makerCertificate(t, stranger.Public(), 1))
			tpm.DefineNV(t, l2+1, tpmkeytest.ProviderNV, make([]byte, 33))
		}, want: "L-2", note: "of another key than the TPM's"},
		"a chosen one": {prepare: func(t testing.TB, tpm *tpmkeytest.TPM) {
			provision(t, tpm, "L-2")
			provision(t, tpm, "H-3")
		}, option: 0x01c00016, want: "H-3", certificates: 1},
		"a chosen one without a certificate": {
			prepare: func(t testing.TB, tpm *tpmkeytest.TPM) { provision(t, tpm, "L-2") },
			option:  0x01c00014, want: "H-2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			tpm := tpmkeytest.Any(t)
			test.prepare(t, tpm)
			s := newStore(t, tpmkey.Options{Device: tpm.Device(), EK: test.option})
			id := identify(t, s)
			noLeaks(t, tpm)
			if id.EK.Template != test.want || len(id.EKCertificates) != test.certificates {
				t.Errorf("the EK is %s with %d certificates, want %s with %d", id.EK.Template, len(id.EKCertificates), test.want, test.certificates)
			}
			if id.EKIndex != templateOf(t, test.want).Index {
				t.Errorf("the index is 0x%08x", id.EKIndex)
			}
			switch {
			case test.note == "" && len(id.Notes) > 0, len(id.Notes) > 1:
				t.Errorf("notes %q", id.Notes)
			case test.note != "" && (len(id.Notes) == 0 || !strings.Contains(id.Notes[0], test.note)):
				t.Errorf("notes %q, want %q", id.Notes, test.note)
			}
			if err := id.EK.Check(); err != nil {
				t.Error(err)
			}
			if test.certificates > 0 {
				if spki, err := attest.CertificateSPKI(id.EKCertificates[0]); err != nil || !bytes.Equal(spki, id.EK.SPKI) {
					t.Errorf("the first certificate is of %x, %v", spki, err)
				}
				if _, err := x509.ParseCertificate(id.EKCertificates[0]); err != nil {
					t.Error(err)
				}
			}
			prove(t, s, id)
			noLeaks(t, tpm)
		})
	}
}

// What cannot be read for now is no reason to be another machine.
func TestAnUnreadableCertificateIsAnError(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	attributes := tpmkeytest.ProviderNV
	attributes.AuthRead, attributes.OwnerRead, attributes.PolicyRead = false, false, true
	tpm.DefineNV(t, 0x01c00002, attributes, []byte("x"))
	_, err := storeOn(t, tpm).Attester().Identify(t.Context())
	wantFault(t, err, fault.TPMUnusable, "0x01c00002", "neither")
	if !strings.Contains(fault.HintOf(err), "[tpm] ek") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
	if id := identify(t, newStore(t, tpmkey.Options{Device: tpm.Device(), EK: 0x01c0000a})); id.EK.Template != "L-2" {
		t.Errorf("another one was asked for, but: %+v", id)
	}
	noLeaks(t, tpm)

	busy := tpmkeytest.Any(t)
	provision(t, busy, "L-2")
	s := storeOn(t, busy)
	for _, code := range []tpm2.TPMRC{tpm2.TPMRCNVUnavailable, tpm2.TPMRCFailure} {
		busy.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
			if command == tpm2.TPMCCNVRead {
				return tpmkeytest.Fail(code)
			}
			return tpmkeytest.Pass()
		})
		if id, err := s.Attester().Identify(t.Context()); err == nil {
			t.Errorf("the certificate cannot be read, and the EK is %s", id.EK.Template)
		}
	}
	busy.Intercept(func(command tpm2.TPMCC) tpmkeytest.Action {
		if command == tpm2.TPMCCNVRead {
			return tpmkeytest.Fail(tpm2.TPMRCNVLocked)
		}
		return tpmkeytest.Pass()
	})
	_, err = s.Attester().Identify(t.Context())
	wantFault(t, err, fault.TPMUnusable, "TPM_RC_NV_LOCKED")
	noLeaks(t, busy)
}

func TestTheOwnersAuthorisationReadsTheOwnersIndex(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	attributes := tpmkeytest.ProviderNV
	attributes.AuthRead = false
	tpm.DefineNV(t, 0x01c0000a, attributes, makerCertificate(t, ekKey(t, tpm, templateOf(t, "L-2"), 0), 1))
	tpm.SetOwnerAuth(t, []byte("owner secret"))
	_, err := storeOn(t, tpm).Attester().Identify(t.Context())
	wantFault(t, err, fault.TPMAuth, "the owner hierarchy")
	if !strings.Contains(fault.HintOf(err), "owner_auth_file") {
		t.Errorf("hint %q", fault.HintOf(err))
	}
	id := identify(t, newStore(t, tpmkey.Options{Device: tpm.Device(), OwnerAuthFile: secretFile(t, "owner secret")}))
	if len(id.EKCertificates) != 1 {
		t.Errorf("%d certificates: %q", len(id.EKCertificates), id.Notes)
	}
	noLeaks(t, tpm)
}

// A persistent key spares the chip a derivation, and counts only where it is the certificate's.
func TestAPersistentEKIsUsedWhereItIsTheCertificates(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	kind := templateOf(t, "L-1")
	key := ekKey(t, tpm, kind, 0x81010001)
	tpm.Persist(t, tpm2.ECCSRKTemplate, 0x81010000)
	der := makerCertificate(t, key, 1)
	tpm.DefineNV(t, tpm2.TPMHandle(kind.Index), tpmkeytest.ProviderNV, der)
	s := storeOn(t, tpm)
	tpm.Commands()
	id := identify(t, s)
	if commands := tpm.Commands(); count(commands, tpm2.TPMCCCreatePrimary) != 1 { // the AK's
		t.Errorf("commands %#x", commands)
	}
	prove(t, s, id)
	noLeaks(t, tpm)
	tpm.Evict(t, 0x81010001)
	again := identify(t, s)
	if again.EK.Hash() != id.EK.Hash() {
		t.Error("the derived key is another one")
	}
	if commands := tpm.Commands(); count(commands, tpm2.TPMCCCreatePrimary) < 2 {
		t.Error("nothing was derived")
	}
}

func count(commands []tpm2.TPMCC, command tpm2.TPMCC) (n int) {
	for _, c := range commands {
		if c == command {
			n++
		}
	}
	return n
}

func TestTheChainInTheTPM(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	leaf := provision(t, tpm, "L-2")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a, b, c := makerCertificate(t, key.Public(), 2), makerCertificate(t, key.Public(), 3), makerCertificate(t, key.Public(), 4)
	// One after the other, and the second goes on in the next index.
	tpm.DefineNV(t, 0x01c00100, tpmkeytest.ProviderNV, slices.Concat(a, b[:50]))
	tpm.DefineNV(t, 0x01c00101, tpmkeytest.ProviderNV, slices.Concat(b[50:], c, make([]byte, 30)))
	attributes := tpmkeytest.ProviderNV
	attributes.AuthRead, attributes.OwnerRead, attributes.PolicyRead = false, false, true
	tpm.DefineNV(t, 0x01c00200, tpmkeytest.ProviderNV, []byte("no chain"))
	id := identify(t, storeOn(t, tpm))
	if want := [][]byte{leaf, a, b, c}; !slices.EqualFunc(id.EKCertificates, want, bytes.Equal) {
		t.Errorf("%d certificates, want %d in order", len(id.EKCertificates), len(want))
	}
	if len(id.Notes) > 0 {
		t.Errorf("notes %q", id.Notes)
	}
	tpm.DefineNV(t, 0x01c00102, attributes, []byte("x"))
	if id := identify(t, storeOn(t, tpm)); len(id.EKCertificates) != 4 || len(id.Notes) != 1 || !strings.Contains(id.Notes[0], "0x01c00102") {
		t.Errorf("with an index that cannot be read: %d certificates, %q", len(id.EKCertificates), id.Notes)
	}
	noLeaks(t, tpm)
}

func TestAnUnknownEKIsRefusedByTheConfiguration(t *testing.T) {
	for _, index := range []uint32{1, 0x01c0001a, 0x01c00003, 0x81010001} {
		_, err := tpmkey.New(tpmkey.Options{EK: index})
		wantFault(t, err, fault.Config, "0x")
		if hint := fault.HintOf(err); !strings.Contains(hint, `"0x01c00002"`) || !strings.Contains(hint, `or "0x01c0001e"`) {
			t.Errorf("hint %q", hint)
		}
	}
}

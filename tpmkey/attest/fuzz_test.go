package attest_test

import (
	"bytes"
	"crypto/x509"
	"testing"

	"github.com/better-compute/bcd/tpmkey/attest"
)

// Nothing that a machine sends may stop the control plane, be refused without a reason, or pass unless it is what was signed.
func FuzzVerifyCertification(f *testing.F) {
	all := readVectors[certifyVector](f, "certify.json")
	for _, v := range all {
		f.Add([]byte(v.CertifyInfo), []byte(v.Signature), []byte(v.NodePublic), []byte(v.AKPublic))
	}
	f.Add([]byte(nil), []byte(nil), []byte(nil), []byte(nil))
	good := all[0]
	key, err := x509.ParsePKIXPublicKey(good.SPKI)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, info, signature, node, ak []byte) {
		c := attest.Certification{CertifyInfo: info, Signature: signature, NodePublic: node, AKPublic: ak}
		err := attest.VerifyCertification(c, good.Statement, key, [32]byte(good.CSRSHA256))
		if err != nil && attest.ReasonOf(err) == "" {
			t.Fatalf("refused without a reason: %v", err)
		}
		if err == nil && !(bytes.Equal(info, good.CertifyInfo) && bytes.Equal(node, good.NodePublic) && bytes.Equal(ak, good.AKPublic)) {
			t.Fatal("something else than the vector passes")
		}
		// With the statement that the AK has, the fuzzer gets past the first check.
		if statement, err := attest.AKStatement(ak); err == nil {
			_ = attest.VerifyCertification(c, statement, key, [32]byte(good.CSRSHA256))
		}
	})
}

// An EK that passes its check is one that a credential can be made for, and has one spelling.
func FuzzMakeCredential(f *testing.F) {
	for _, v := range readVectors[credentialVector](f, "credential.json") {
		f.Add([]byte(v.SPKI), v.Template, []byte(v.AKPublic))
	}
	f.Add(ed25519SPKI, "L-2", []byte(nil))
	f.Fuzz(func(t *testing.T, spki []byte, template string, ak []byte) {
		ek := attest.EK{SPKI: spki, Template: template}
		checked := ek.Check()
		blob, encrypted, err := attest.MakeCredential(ek, ak, [32]byte{})
		_, akErr := attest.AKStatement(ak)
		if (err == nil) != (checked == nil && akErr == nil) {
			t.Fatalf("the EK: %v; the AK: %v; the credential: %v", checked, akErr, err)
		}
		if err == nil && (len(blob) == 0 || len(encrypted) == 0) {
			t.Fatal("an empty credential")
		}
	})
}

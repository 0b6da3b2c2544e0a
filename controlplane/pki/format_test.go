package pki_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/internal/fault"
)

// The files of every version that was ever written are read for ever.
func TestFilesOfVersion1(t *testing.T) {
	b, err := pki.Load("testdata/v1", secret)
	if err != nil {
		t.Fatal(err)
	}
	p, err := pki.LoadPublic("testdata/v1")
	if err != nil {
		t.Fatal(err)
	}
	pins := map[string]string{
		"serving":    p.Pins().ServingCA.String(),
		"signing":    p.Pins().JoinSigning.String(),
		"encryption": p.Pins().JoinEncryption.String(),
	}
	want := map[string]string{
		"serving":    "sha256/UUSAw+1FMaRBFiqd5AjS+4fGHEZMK4c6cBfTpb3C7DA=",
		"signing":    "sha256/HSKtBXNRfdy025qKVEl7yyeBMceTgcEJw3RtYRiNpKc=",
		"encryption": "sha256/nBvXxrUArL2V0fPZeJMElCPOWU8lRtdZJwJxZUCO2xY=",
	}
	if d := cmp.Diff(want, pins); d != "" {
		t.Errorf("pins (-want +got)\n%s", d)
	}
	if b.Public().Pins() != p.Pins() || b.Public().TrustDomain() != domain || p.TrustDomain() != domain {
		t.Error("the two files are not of one bundle")
	}
	if !b.Public().CommandSigningCertificate().Equal(p.CommandSigningCertificate()) || b.Public().CommandSigningCertificate().CheckSignatureFrom(p.CommandCA()) != nil {
		t.Error("the command-signing certificate is not under the command CA")
	}
}

func TestNewerPublicFile(t *testing.T) {
	var p pki.Public
	err := json.Unmarshal([]byte(`{"version":2,"trustDomain":7}`), &p)
	if !fault.Is(err, fault.Newer) || fault.HintOf(err) == "" {
		t.Errorf("error %v (%s), want %s with a hint", err, fault.CodeOf(err), fault.Newer)
	}
}

func FuzzPublic(f *testing.F) {
	good, err := os.ReadFile("testdata/v1/pki-public.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(good))
	f.Add(strings.Replace(string(good), `"kty": "EC"`, `"kty": "OKP"`, 1))
	f.Add(`{"version":1}`)
	f.Add(`{"version":1,"trustDomain":"a","joinEncryptionJwk":{"kty":"EC","crv":"P-256","x":"AA","y":"AA"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var p pki.Public
		if json.Unmarshal([]byte(text), &p) != nil {
			return
		}
		// What is accepted is written again, and read as the same.
		out, err := json.Marshal(&p)
		if err != nil {
			t.Fatal(err)
		}
		var q pki.Public
		if err := json.Unmarshal(out, &q); err != nil || q.Pins() != p.Pins() || q.TrustDomain() != p.TrustDomain() {
			t.Errorf("accepted, and then not: %v\n%s", err, out)
		}
	})
}

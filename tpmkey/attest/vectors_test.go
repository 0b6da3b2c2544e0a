package attest_test

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"flag"
	"os"
	"testing"

	"github.com/better-compute/bcd/tpmkey/attest"
)

var update = flag.Bool("update", false, "write testdata/vectors/attest/credential.json again, with new keys")

const vectorFolder = "../../testdata/vectors/attest/"

// hexBytes is hexadecimal in JSON.
type hexBytes []byte

func (h hexBytes) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString(h)), nil }

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// credentialVector is a challenge and what opens it.
type credentialVector struct {
	Template        string   `json:"template"`
	Private         string   `json:"ek_private_pem"`
	SPKI            hexBytes `json:"ek_spki_hex"`
	Hash            hexBytes `json:"ek_hash_hex"`
	AKPublic        hexBytes `json:"ak_public_hex"`
	Statement       string   `json:"ak_statement"`
	Secret          hexBytes `json:"secret_hex"`
	CredentialBlob  hexBytes `json:"credential_blob_hex"`
	EncryptedSecret hexBytes `json:"encrypted_secret_hex"`
	CSRSHA256       hexBytes `json:"csr_sha256_hex"`
	Proof           hexBytes `json:"proof_hex"`
}

// certifyVector is a node key's certification.
type certifyVector struct {
	Name        string   `json:"name"`
	Reason      string   `json:"reason,omitempty"` // "" for one that must verify
	Statement   string   `json:"statement"`
	SPKI        hexBytes `json:"csr_key_spki_hex"`
	CSRSHA256   hexBytes `json:"csr_sha256_hex"`
	CertifyInfo hexBytes `json:"certify_info_hex"`
	Signature   hexBytes `json:"signature_hex"`
	NodePublic  hexBytes `json:"node_public_hex"`
	AKPublic    hexBytes `json:"ak_public_hex"`
}

func readVectors[T any](t testing.TB, name string) []T {
	t.Helper()
	text, err := os.ReadFile(vectorFolder + name)
	if err != nil {
		t.Fatal(err)
	}
	var all []T
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if len(all) == 0 {
		t.Fatalf("%s: no vectors", name)
	}
	return all
}

func (v credentialVector) key(t testing.TB) crypto.Signer {
	t.Helper()
	block, _ := pem.Decode([]byte(v.Private))
	if block == nil {
		t.Fatal("the private key is not PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return key.(crypto.Signer)
}

func TestCredentialVectors(t *testing.T) {
	if *update {
		writeCredentialVectors(t)
	}
	all := readVectors[credentialVector](t, "credential.json")
	if len(all) != len(kinds) {
		t.Errorf("%d vectors for %d templates", len(all), len(kinds))
	}
	for i, v := range all {
		t.Run(v.Template, func(t *testing.T) {
			k := kinds[i]
			ek := attest.EK{SPKI: v.SPKI, Template: v.Template}
			if hash := ek.Hash(); k.name != v.Template || !bytes.Equal(hash[:], v.Hash) {
				t.Errorf("the hash of %s is %x", v.Template, hash)
			}
			if err := ek.Check(); err != nil {
				t.Error(err)
			}
			if statement, err := attest.AKStatement(v.AKPublic); err != nil || statement != v.Statement {
				t.Errorf("%q, %v", statement, err)
			}
			name := sha256.Sum256(v.AKPublic)
			akName := append([]byte{0, 0x0b}, name[:]...)
			got, err := activate(v.key(t), k.hash, k.aes, akName, v.CredentialBlob, v.EncryptedSecret)
			if err != nil || !bytes.Equal(got, v.Secret) {
				t.Errorf("the challenge holds %x, %v", got, err)
			}
			if proof := attest.Proof([32]byte(v.Secret), [32]byte(v.CSRSHA256)); !bytes.Equal(proof, v.Proof) {
				t.Errorf("the proof is %x", proof)
			}
		})
	}
}

func writeCredentialVectors(t *testing.T) {
	s := newSoftware(t)
	ak, statement := s.akPublic(t), s.statement(t)
	var all []credentialVector
	for _, k := range kinds {
		key := k.newKey(t)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		ek := attest.EK{SPKI: spkiOf(t, key.Public()), Template: k.name}
		hash, secret := ek.Hash(), sha256.Sum256([]byte("the secret for "+k.name))
		blob, encrypted, err := attest.MakeCredential(ek, ak, secret)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, credentialVector{
			Template: k.name, Private: string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
			SPKI: ek.SPKI, Hash: hash[:], AKPublic: ak, Statement: statement, Secret: secret[:],
			CredentialBlob: blob, EncryptedSecret: encrypted, CSRSHA256: s.csr[:], Proof: attest.Proof(secret, s.csr),
		})
	}
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(vectorFolder+"credential.json", append(text, '\n'), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestCertifyVectors(t *testing.T) {
	good := 0
	for _, v := range readVectors[certifyVector](t, "certify.json") {
		t.Run(v.Name, func(t *testing.T) {
			key, err := x509.ParsePKIXPublicKey(v.SPKI)
			if err != nil {
				t.Fatal(err)
			}
			c := attest.Certification{CertifyInfo: v.CertifyInfo, Signature: v.Signature, NodePublic: v.NodePublic, AKPublic: v.AKPublic}
			err = attest.VerifyCertification(c, v.Statement, key, [32]byte(v.CSRSHA256))
			if got := attest.ReasonOf(err); got != v.Reason || (err == nil) != (v.Reason == "") {
				t.Errorf("%v: reason %q, want %q", err, got, v.Reason)
			}
			if v.Reason == "" {
				good++
			}
		})
	}
	if good == 0 {
		t.Error("no vector verifies")
	}
}

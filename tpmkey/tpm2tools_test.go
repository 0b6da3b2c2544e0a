package tpmkey_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/internal/area"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// tools are tpm2-tools on a test's TPM, in a folder of their own: another implementation of all of this.
type tools struct {
	t   *testing.T
	dir string
}

func newTools(t *testing.T, tpm *tpmkeytest.TPM) *tools {
	t.Helper()
	if _, err := exec.LookPath("tpm2_certify"); err != nil {
		tpmkeytest.Unavailable(t, "tpm2-tools is not installed (apt-get install tpm2-tools): %v", err)
	}
	bridge(t, tpm, "TPM2TOOLS_TCTI")
	return &tools{t, t.TempDir()}
}

// run runs a tool, and flushes what it leaves loaded.
func (o *tools) run(input []byte, name string, args ...string) string {
	o.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdin = o.dir, bytes.NewReader(input)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		o.t.Fatalf("%s %q: %v: %s", name, args, err, said.String())
	}
	if flush := exec.Command("tpm2_flushcontext", "-t"); flush.Run() != nil {
		o.t.Fatalf("%s: cannot flush", name)
	}
	return string(out)
}

func (o *tools) write(name string, content []byte) string {
	o.t.Helper()
	if err := os.WriteFile(filepath.Join(o.dir, name), content, 0o600); err != nil {
		o.t.Fatal(err)
	}
	return name
}

func (o *tools) read(name string) []byte {
	o.t.Helper()
	content, err := os.ReadFile(filepath.Join(o.dir, name))
	if err != nil {
		o.t.Fatal(err)
	}
	return content
}

// public reads a TPM2B_PUBLIC that a tool wrote, and returns the TPMT_PUBLIC.
func (o *tools) public(name string) []byte {
	o.t.Helper()
	content := o.read(name)
	if len(content) < 2 || int(binary.BigEndian.Uint16(content)) != len(content)-2 {
		o.t.Fatalf("%s is no TPM2B_PUBLIC: %x", name, content)
	}
	return content[2:]
}

const (
	nodeAttributes = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|sign"
	akAttributes   = nodeAttributes + "|restricted"
)

// makeAK has the tools derive the AK.
func (o *tools) makeAK() (public []byte) {
	x := sha256.Sum256([]byte("better-compute bcd AK v1"))
	unique := append(binary.LittleEndian.AppendUint16(nil, 32), x[:]...) // the machine's byte order
	o.write("unique", append(unique, 0, 0))
	o.run(nil, "tpm2_createprimary", "-C", "e", "-g", "sha256", "-G", "ecc256:ecdsa-sha256:null", "-a", akAttributes, "-u", "unique", "-c", "ak.ctx")
	o.run(nil, "tpm2_readpublic", "-c", "ak.ctx", "-o", "ak.pub")
	return o.public("ak.pub")
}

func TestToolsDeriveTheSameKeys(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	o := newTools(t, tpm)
	id := identify(t, storeOn(t, tpm))
	if ak := o.makeAK(); !bytes.Equal(ak, id.AKPublic) {
		t.Errorf("the AK of tpm2-tools is %x, ours %x", ak, id.AKPublic)
	}
	for algorithm, template := range map[string]string{"rsa": "L-1", "ecc": "L-2", "ecc384": "H-3", "ecc521": "H-4", "rsa3072": "H-6"} {
		t.Run(template, func(t *testing.T) {
			o := &tools{t, t.TempDir()}
			o.run(nil, "tpm2_createek", "-G", algorithm, "-c", "ek.ctx", "-u", "ek.pub")
			id := identify(t, newStore(t, tpmkey.Options{Device: tpm.Device(), EK: templateOf(t, template).Index}))
			key, err := x509.ParsePKIXPublicKey(id.EK.SPKI)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := templateOf(t, template).Filled(key)
			if err != nil {
				t.Fatal(err)
			}
			if theirs := o.public("ek.pub"); !bytes.Equal(theirs, tpm2.Marshal(ours)) {
				t.Errorf("the EK of tpm2-tools is\n%x, ours\n%x", theirs, tpm2.Marshal(ours))
			}
		})
	}
	noLeaks(t, tpm)
}

// Our verifier takes the certification that tpm2-tools made, of keys that they made.
func TestToolsCertifyForOurVerifier(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	o := newTools(t, tpm)
	statement, err := attest.AKStatement(o.makeAK())
	if err != nil {
		t.Fatal(err)
	}
	o.run(nil, "tpm2_createprimary", "-C", "o", "-G", "ecc256", "-c", "srk.ctx")
	o.run(nil, "tpm2_create", "-C", "srk.ctx", "-g", "sha256", "-G", "ecc256:ecdsa-sha256:null", "-a", nodeAttributes, "-u", "node.pub", "-r", "node.priv")
	o.run(nil, "tpm2_load", "-C", "srk.ctx", "-u", "node.pub", "-r", "node.priv", "-c", "node.ctx")
	node, err := area.Unmarshal[tpm2.TPMTPublic](o.public("node.pub"))
	if err != nil {
		t.Fatal(err)
	}
	point, err := area.NodeKeyPoint(node)
	if err != nil {
		t.Fatal(err)
	}
	o.run(nil, "tpm2_certify", "-c", "node.ctx", "-C", "ak.ctx", "-g", "sha256", "-o", "attest", "-s", "signature")
	c := attest.Certification{
		CertifyInfo: o.read("attest"), Signature: o.read("signature"), NodePublic: o.public("node.pub"), AKPublic: o.public("ak.pub"),
	}
	// tpm2_certify has qualifying data of its own: four bytes that are no request's. All before that is right.
	if err := attest.VerifyCertification(c, statement, point, [32]byte{}); attest.ReasonOf(err) != attest.ReasonQualifying {
		t.Errorf("tpm2_certify: %v", err)
	}

	// The same keys, and a command that carries a request's digest.
	o.run(nil, "tpm2_evictcontrol", "-C", "o", "-c", "ak.ctx", "0x81010020")
	o.run(nil, "tpm2_evictcontrol", "-C", "o", "-c", "node.ctx", "0x81000020")
	csr := sha256.Sum256([]byte("request"))
	password := "40000009" + "0000" + "00" + "0000"
	body := "00000148" + "81000020" + "81010020" + "00000012" + password + password + "0020" + hex.EncodeToString(csr[:]) + "0010"
	command, err := hex.DecodeString(fmt.Sprintf("8002%08x%s", 2+4+len(body)/2, body))
	if err != nil {
		t.Fatal(err)
	}
	response := []byte(o.run(command, "tpm2_send"))
	if len(response) < 16 || binary.BigEndian.Uint32(response[6:]) != 0 {
		t.Fatalf("TPM2_Certify: %x", response)
	}
	parameters := response[14:][:binary.BigEndian.Uint32(response[10:])]
	size := int(binary.BigEndian.Uint16(parameters))
	c.CertifyInfo, c.Signature = parameters[2:2+size], parameters[2+size:]
	if err := attest.VerifyCertification(c, statement, point, csr); err != nil {
		t.Error(err)
	}
}

// tpm2-tools and OpenSSL verify the certification that we made.
func TestToolsVerifyOurCertification(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	o := newTools(t, tpm)
	s := storeOn(t, tpm)
	_, key := newKey(t, s)
	csr := sha256.Sum256([]byte("request"))
	c, err := s.Attester().Certify(t.Context(), key, csr)
	if err != nil {
		t.Fatal(err)
	}
	o.write("attest", c.CertifyInfo)
	o.write("signature", c.Signature)
	o.write("ak.pub", append(binary.BigEndian.AppendUint16(nil, uint16(len(c.AKPublic))), c.AKPublic...))
	o.run(nil, "tpm2_loadexternal", "-C", "n", "-u", "ak.pub", "-c", "ak.ctx")
	o.run(nil, "tpm2_verifysignature", "-c", "ak.ctx", "-g", "sha256", "-m", "attest", "-s", "signature")
	// OpenSSL, with nothing of a TPM: a key and a signature in DER.
	sig, err := area.Unmarshal[tpm2.TPMTSignature](c.Signature)
	if err != nil {
		t.Fatal(err)
	}
	parts, err := sig.Signature.ECDSA()
	if err != nil {
		t.Fatal(err)
	}
	der, err := asn1.Marshal(struct{ R, S *big.Int }{
		new(big.Int).SetBytes(parts.SignatureR.Buffer), new(big.Int).SetBytes(parts.SignatureS.Buffer),
	})
	if err != nil {
		t.Fatal(err)
	}
	akArea, err := area.Unmarshal[tpm2.TPMTPublic](c.AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	ak, err := area.AKPoint(akArea)
	if err != nil {
		t.Fatal(err)
	}
	spki, err := x509.MarshalPKIXPublicKey(ak)
	if err != nil {
		t.Fatal(err)
	}
	o.write("signature.der", der)
	o.write("ak.pem", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki}))
	openssl(t, nil, "dgst", "-sha256", "-verify", filepath.Join(o.dir, "ak.pem"), "-signature", filepath.Join(o.dir, "signature.der"), filepath.Join(o.dir, "attest"))
	noLeaks(t, tpm)
}

// credentialFile is what tpm2_makecredential writes: a magic number, a version, and the two parts of a challenge.
const credentialFile = "badcc0de00000001"

func TestToolsMakeACredentialForUs(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	newTools(t, tpm)
	for algorithm, template := range map[string]string{"rsa": "L-1", "ecc": "L-2", "ecc384": "H-3"} {
		t.Run(template, func(t *testing.T) {
			o := &tools{t, t.TempDir()}
			s := newStore(t, tpmkey.Options{Device: tpm.Device(), EK: templateOf(t, template).Index})
			id := identify(t, s)
			o.run(nil, "tpm2_createek", "-G", algorithm, "-c", "ek.ctx", "-u", "ek.pub")
			secret := randomBytes(32)
			o.write("secret", secret)
			o.run(nil, "tpm2_makecredential", "-T", "none", "-u", "ek.pub", "-s", "secret", "-n", hex.EncodeToString(area.Name(id.AKPublic)), "-o", "credential")
			content := o.read("credential")
			if got := hex.EncodeToString(content[:8]); got != credentialFile {
				t.Fatalf("the file starts with %s", got)
			}
			blob, rest := cutSized(t, content[8:])
			encrypted, rest := cutSized(t, rest)
			opened, err := s.Attester().ActivateCredential(t.Context(), blob, encrypted)
			if err != nil || !bytes.Equal(opened, secret) || len(rest) > 0 {
				t.Errorf("opened: %x, %v, %d bytes more", opened, err, len(rest))
			}
			noLeaks(t, tpm)
		})
	}
}

func cutSized(t *testing.T, data []byte) (value, rest []byte) {
	t.Helper()
	if len(data) < 2 || len(data)-2 < int(binary.BigEndian.Uint16(data)) {
		t.Fatalf("no TPM2B: %x", data)
	}
	n := 2 + int(binary.BigEndian.Uint16(data))
	return data[2:n], data[n:]
}

func TestToolsOpenOurCredential(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	o := newTools(t, tpm)
	id := identify(t, storeOn(t, tpm))
	secret := [32]byte(randomBytes(32))
	blob, encrypted, err := attest.MakeCredential(id.EK, id.AKPublic, secret)
	if err != nil {
		t.Fatal(err)
	}
	content, err := hex.DecodeString(credentialFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{blob, encrypted} {
		content = append(binary.BigEndian.AppendUint16(content, uint16(len(part))), part...)
	}
	o.write("credential", content)
	o.makeAK()
	o.run(nil, "tpm2_createek", "-G", "ecc", "-c", "ek.ctx")
	o.run(nil, "tpm2_startauthsession", "--policy-session", "-S", "session")
	o.run(nil, "tpm2_policysecret", "-S", "session", "-c", "e")
	o.run(nil, "tpm2_activatecredential", "-c", "ak.ctx", "-C", "ek.ctx", "-i", "credential", "-o", "opened", "-P", "session:session")
	if opened := o.read("opened"); !bytes.Equal(opened, secret[:]) {
		t.Errorf("tpm2_activatecredential: %x, want %x", opened, secret)
	}
}

// tpm2-tools load our node's key from its record, and sign with it.
func TestToolsLoadOurKey(t *testing.T) {
	tpm := tpmkeytest.Swtpm(t)
	tpm.Persist(t, tpm2.ECCSRKTemplate, srk)
	o := newTools(t, tpm)
	record, key := newKey(t, storeOn(t, tpm))
	public, private, err := tpmkey.Blobs(record)
	if err != nil {
		t.Fatal(err)
	}
	o.write("node.pub", tpm2.Marshal(public))
	o.write("node.priv", tpm2.Marshal(private))
	o.write("message", []byte("message"))
	o.run(nil, "tpm2_load", "-C", "0x81000001", "-u", "node.pub", "-r", "node.priv", "-c", "node.ctx")
	o.run(nil, "tpm2_sign", "-c", "node.ctx", "-g", "sha256", "-f", "plain", "-o", "signature", "message")
	digest := sha256.Sum256([]byte("message"))
	if !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), digest[:], o.read("signature")) {
		t.Error("the signature does not verify")
	}
}

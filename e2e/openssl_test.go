package e2e_test

import (
	"encoding/json"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// needOpenSSL skips without openssl; where everything must be there, it fails.
func needOpenSSL(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("openssl"); err != nil {
		if os.Getenv("BCD_REQUIRE_OPENSSL") == "1" {
			t.Fatalf("BCD_REQUIRE_OPENSSL=1, but openssl is not installed: %v", err)
		}
		t.Skipf("openssl is not installed: %v", err)
	}
}

// openssl runs openssl and returns what it prints.
func openssl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "openssl", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("openssl %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// contains checks a text that openssl printed.
func contains(t *testing.T, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in:\n%s", want, text)
		}
	}
}

// der writes DER to a file as PEM.
func (m *machine) der(name, kind string, certificates ...[]byte) (path string) {
	m.t.Helper()
	var b strings.Builder
	for _, c := range certificates {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: c}))
	}
	m.write(name, b.String())
	return filepath.Join(m.dir, name)
}

// What bcd and the control plane make is what another implementation reads: the certificate request and its key as they
// wait for an answer, then the key, the certificate and its chain.
// Req: JF-008 JF-012
func TestOpenSSLReadsWhatIsMade(t *testing.T) {
	t.Parallel()
	needOpenSSL(t)
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	m := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	token := p.token("token")

	m.write("unknown", "bcjt_jt_01k5w0000000000000000000ab."+strings.Repeat("A", 43)+"\n")
	m.run(77, "join", "--token-file", filepath.Join(m.dir, "unknown"))
	var pending struct {
		CSR []byte `json:"csr"`
	}
	if err := json.Unmarshal([]byte(m.state("join-pending.json")), &pending); err != nil {
		t.Fatal(err)
	}
	csr := m.der("csr.pem", "CERTIFICATE REQUEST", pending.CSR)
	contains(t, openssl(t, "req", "-in", csr, "-verify", "-noout", "-text"), "verify OK", "ASN1 OID: prime256v1", "Signature Algorithm: ecdsa-with-SHA256")
	if got, want := openssl(t, "req", "-in", csr, "-noout", "-pubkey"), openssl(t, "pkey", "-in", filepath.Join(m.data(), "join.key"), "-pubout"); got != want {
		t.Errorf("the request is for\n%sand the key is\n%s", got, want)
	}

	node := m.join(token)
	key := filepath.Join(m.data(), "node.key")
	contains(t, openssl(t, "pkey", "-in", key, "-check", "-noout", "-text"), "Key is valid", "ASN1 OID: prime256v1")
	var id struct {
		Chain  [][]byte `json:"chain"`
		NodeCA [][]byte `json:"nodeCa"`
	}
	if err := json.Unmarshal([]byte(m.state("identity.json")), &id); err != nil {
		t.Fatal(err)
	}
	leaf, chain := m.der("leaf.pem", "CERTIFICATE", id.Chain[0]), m.der("chain.pem", "CERTIFICATE", id.Chain...)
	ca := m.der("ca.pem", "CERTIFICATE", id.NodeCA...)
	contains(t, openssl(t, "verify", "-x509_strict", "-purpose", "sslclient", "-CAfile", ca, "-untrusted", chain, leaf), "leaf.pem: OK")
	contains(t, openssl(t, "x509", "-in", leaf, "-noout", "-text"),
		"URI:spiffe://compute.example.com/site/", "/node/"+node, "OU = bc-role:node", "TLS Web Client Authentication", "Digital Signature", "CA:FALSE")
	if got, want := openssl(t, "x509", "-in", leaf, "-noout", "-pubkey"), openssl(t, "pkey", "-in", key, "-pubout"); got != want {
		t.Errorf("the certificate is for\n%sand the key is\n%s", got, want)
	}
	// The CA is the control plane's, by a way of its own.
	if public := p.read("pki-public.json"); !strings.Contains(public, base64Of(t, id.NodeCA[0])) {
		t.Error("the node CA is not the one of pki-public.json")
	}
}

func base64Of(t *testing.T, der []byte) string {
	t.Helper()
	b, err := json.Marshal(der)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Trim(string(b), `"`)
}

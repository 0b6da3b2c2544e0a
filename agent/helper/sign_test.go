package helper_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/agent/helper"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// All that a node does with its key goes through the helper: a request, a proof, a handshake, the AK's word.
// Req: TP-002
func TestWhatANodeSigns(t *testing.T) {
	w := newWorld(t, tpmkeytest.Any(t))
	record, key, err := w.keys().New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if block, _ := pem.Decode(record); block == nil || block.Type != "TSS2 PRIVATE KEY" || tpmkey.KindOf(key) != tpmkey.KindTPM {
		t.Fatalf("the key's record is %.60q", record)
	}
	// As package identity does: the request first, the file then.
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA256}, key)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := x509.ParseCertificateRequest(csr); err != nil || r.CheckSignature() != nil {
		t.Fatalf("the request does not verify: %v", err)
	}
	w.write(identity.NextKeyFile, record)

	csrSHA256 := sha256.Sum256(csr)
	attester := w.keys().Attester()
	c, err := attester.Certify(t.Context(), key, csrSHA256)
	if err != nil {
		t.Fatal(err)
	}
	ak, err := attester.AKPublic(t.Context())
	if err != nil || !bytes.Equal(ak, c.AKPublic) {
		t.Fatalf("the attestation key is another one: %v", err)
	}
	statement, err := attest.AKStatement(ak)
	if err != nil {
		t.Fatal(err)
	}
	if err := attest.VerifyCertification(c, statement, key.Public(), csrSHA256); err != nil {
		t.Errorf("the certification: %v", err)
	}

	for _, name := range []string{identity.NextKeyFile, identity.KeyFile} {
		if name == identity.KeyFile {
			if err := os.Rename(filepath.Join(w.data(), identity.NextKeyFile), filepath.Join(w.data(), name)); err != nil {
				t.Fatal(err)
			}
		}
		opened, err := w.keys().Open(record)
		if err != nil {
			t.Fatal(err)
		}
		pop := signing.PoP(csrSHA256, time.UnixMilli(1), "node_1")
		for p, payload := range map[signing.Purpose][]byte{
			signing.JoinRequest: bytes.Repeat([]byte{1}, 60<<10), signing.RenewPoP: pop, signing.X509PoP: pop,
			signing.CommandResult: []byte("result"), signing.SiteVouch: []byte("vouch"),
		} {
			sig, err := signing.Sign(opened, p, payload)
			if err != nil {
				t.Errorf("%s with %s: %v", p, name, err)
				continue
			}
			if err := signing.Verify(key.Public(), p, payload, sig); err != nil {
				t.Errorf("%s with %s: %v", p, name, err)
			}
		}
		if err := handshake(t, opened); err != nil {
			t.Errorf("the handshake with %s: %v", name, err)
		}
	}
}

// handshake does a TLS 1.3 handshake with a client certificate for the key.
func handshake(t *testing.T, key crypto.Signer) error {
	t.Helper()
	ca, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	leaf, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), ca)
	if err != nil {
		t.Fatal(err)
	}
	own, err := x509.CreateCertificate(rand.Reader, template, template, ca.Public(), ca)
	if err != nil {
		t.Fatal(err)
	}
	here, there := net.Pipe()
	server := tls.Server(there, &tls.Config{
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert, Certificates: []tls.Certificate{{Certificate: [][]byte{own}, PrivateKey: ca}},
	})
	served := make(chan error, 1)
	go func() { served <- server.HandshakeContext(t.Context()) }()
	client := tls.Client(here, &tls.Config{
		MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, //nolint:gosec // the client is who is tested
		Certificates: []tls.Certificate{{Certificate: [][]byte{leaf}, PrivateKey: key}},
	})
	err = client.HandshakeContext(t.Context())
	if err != nil {
		_ = here.Close()
	}
	return errors.Join(err, <-served)
}

// body is a request's, as a peer writes it who knows the protocol.
type body map[string]any

// Whoever has the node's user can have the helper sign what a node signs, and nothing else.
// Req: HL-002
func TestWhatTheHelperDoesNotSign(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	w := newWorld(t, tpm)
	current, next := w.newKey(identity.KeyFile), w.newKey(identity.NextKeyFile)
	id := func(key crypto.Signer) string {
		id, err := helper.IDOf(key.Public())
		if err != nil {
			t.Fatal(err)
		}
		return string(id)
	}
	software, err := tpmkey.New(tpmkey.Options{Mode: tpmkey.Off})
	if err != nil {
		t.Fatal(err)
	}
	record, file, err := software.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.write(identity.JoinKeyFile, record)

	transcript := bytes.Repeat([]byte{7}, 32)
	tls13 := append(bytes.Clone(helper.TLS13Head), transcript...)
	pop := signing.PoP([32]byte{1}, time.UnixMilli(1), "node_1")
	csr := func(key crypto.Signer, template *x509.CertificateRequest) []byte {
		return requestInfo(t, key, template)
	}
	digest := sha256.Sum256(tls13)
	command := append([]byte{0x80, 0x01, 0, 0, 0, 12, 0, 0, 1, 0x44, 0, 0}, transcript...)
	bad := map[string]struct {
		method, path string
		body         any
	}{
		"a digest":                     {"", "/v1/sign-digest", body{"key": id(current), "digest": digest[:]}},
		"a TPM command":                {"", "/v1/tpm", body{"command": command}},
		"a challenge":                  {"", "/v1/activate-credential", body{"credential_blob": transcript}},
		"a GET":                        {"GET", "/v1/sign-tls13", body{"key": id(current), "message": tls13}},
		"another version":              {"", "/v2/sign-tls13", body{"key": id(current), "message": tls13}},
		"no body":                      {"", "/v1/sign-tls13", ""},
		"null":                         {"", "/v1/sign-tls13", "null"},
		"no JSON":                      {"", "/v1/sign-tls13", "\x00\xff{{{"},
		"an unknown member":            {"", "/v1/sign-tls13", body{"key": id(current), "message": tls13, "raw": true}},
		"two values":                   {"", "/v1/sign-tls13", `{}{}`},
		"a huge message":               {"", "/v1/sign-tls13", body{"key": id(current), "message": bytes.Repeat(tls13, 2000)}},
		"a digest as a message":        {"", "/v1/sign-tls13", body{"key": id(current), "message": digest[:]}},
		"31 bytes of transcript":       {"", "/v1/sign-tls13", body{"key": id(current), "message": tls13[:len(tls13)-1]}},
		"33 bytes of transcript":       {"", "/v1/sign-tls13", body{"key": id(current), "message": append(bytes.Clone(tls13), 1)}},
		"63 spaces":                    {"", "/v1/sign-tls13", body{"key": id(current), "message": tls13[1:]}},
		"65 spaces":                    {"", "/v1/sign-tls13", body{"key": id(current), "message": append([]byte(" "), tls13...)}},
		"a server's CertificateVerify": {"", "/v1/sign-tls13", body{"key": id(current), "message": bytes.Replace(tls13, []byte("client"), []byte("server"), 1)}},
		"TLS with a payload":           {"", "/v1/sign-tls13", body{"key": id(current), "message": tls13, "payload": tls13}},
		"no key":                       {"", "/v1/sign-tls13", body{"message": tls13}},
		"an unknown key":               {"", "/v1/sign-tls13", body{"key": strings.Repeat("0", 64), "message": tls13}},
		"a path for a key":             {"", "/v1/sign-tls13", body{"key": "../../etc/shadow", "message": tls13}},
		"a key in a file":              {"", "/v1/sign-tls13", body{"key": id(file), "message": tls13}},
		"a purpose's input as TLS":     {"", "/v1/sign-tls13", body{"key": id(current), "message": signing.RenewPoP.PAE(pop)}},
		"TLS as a request":             {"", "/v1/sign-csr", body{"key": id(next), "message": tls13}},
		"a purpose as a request":       {"", "/v1/sign-csr", body{"key": id(next), "message": signing.Command.PAE(pop)}},
		"a join's answer":              {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "join-response", "payload": pop}},
		"a renewal's answer":           {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "renew-response", "payload": pop}},
		"a command":                    {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "command", "payload": pop}},
		"a result's ack":               {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "result-ack", "payload": pop}},
		"a release":                    {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "release-manifest", "payload": pop}},
		"a purpose of its own":         {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "whatever", "payload": pop}},
		"no purpose":                   {"", "/v1/sign-purpose", body{"key": id(current), "payload": pop}},
		"an empty payload":             {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "command-result"}},
		"a purpose with a message":     {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "renew-pop", "payload": pop, "message": tls13}},
		"a proof without a node":       {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "renew-pop", "payload": pop[:40]}},
		"a proof for no node's id":     {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "x509pop", "payload": append(bytes.Clone(pop), "\n/../"...)}},
		"a proof for a long id":        {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "x509pop", "payload": append(bytes.Clone(pop), bytes.Repeat([]byte("n"), 255)...)}},
		"a large payload":              {"", "/v1/sign-purpose", body{"key": id(current), "purpose": "command-result", "payload": make([]byte, helper.MaxPayload+1)}},
		"the current key's request":    {"", "/v1/sign-csr", body{"key": id(current), "message": csr(current, &x509.CertificateRequest{})}},
		"another key's request":        {"", "/v1/sign-csr", body{"key": id(next), "message": csr(file, &x509.CertificateRequest{})}},
		"a request with a subject":     {"", "/v1/sign-csr", body{"key": id(next), "message": csr(next, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "root"}})}},
		"a request with names":         {"", "/v1/sign-csr", body{"key": id(next), "message": csr(next, &x509.CertificateRequest{DNSNames: []string{"gw.example.com"}})}},
		"a certificate":                {"", "/v1/sign-csr", body{"key": id(next), "message": []byte{0x30, 3, 2, 1, 1}}},
		"to vouch for another key":     {"", "/v1/certify-next-key", body{"key": id(file), "csr_sha256": transcript}},
		"to vouch for the current key": {"", "/v1/certify-next-key", body{"key": id(current), "csr_sha256": transcript}},
		"to vouch for a long hash":     {"", "/v1/certify-next-key", body{"key": id(next), "csr_sha256": tls13}},
		"a key with a template":        {"", "/v1/new-next-key", body{"template": transcript}},
	}
	// The two above that made keys are on the disk: a helper that starts now has made none.
	w.stop()
	w.start()
	_ = tpm.Commands()
	for name, c := range bad {
		if c.method == "" {
			c.method = http.MethodPost
		}
		status, answer := w.ask(c.method, c.path, c.body)
		if status == 0 && name == "a huge message" {
			continue // the helper does not read to its end, and the peer may see just that
		}
		if status != http.StatusBadRequest || strings.Contains(answer, "signature\"") {
			t.Errorf("%s: status %d: %.200s", name, status, answer)
		}
	}
	for _, command := range tpm.Commands() {
		if command == tpm2.TPMCCSign || command == tpm2.TPMCCCertify || command == tpm2.TPMCCCreate {
			t.Errorf("the TPM was asked for %v", command)
		}
	}
	// The same requests, as they should be.
	for path, b := range map[string]body{
		"/v1/sign-tls13":       {"key": id(current), "message": tls13},
		"/v1/sign-purpose":     {"key": id(current), "purpose": "renew-pop", "payload": pop},
		"/v1/sign-csr":         {"key": id(next), "message": csr(next, &x509.CertificateRequest{})},
		"/v1/certify-next-key": {"key": id(next), "csr_sha256": transcript},
		"/v1/attestation-key":  {},
	} {
		if status, answer := w.ask(http.MethodPost, path, b); status != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, status, answer)
		}
	}
	if handles := tpm.Handles(t); len(handles) > 0 {
		t.Errorf("the helper left %v loaded", handles)
	}

	// And the node's side knows what would be refused.
	if _, err := current.Sign(rand.Reader, digest[:], crypto.SHA256); err == nil {
		t.Error("the node's key signs a digest")
	}
	for name, try := range map[string]func() ([]byte, error){
		"another hash": func() ([]byte, error) { return current.(*helper.Key).SignMessage(nil, tls13, crypto.SHA512) },
		"no hash":      func() ([]byte, error) { return current.(*helper.Key).SignMessage(nil, tls13, nil) },
		"any message":  func() ([]byte, error) { return current.(*helper.Key).SignMessage(nil, []byte("x"), crypto.SHA256) },
	} {
		if sig, err := try(); err == nil {
			t.Errorf("%s: signed %x", name, sig)
		}
	}
	attester := w.keys().Attester()
	if _, err := attester.Identify(t.Context()); !fault.Is(err, fault.NotRoot) {
		t.Errorf("identify: %v", err)
	}
	if _, err := attester.ActivateCredential(t.Context(), transcript, transcript); !fault.Is(err, fault.NotRoot) {
		t.Errorf("activate: %v", err)
	}
	if _, err := attester.Certify(t.Context(), file, [32]byte{}); !fault.Is(err, fault.TPMUnusable) {
		t.Errorf("certify a key in a file: %v", err)
	}
}

// requestInfo is what is signed of a certificate request for a key.
func requestInfo(t *testing.T, key crypto.Signer, template *x509.CertificateRequest) []byte {
	t.Helper()
	own, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, own)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		t.Fatal(err)
	}
	// A request for a key that does not sign it: keys of P-256 are equally long.
	theirs, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Replace(r.RawTBSCertificateRequest, r.RawSubjectPublicKeyInfo, theirs, 1)
}

// Req: HL-002
func TestTLS13Shape(t *testing.T) {
	for length, want := range map[int]bool{0: false, 20: false, 31: false, 32: true, 33: false, 47: false, 48: true, 49: false, 64: false} {
		if got := helper.IsTLS13(append(bytes.Clone(helper.TLS13Head), make([]byte, length)...)); got != want {
			t.Errorf("a transcript of %d bytes: %v", length, got)
		}
	}
}

// A helper that starts again knows the keys on the disk. One that stopped between the making of a key and its way there
// costs that key, and the next try makes another.
func TestRestart(t *testing.T) {
	w := newWorld(t, tpmkeytest.Any(t))
	key := w.newKey(identity.KeyFile)
	_, lost, err := w.keys().New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.stop()
	sign := func(key crypto.Signer) error {
		_, err := signing.Sign(key, signing.CommandResult, []byte("result"))
		return err
	}
	err = sign(key)
	if !fault.Is(err, fault.TPMUnavailable) || fault.HintOf(err) != "start it: systemctl start bcd-helper" || !strings.Contains(err.Error(), "cannot reach the helper") {
		t.Errorf("without a helper: %v (%s)", err, fault.HintOf(err))
	}
	if _, err := w.keys().Attester().AKPublic(t.Context()); !fault.Is(err, fault.TPMUnavailable) {
		t.Errorf("without a helper: %v", err)
	}
	if _, _, err := w.keys().New(t.Context()); !fault.Is(err, fault.TPMUnavailable) {
		t.Errorf("without a helper: %v", err)
	}
	if _, err := w.client.Firmware(t.Context()); !fault.Is(err, fault.Unreachable) {
		t.Errorf("without a helper: %v", err)
	}
	w.start()
	if err := sign(key); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if err := sign(lost); !fault.Is(err, fault.NotFound) {
		t.Errorf("a key that was never stored: %v", err)
	}
	if err := sign(w.newKey(identity.NextKeyFile)); err != nil {
		t.Errorf("the next key: %v", err)
	}
}

// A TPM that fails is said with the code and the hint of the TPM's own.
func TestTPMFails(t *testing.T) {
	w := newWorld(t, nil)
	_, _, err := w.keys().New(t.Context())
	if !fault.Is(err, fault.TPMUnavailable) || !strings.Contains(fault.HintOf(err), "firmware's setup") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if !strings.Contains(w.log.String(), `msg="fail call of node" call=/v1/new-next-key`) {
		t.Errorf("the helper's log says:\n%s", w.log)
	}
	auto, err := w.client.Keys(tpmkey.Auto, w.slog())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, key, err := auto.New(t.Context()); err != nil || tpmkey.KindOf(key) != tpmkey.KindFile {
			t.Errorf("in mode auto: %v, %v", key, err)
		}
	}
	if n := strings.Count(w.log.String(), "make keys in files"); n != 1 {
		t.Errorf("the fallback was said %d times", n)
	}
	if _, _, err := auto.Require().New(t.Context()); !fault.Is(err, fault.TPMUnavailable) {
		t.Errorf("what follows a key in the TPM: %v", err)
	}
	off, err := w.client.Keys(tpmkey.Off, w.slog())
	if err != nil {
		t.Fatal(err)
	}
	record, key, err := off.New(t.Context())
	if err != nil || tpmkey.KindOf(key) != tpmkey.KindFile {
		t.Errorf("in mode off: %v, %v", key, err)
	}
	if key, err := off.Open(record); err != nil || tpmkey.KindOf(key) != tpmkey.KindFile {
		t.Errorf("in mode off: %v, %v", key, err)
	}
	if _, _, err := off.Require().New(t.Context()); !fault.Is(err, fault.Config) {
		t.Errorf("in mode off, what follows a key in the TPM: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := auto.New(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("a node that ends: %v", err)
	}
}

// Req: HL-002
func TestRootOnlyClaimsAndConfiguration(t *testing.T) {
	w := newWorld(t, nil)
	report, err := w.client.Firmware(t.Context())
	if err != nil || report.Claims.ProductUUID == "" || report.Claims.ProductSerial == "" || len(report.Claims.MACs) > 0 {
		t.Errorf("the firmware's claims are %+v, %v", report.Claims, err)
	}
	document, err := w.client.Config(t.Context())
	if err != nil || string(document) != "site = \"site_1\"\n" {
		t.Errorf("the configuration is %q, %v", document, err)
	}
}

package controlplanetest_test

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// tpmMachine joins by its TPM with nothing but the wire.
type tpmMachine struct {
	*machine

	store *tpmkey.Store
	id    tpmkey.Identity
	key   crypto.Signer
}

func newTPMMachine(t *testing.T, cp *controlplanetest.ControlPlane, chip *tpmkeytest.TPM) *tpmMachine {
	t.Helper()
	m := &tpmMachine{machine: newMachine(t, cp)}
	id := make([]byte, 6)
	_, _ = rand.Read(id)
	m.claims = hwclaims.Claims{ProductUUID: fmt.Sprintf("4c4c4544-0001-1001-8001-%x", id), ProductSerial: fmt.Sprintf("SN%X", id)}
	var err error
	if m.store, err = tpmkey.New(tpmkey.Options{Mode: tpmkey.Required, Device: chip.Device()}); err != nil {
		t.Fatal(err)
	}
	if m.id, err = m.store.Attester().Identify(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.newKey()
	return m
}

func (m *tpmMachine) ek() string { h := m.id.EK.Hash(); return hex.EncodeToString(h[:]) }

// newKey makes a key in the TPM, and a CSR of it that asks for names that nobody gets.
func (m *tpmMachine) newKey() {
	m.t.Helper()
	var err error
	if _, m.key, err = m.store.New(m.t.Context()); err != nil {
		m.t.Fatal(err)
	}
	m.csr = m.request(m.key)
}

func (m *tpmMachine) request(key crypto.Signer) []byte {
	m.t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		URIs: []*url.URL{{Scheme: "urn", Opaque: "bc:tpm-ak:sha256:00"}},
	}, key)
	if err != nil {
		m.t.Fatal(err)
	}
	return csr
}

func (m *tpmMachine) certify(key crypto.Signer, csr []byte) *daemonv1.KeyAttestation {
	m.t.Helper()
	c, err := m.store.Attester().Certify(m.t.Context(), key, sha256.Sum256(csr))
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.KeyAttestation{CertifyInfo: c.CertifyInfo, Signature: c.Signature, NodePublic: c.NodePublic, AkPublic: c.AKPublic}
}

// evidence asks for a challenge and answers it.
func (m *tpmMachine) evidence(gateway string) (*daemonv1.TpmEvidence, error) {
	m.t.Helper()
	digest := sha256.Sum256(m.csr)
	c, err := m.dial(gateway, false).Challenge(m.ctx(), &daemonv1.ChallengeRequest{
		EkSpki: m.id.EK.SPKI, EkTemplate: m.id.EK.Template, EkChain: m.id.EKCertificates, AkPublic: m.id.AKPublic, CsrSha256: digest[:],
	})
	if err != nil {
		return nil, err
	}
	secret, err := m.store.Attester().ActivateCredential(m.t.Context(), c.GetCredentialBlob(), c.GetEncryptedSecret())
	if err != nil {
		m.t.Fatal(err)
	}
	return &daemonv1.TpmEvidence{Proof: attest.Proof([32]byte(secret), digest), State: c.GetState(), KeyAttestation: m.certify(m.key, m.csr)}, nil
}

// tryJoin joins, and keeps what it was admitted to. A deferral's request id is returned.
func (m *tpmMachine) tryJoin(gateway string) (requestID string, err error) {
	m.t.Helper()
	evidence, err := m.evidence(gateway)
	if err != nil {
		return "", err
	}
	body, err := proto.Marshal(&daemonv1.JoinRequestBody{
		Csr: m.csr, Role: "node", Site: m.cp.Site, Attestor: "tpm", Protocol: 1, AgentVersion: "0.1.0",
		Claims:   &daemonv1.HardwareClaims{ProductUuid: m.claims.ProductUUID, ProductSerial: m.claims.ProductSerial},
		Evidence: &daemonv1.Evidence{Kind: &daemonv1.Evidence_Tpm{Tpm: evidence}},
	})
	if err != nil {
		m.t.Fatal(err)
	}
	sig, err := signing.Sign(m.key, signing.JoinRequest, body)
	if err != nil {
		m.t.Fatal(err)
	}
	resp, err := m.dial(gateway, false).Join(m.ctx(), &daemonv1.JoinRequest{Body: body, Sig: sig})
	if err != nil {
		return "", err
	}
	m.verify(signing.JoinResponse, resp.GetBody(), resp.GetSig())
	var answer daemonv1.JoinResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &answer); err != nil {
		m.t.Fatal(err)
	}
	m.admission = answer.GetAdmission()
	return answer.GetDeferral().GetRequestId(), nil
}

func (m *tpmMachine) mustJoinByTPM() {
	m.t.Helper()
	if _, err := m.tryJoin(m.cp.GatewayURL); err != nil || m.admission == nil {
		m.t.Fatalf("not admitted: %v, %v", err, m.cp.Refusals(m.t))
	}
}

func (m *tpmMachine) refused(reason string) {
	m.t.Helper()
	_, err := m.tryJoin(m.cp.GatewayURL)
	all := m.cp.Refusals(m.t)
	if codeOf(err) != fault.AccessDenied || len(all) == 0 || all[len(all)-1] != reason {
		m.t.Fatalf("answer %v, refusals %v, want %s", err, all, reason)
	}
}

func withTPM(change func(*controlplane.TPMConfig)) controlplanetest.Options {
	c := &controlplane.TPMConfig{}
	if change != nil {
		change(c)
	}
	return controlplanetest.Options{AnswerAtOnce: true, Attestors: controlplane.AttestorsConfig{TPM: c}}
}

// operate calls a method of the HTTP API as the operator.
func operate(t *testing.T, cp *controlplanetest.ControlPlane, method string, in, out any) {
	t.Helper()
	if err := operator(t, cp).Call(t.Context(), method, in, out); err != nil {
		t.Fatal(err)
	}
}

// The whole way of a machine with a TPM that an operator lists, through the gateway and the HTTP API.
//
// Req: JF-015 TP-004 TP-006 RN-019
func TestATPMThroughTheGateway(t *testing.T) {
	cp := controlplanetest.Start(t, withTPM(nil))
	chip := tpmkeytest.Any(t)
	m := newTPMMachine(t, cp, chip)
	m.refused("tpm:ek")
	var listed httpapi.EKAllow
	operate(t, cp, "ekAllow.add", httpapi.AddEKAllow{TenantID: cp.Tenant, PoolID: cp.Pool, EKSHA256: new(m.ek()), IdempotencyKey: "rack-b7"}, &listed)
	m.mustJoinByTPM()
	statement, err := attest.AKStatement(m.id.AKPublic)
	if err != nil {
		t.Fatal(err)
	}
	leaf := m.leaf()
	if len(leaf.URIs) != 2 || leaf.URIs[1].String() != statement {
		t.Errorf("URIs %v", leaf.URIs)
	}
	id := m.admission.GetNodeId()
	var shown httpapi.Node
	node := httpapi.NodeRef{TenantID: cp.Tenant, NodeID: id}
	operate(t, cp, "nodes.get", node, &shown)
	if shown.EKSHA256 != m.ek() {
		t.Errorf("node %+v", shown)
	}

	// Over mutual TLS by the TPM's key: a renewal with the next key, certified. One without the attestation is refused.
	next := *m
	next.newKey()
	renew := func(attested *daemonv1.KeyAttestation) error {
		at := cp.Clock.Now()
		pop, err := signing.Sign(m.key, signing.RenewPoP, signing.PoP(sha256.Sum256(next.csr), at, id))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := m.dialWith(cp.GatewayURL, m.key).Renew(m.ctx(), &daemonv1.RenewRequest{
			Csr: next.csr, Chain: m.admission.GetChain(), ClientTimeUnixMs: at.UnixMilli(), PopSig: pop, KeyAttestation: attested,
		})
		if err != nil {
			return err
		}
		m.verify(signing.RenewResponse, resp.GetBody(), resp.GetSig())
		var body daemonv1.RenewResponseBody
		if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
			t.Fatal(err)
		}
		renewed := *m.machine
		renewed.admission = body.GetAdmission()
		if l := renewed.leaf(); len(l.URIs) != 2 || l.URIs[1].String() != statement {
			t.Errorf("URIs %v", l.URIs)
		}
		return nil
	}
	if err := renew(nil); codeOf(err) != fault.AccessDenied {
		t.Errorf("without attestation: %v", err)
	}
	if all := cp.Refusals(t); all[len(all)-1] != "key-attestation-missing" {
		t.Errorf("refusals %v", all)
	}
	cp.Clock.Advance(time.Second)
	if err := renew(m.certify(next.key, next.csr)); err != nil {
		t.Error(err)
	}

	// Cleared, it is the same node; off the list too, for its EK is bound. Deleted, it is a stranger again.
	chip.Clear(t)
	operate(t, cp, "ekAllow.remove", httpapi.RemoveEKAllow{TenantID: cp.Tenant, PoolID: cp.Pool, EntryID: listed.ID}, &listed)
	m.newKey()
	m.mustJoinByTPM()
	if m.admission.GetNodeId() != id || m.admission.GetIdentityGeneration() != 2 {
		t.Errorf("admission %v", m.admission)
	}
	var deleted httpapi.Node
	operate(t, cp, "nodes.delete", node, &deleted)
	if deleted.EKSHA256 != "" || deleted.HardwareKey != nil {
		t.Error("the deleted node holds the EK")
	}
	m.newKey()
	m.refused("tpm:ek")
}

// Req: AT-006 AT-008 AP-002 AP-003
func TestATPMThatAPersonDecides(t *testing.T) {
	cp := controlplanetest.Start(t, withTPM(func(c *controlplane.TPMConfig) { c.Enrollment = true }))
	m := newTPMMachine(t, cp, tpmkeytest.Any(t))
	request, err := m.tryJoin(cp.GatewayURL)
	if err != nil || request == "" {
		t.Fatalf("not deferred: %v", err)
	}
	var list httpapi.List[httpapi.JoinRequest]
	operate(t, cp, "joinRequests.list", httpapi.ListJoinRequests{TenantID: cp.Tenant, PoolID: cp.Pool}, &list)
	if len(list.Items) != 1 || list.Items[0].ID != request || list.Items[0].EKSHA256 != m.ek() || !*list.Items[0].EKUnverified ||
		list.Items[0].Attestor != "tpm" {
		t.Fatalf("requests %+v", list.Items)
	}
	var approved httpapi.JoinRequest
	operate(t, cp, "joinRequests.approve", httpapi.ApproveJoinRequest{
		TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: request, CSRSHA256: &list.Items[0].CSRSHA256,
	}, &approved)
	m.mustJoinByTPM()
	if cp.WaitForEvent(t, events.TypeNodeJoined, 1); m.admission.GetIdentityGeneration() != 1 {
		t.Errorf("admission %v", m.admission)
	}
}

// A maker's chain, from swtpm's own tools, and a pool that takes its TPMs.
func TestATPMOfAKnownMaker(t *testing.T) {
	k := tpmkeytest.NewMaker(t)
	chip := k.Swtpm(t)
	cp := controlplanetest.Start(t, withTPM(nil))
	cp.Stop(t)
	var roots []byte
	for _, c := range []*x509.Certificate{k.Root(t), k.Issuer(t)} {
		roots = append(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})...)
	}
	if err := os.WriteFile(filepath.Join(cp.Dir, "makers.pem"), roots, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(cp.Dir, "server.toml")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const section = "[attestors.tpm]\n"
	before, after, found := strings.Cut(string(text), section)
	if !found {
		t.Fatalf("no section: %s", text)
	}
	config := before + section + "ek_roots = [\"makers.pem\"]\n" + after + fmt.Sprintf("\n[attestors.tpm.pools]\n%s = %q\n", cp.Site, cp.Pool)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cp.Restart(t)
	m := newTPMMachine(t, cp, chip)
	m.mustJoinByTPM()
	stranger := newTPMMachine(t, cp, tpmkeytest.Any(t))
	stranger.refused("tpm:ek")
}

func TestOneTPMJoinsSixteenTimesAtOnce(t *testing.T) {
	cp := controlplanetest.Start(t, withTPM(nil))
	chip := tpmkeytest.Any(t)
	m := newTPMMachine(t, cp, chip)
	operate(t, cp, "ekAllow.add", httpapi.AddEKAllow{TenantID: cp.Tenant, PoolID: cp.Pool, EKSHA256: new(m.ek()), IdempotencyKey: "k"}, new(httpapi.EKAllow))
	var all sync.WaitGroup
	ids := make([]string, 16)
	for i := range ids {
		one := *m
		own := *m.machine
		one.machine = &own
		all.Go(func() {
			if _, err := one.tryJoin(cp.GatewayURL); err != nil && codeOf(err) != fault.Conflict {
				t.Errorf("answer %v", err)
			}
			ids[i] = one.admission.GetNodeId()
		})
	}
	all.Wait()
	m.mustJoinByTPM()
	for _, id := range ids {
		if id != "" && id != m.admission.GetNodeId() {
			t.Errorf("two nodes: %q and %q", id, m.admission.GetNodeId())
		}
	}
	if m.admission.GetIdentityGeneration() != 1 {
		t.Error("one request reclaimed its own node")
	}
}

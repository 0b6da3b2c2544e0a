package controlplanetest_test

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
)

const bootMAC = "b4:96:91:a7:00:01"

// discover joins as a ramdisk through a gateway. It returns what JoinService answers.
func (m *machine) discover(token string) (*daemonv1.JoinResponseBody, error) {
	m.t.Helper()
	req := m.joinRequest(token)
	var body daemonv1.JoinRequestBody
	if err := proto.Unmarshal(req.GetBody(), &body); err != nil {
		m.t.Fatal(err)
	}
	m.claims.MACs = []string{bootMAC}
	body.Attestor, body.Role, body.Claims.Macs = "discovery", "ramdisk", m.claims.MACs
	body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_Discovery{Discovery: &daemonv1.DiscoveryEvidence{BootMac: bootMAC, BootLeaseEpoch: 3}}}
	var err error
	if req.Body, err = proto.Marshal(&body); err != nil {
		m.t.Fatal(err)
	}
	if req.Sig, err = signing.Sign(m.key, signing.JoinRequest, req.GetBody()); err != nil {
		m.t.Fatal(err)
	}
	resp, err := m.dial(m.cp.GatewayURL, false).Join(m.ctx(), req)
	if err != nil {
		return nil, err
	}
	m.verify(signing.JoinResponse, resp.GetBody(), resp.GetSig())
	var answer daemonv1.JoinResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &answer); err != nil {
		m.t.Fatal(err)
	}
	m.admission = answer.GetAdmission()
	return &answer, nil
}

// text is a log that many write.
type text struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *text) Write(p []byte) (int, error) { w.mu.Lock(); defer w.mu.Unlock(); return w.b.Write(p) }

func (w *text) String() string { w.mu.Lock(); defer w.mu.Unlock(); return w.b.String() }

// A token that a module gets for a ramdisk or an installed system travels once, to the module: after the machines joined
// with it, neither a file of the control plane nor its log holds a secret.
//
// Req: AP-001 AP-002 AP-006
func TestTokensOfModulesAreKeptNowhere(t *testing.T) {
	var log text
	cp := controlplanetest.Start(t, controlplanetest.Options{
		Attestors: controlplane.AttestorsConfig{Discovery: &controlplane.DiscoveryConfig{Approval: joinservice.ApproveUnknown}},
		Log:       slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	discovery := cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: bootMAC, WorkflowID: "wf_1"})
	ramdisk := newMachine(t, cp)
	answer, err := ramdisk.discover(discovery)
	if err != nil {
		t.Fatal(err)
	}
	if answer.GetDeferral().GetRequestId() == "" {
		t.Fatalf("answer %v", answer)
	}
	service := &approvals.Service{Store: cp.Server().Store()}
	if _, err := service.Approve(t.Context(), "key_1", approvals.ApproveRequest{
		TenantID: cp.Tenant, PoolID: cp.Pool, RequestID: answer.GetDeferral().GetRequestId(),
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := ramdisk.discover(discovery); err != nil || ramdisk.admission.GetRole() != "ramdisk" {
		t.Fatalf("%v, %v", ramdisk.admission, err)
	}
	provisioned := cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenProvisioned})
	if err := newMachine(t, cp).join(cp.GatewayURL, provisioned); err != nil {
		t.Fatal(err)
	}
	// One that is refused, and told of.
	if err := newMachine(t, cp).join(cp.GatewayURL, provisioned); codeOf(err) != fault.AccessDenied {
		t.Fatal(err)
	}
	cp.Stop(t)
	read := 0
	held := func(name string, b []byte) {
		read++
		for _, token := range []string{discovery, provisioned} {
			_, secret, _ := strings.Cut(token, ".")
			if bytes.Contains(b, []byte(secret)) || bytes.Contains(b, []byte("bcjt_")) {
				t.Errorf("%s holds a token", name)
			}
		}
	}
	held("the log", []byte(log.String()))
	if err := filepath.WalkDir(cp.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		held(path, b)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if read < 4 {
		t.Errorf("only %d files were read", read)
	}
}

// Machines join by the attestors that the configuration has, each by its name.
//
// Req: AT-003
func TestAttestorsByName(t *testing.T) {
	for _, with := range []bool{false, true} {
		var o controlplanetest.Options
		if with {
			o.Attestors.Discovery = &controlplane.DiscoveryConfig{Approval: joinservice.ApproveNever}
			o.Attestors.X509PoP = &controlplane.X509PoPConfig{}
		}
		cp := controlplanetest.Start(t, o)
		ramdisk := newMachine(t, cp)
		_, err := ramdisk.discover(cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenDiscovery, MAC: bootMAC}))
		if with && (err != nil || ramdisk.admission.GetRole() != "ramdisk") || !with && codeOf(err) != fault.AccessDenied {
			t.Errorf("discovery, configured %v: %v, %v", with, ramdisk.admission, err)
		}
		installed := newMachine(t, cp)
		if err := installed.join(cp.GatewayURL, cp.IssueToken(t, tokens.IssueRequest{Role: store.TokenProvisioned})); err != nil {
			t.Errorf("provisioned: %v", err)
		}
		again, err := installed.rejoin()
		if with && (err != nil || again.GetNodeId() != installed.admission.GetNodeId()) || !with && codeOf(err) != fault.AccessDenied {
			t.Errorf("x509pop, configured %v: %v, %v", with, again, err)
		}
	}
}

// rejoin joins again by the certificate, with a new key.
func (m *machine) rejoin() (*daemonv1.Admission, error) {
	m.t.Helper()
	next := &machine{claims: hwclaims.Claims{ProductUUID: "none"}, t: m.t, cp: m.cp}
	next.key, next.csr = newCSR(m.t)
	req := next.joinRequest("no token")
	var body daemonv1.JoinRequestBody
	if err := proto.Unmarshal(req.GetBody(), &body); err != nil {
		m.t.Fatal(err)
	}
	at := m.cp.Clock.Now()
	pop, err := signing.Sign(m.key, signing.X509PoP, signing.PoP(sha256.Sum256(next.csr), at, m.admission.GetNodeId()))
	if err != nil {
		m.t.Fatal(err)
	}
	body.Attestor, body.SealedToken = "x509pop", ""
	body.Evidence = &daemonv1.Evidence{Kind: &daemonv1.Evidence_X509Pop{X509Pop: &daemonv1.X509PopEvidence{
		Chain: m.admission.GetChain(), ClientTimeUnixMs: at.UnixMilli(), PopSig: pop,
	}}}
	if req.Body, err = proto.Marshal(&body); err != nil {
		m.t.Fatal(err)
	}
	if req.Sig, err = signing.Sign(next.key, signing.JoinRequest, req.GetBody()); err != nil {
		m.t.Fatal(err)
	}
	resp, err := m.dial(m.cp.GatewayURL, false).Join(m.ctx(), req)
	if err != nil {
		return nil, err
	}
	m.verify(signing.JoinResponse, resp.GetBody(), resp.GetSig())
	var answer daemonv1.JoinResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &answer); err != nil {
		m.t.Fatal(err)
	}
	return answer.GetAdmission(), nil
}

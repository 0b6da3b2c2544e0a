package agent_test

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey/attest"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// A machine whose endorsement key is on the allow-list joins with its TPM alone. What it sends proves that the key of its
// certificate request lives in that TPM.
// Req: AT-001 AT-011 JF-014 JF-015
func TestJoinByTPM(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	relay := cp.Relay(t)
	m, tpm := newTPMMachine(t, cp)
	m.url = relay.URL
	m.allow()
	result, err := m.joinByTPM(nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	if result.Key != "tpm" || result.Already {
		t.Errorf("result %+v", result)
	}
	m.namesItsAK()
	if id := m.connects(); id.NodeID != result.NodeID || id.Role != "node" || id.Key != "tpm" {
		t.Errorf("connected as %+v", id)
	}
	var joined events.NodeJoined
	if err := json.Unmarshal(cp.WaitForEvent(t, events.TypeNodeJoined, 1).Data, &joined); err != nil {
		t.Fatal(err)
	}
	if joined.Attestor != "tpm" || joined.NodeKey != "tpm" || joined.NodeID != result.NodeID {
		t.Errorf("event %+v", joined)
	}

	var body daemonv1.JoinRequestBody
	if err := proto.Unmarshal(relay.Joins()[0].GetRequest().GetBody(), &body); err != nil {
		t.Fatal(err)
	}
	csr, err := x509.ParseCertificateRequest(body.GetCsr())
	if err != nil {
		t.Fatal(err)
	}
	if body.GetSealedToken() != "" || body.GetSite() != cp.Site || body.GetAttestor() != "tpm" || body.GetRole() != "node" {
		t.Errorf("request %v", &body)
	}
	if err := attest.VerifyCertification(certified(body.GetEvidence().GetTpm().GetKeyAttestation()), m.ak()[0], csr.PublicKey, sha256.Sum256(body.GetCsr())); err != nil {
		t.Error(err)
	}
	empty(t, tpm)
	again, err := m.joinByTPM(nil)
	if err != nil || !again.Already || again.NodeID != result.NodeID {
		t.Errorf("again: %+v, %v", again, err)
	}
}

func certified(w *daemonv1.KeyAttestation) attest.Certification {
	return attest.Certification{CertifyInfo: w.GetCertifyInfo(), Signature: w.GetSignature(), NodePublic: w.GetNodePublic(), AKPublic: w.GetAkPublic()}
}

// Without a TPM that may be used, nothing is written and nobody is asked.
func TestJoinByTPMWithoutATPM(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
	for name, c := range map[string]struct {
		tpm  string
		code fault.Code
		says string
	}{
		"off":  {`mode = "off"`, fault.Config, `mode is "off"`},
		"none": {`device = "unix:` + filepath.Join(t.TempDir(), "none") + `"`, fault.TPMUnavailable, "no such file"},
		"no endorsement authorisation": {
			`device = "` + tpmkeytest.Any(t).Device() + "\"\nendorsement_auth_file = \"" + filepath.Join(t.TempDir(), "none") + `"`,
			fault.Config, "endorsement authorisation file",
		},
	} {
		t.Run(name, func(t *testing.T) {
			relay := cp.Relay(t)
			m := newMachine(t, cp)
			m.url, m.tpm = relay.URL, c.tpm
			_, err := m.joinByTPM(nil)
			if !fault.Is(err, c.code) || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), "cannot join by the TPM: ") || fault.HintOf(err) == "" {
				t.Errorf("error %v, hint %q", err, fault.HintOf(err))
			}
			if got := m.files(); len(got) > 0 {
				t.Errorf("files %q", got)
			}
			if seen := relay.Seen(); len(seen) > 0 {
				t.Errorf("the gateway saw %d bytes", len(seen))
			}
		})
	}
}

// [tpm] ek and endorsement_auth_file are what the machine's TPM is used with.
func TestTPMSettingsTakeEffect(t *testing.T) {
	tpm := tpmkeytest.Any(t)
	tpm.SetEndorsementAuth(t, []byte("owned"))
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	m := newMachine(t, cp)
	m.use(tpm)
	if _, err := m.joinByTPM(nil); !fault.Is(err, fault.TPMAuth) || !strings.Contains(fault.HintOf(err), "endorsement_auth_file") {
		t.Errorf("without the authorisation: %v", err)
	}
	file := filepath.Join(m.dir, "auth")
	if err := os.WriteFile(file, []byte("owned\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.tpm += fmt.Sprintf("\nendorsement_auth_file = %q\nek = \"0x01c00002\"", file)
	m.allow()
	if report, err := m.agent().TPMIdentity(t.Context()); err != nil || report.EKKey != "RSA 2048" || report.EKIndex != "0x01c00002" {
		t.Errorf("%+v, %v", report, err)
	}
	if _, err := m.joinByTPM(nil); err != nil {
		t.Fatal(err)
	}
	m.namesItsAK()
}

// A machine that nobody knows waits for an operator.
func TestJoinByTPMIsApproved(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
	m, tpm := newTPMMachine(t, cp)
	waits := 0
	m.sleep = func(ctx context.Context, _ time.Duration) error {
		switch waits++; waits {
		case 2:
			tpm.Remove() // no reason to give up
		case 4:
			tpm.Return(t)
		case 5:
			approve(t, cp)
		}
		return context.Cause(ctx)
	}
	var said []agent.JoinWait
	result, err := m.joinByTPM(func(o *agent.JoinOptions) { o.OnWait = func(w agent.JoinWait) { said = append(said, w) } })
	if err != nil || len(said) != 1 {
		t.Fatalf("%v after %v\n%s", err, said, m.log)
	}
	m.sleep = nil
	if id := m.connects(); id.NodeID != result.NodeID {
		t.Errorf("connected as %s", id.NodeID)
	}
	m.namesItsAK()
	empty(t, tpm)
}

// The daemon goes on with a join by TPM that waits for an operator, and then runs the node.
func TestNodeResumesAJoinByTPM(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
	m, _ := newTPMMachine(t, cp)
	_, err := m.joinByTPM(func(o *agent.JoinOptions) { o.NoWait = true })
	if !fault.Is(err, fault.Pending) || !strings.Contains(fault.HintOf(err), "bcd node") || strings.Contains(fault.HintOf(err), "token") {
		t.Fatalf("error %v, hint %q", err, fault.HintOf(err))
	}
	before := m.pendingFile()
	request := pendingRequest(t, cp)
	waits := make(chan struct{})
	m.sleep = func(ctx context.Context, _ time.Duration) error {
		select {
		case waits <- struct{}{}:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	m.run()
	<-waits
	s := m.waitFor(agent.Joining)
	if s.Join == nil || s.Join.RequestID != request.ID || s.Join.Attestor != "tpm" || !fault.Is(s.Err(), fault.Pending) {
		t.Errorf("status %+v, %v", s, s.Err())
	}
	m.unlocked()
	if m.pendingFile() != before {
		t.Error("it is another request")
	}
	approve(t, cp)
	// The next try may be on its way already: it is in by that one, or by the one after it.
	go func() {
		for {
			select {
			case <-waits:
			case <-t.Context().Done():
				return
			}
		}
	}()
	connected := m.waitFor(agent.Connected)
	if connected.Join != nil || connected.Problem != "" || connected.Identity.Key != "tpm" {
		t.Errorf("status %+v", connected)
	}
	if got := m.log.count(`msg="wait for approval" request=` + request.ID); got != 1 {
		t.Errorf("it is said %d times that it waits:\n%s", got, m.log)
	}
	m.namesItsAK()
}

// An operator's no is answered by the daemon with no other request: it parks.
func TestRejectedJoinByTPMParks(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
	m, _ := newTPMMachine(t, cp)
	if _, err := m.joinByTPM(func(o *agent.JoinOptions) { o.NoWait = true }); !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	request, before := pendingRequest(t, cp).ID, m.pendingFile()
	reject(t, cp)
	m.run()
	s := m.waitFor(agent.Parked)
	if !strings.Contains(s.Problem, request+" was not approved (it was rejected)") || !strings.Contains(s.Hint, "bcd join --attestor tpm") || s.Join != nil {
		t.Errorf("status %+v", s)
	}
	if strings.Replace(m.pendingFile(), ",\n  \"refused\": true", "", 1) != before {
		t.Error("it is another request")
	}
	m.unlocked()
}

// A gateway that lies about a join by TPM can deny it, and nothing else.
func TestRelayLiesAboutAJoinByTPM(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})

	// What another machine was told, as a relay could have kept it.
	spy := cp.Relay(t)
	var replayed *daemonv1.ChallengeResponse
	spy.OnChallenge(func(_ context.Context, req *joinv1.ChallengeRequest, next nextChallenge) (*daemonv1.ChallengeResponse, error) {
		answer, err := next(req)
		replayed = answer
		return answer, err
	})
	other, _ := newTPMMachine(t, cp)
	other.url, other.host = spy.URL, anotherHost(t, "other")
	other.allow()
	if _, err := other.joinByTPM(nil); err != nil {
		t.Fatal(err)
	}
	var otherBody daemonv1.JoinRequestBody
	if err := proto.Unmarshal(spy.Joins()[0].GetRequest().GetBody(), &otherBody); err != nil {
		t.Fatal(err)
	}
	report, err := other.agent().TPMIdentity(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	lie := func(change func(*daemonv1.ChallengeResponse)) func(*relayed) {
		return func(r *relayed) {
			r.relay.OnChallenge(func(_ context.Context, req *joinv1.ChallengeRequest, next nextChallenge) (*daemonv1.ChallengeResponse, error) {
				answer, err := next(req)
				if err == nil {
					change(answer)
				}
				return answer, err
			})
		}
	}
	for name, c := range map[string]struct {
		lies func(*relayed)
		code fault.Code
		why  string // the refusal's reason
	}{
		"a challenge of another TPM":      {lie(func(a *daemonv1.ChallengeResponse) { proto.Reset(a); proto.Merge(a, replayed) }), fault.Verification, ""},
		"the state of another challenge":  {lie(func(a *daemonv1.ChallengeResponse) { a.State = replayed.GetState() }), fault.AccessDenied, "tpm:challenge"},
		"a flipped bit of the credential": {lie(func(a *daemonv1.ChallengeResponse) { a.CredentialBlob[len(a.CredentialBlob)-1] ^= 1 }), fault.Verification, ""},
		"a flipped bit of the state":      {lie(func(a *daemonv1.ChallengeResponse) { a.State[len(a.State)-1] ^= 1 }), fault.AccessDenied, "tpm:challenge"},
		"no challenge":                    {lie(func(a *daemonv1.ChallengeResponse) { proto.Reset(a) }), fault.Verification, ""},
		"a huge challenge":                {lie(func(a *daemonv1.ChallengeResponse) { a.CredentialBlob = make([]byte, 100<<10) }), fault.Verification, ""},
		"another CSR": {func(r *relayed) {
			r.relay.OnChallenge(func(_ context.Context, req *joinv1.ChallengeRequest, next nextChallenge) (*daemonv1.ChallengeResponse, error) {
				req.Request.CsrSha256 = make([]byte, sha256.Size)
				return next(req)
			})
		}, fault.AccessDenied, "tpm:challenge"},
		"another endorsement key": {func(r *relayed) {
			r.relay.OnChallenge(func(_ context.Context, req *joinv1.ChallengeRequest, next nextChallenge) (*daemonv1.ChallengeResponse, error) {
				req.Request.EkSpki, req.Request.EkTemplate, req.Request.EkChain = report.EKSPKI, report.EKTemplate, report.EKCertificates
				return next(req)
			})
		}, fault.Verification, ""},
		"another machine's evidence": {func(r *relayed) {
			r.relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
				return next(changedBody(t, req, func(b *daemonv1.JoinRequestBody) { b.Evidence = otherBody.GetEvidence() }))
			})
		}, fault.AccessDenied, "join:request"},
	} {
		t.Run(name, func(t *testing.T) {
			m, tpm := newTPMMachine(t, cp)
			relay := cp.Relay(t)
			m.url, m.host = relay.URL, anotherHost(t, name)
			m.allow()
			c.lies(&relayed{relay})
			before := len(cp.Refusals(t))
			_, err := m.joinByTPM(nil)
			if !fault.Is(err, c.code) {
				t.Errorf("error %v, want %s", err, c.code)
			}
			if got := cp.Refusals(t)[before:]; c.why == "" && len(got) > 0 || c.why != "" && !slices.Equal(got, []string{c.why}) {
				t.Errorf("refusals %q, want %q", got, c.why)
			}
			empty(t, tpm)
			// The same request joins through an honest gateway.
			pending := m.pendingFile()
			m.url = cp.GatewayURL
			if _, err := m.joinByTPM(nil); err != nil || pending == "" {
				t.Errorf("afterwards: %v", err)
			}
			m.namesItsAK()
		})
	}
}

type nextChallenge = func(*joinv1.ChallengeRequest) (*daemonv1.ChallengeResponse, error)

type relayed struct{ relay *controlplanetest.Relay }

// An answer whose certificate does not name exactly the machine's attestation key is not taken, whoever signed it.
func TestAnswerWithAnotherAttestationKey(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	m, _ := newTPMMachine(t, cp)
	relay := cp.Relay(t)
	m.url = relay.URL
	m.allow()
	for name, change := range map[string]func([]string) []string{
		"none":    func([]string) []string { return nil },
		"another": func([]string) []string { return []string{"urn:bc:tpm-ak:sha256:" + strings.Repeat("0", 64)} },
		"one more": func(own []string) []string {
			return append(own, "urn:bc:tpm-ak:sha256:"+strings.Repeat("0", 64))
		},
	} {
		relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
			resp, err := next(req)
			if err != nil {
				return nil, err
			}
			var body daemonv1.JoinResponseBody
			if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
				t.Error(err)
			}
			body.GetAdmission().Chain[0] = withStatements(t, cp, body.GetAdmission().GetChain()[0], change)
			return sign(t, cp, &body), nil
		})
		_, err := m.joinByTPM(nil)
		if fault.CodeOf(err).Exit() != 76 || identity.FailedCheck(err) != identity.CheckAttestationKey {
			t.Errorf("%s: error %v", name, err)
		}
		if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
			t.Errorf("%s: files %q, want %q", name, got, want)
		}
	}
	relay.OnJoin(nil)
	if _, err := m.joinByTPM(nil); err != nil {
		t.Fatal(err)
	}
	if got := joined(t, cp); len(got) != 1 {
		t.Errorf("%d joins", len(got))
	}
}

// withStatements is a certificate of the control plane's own CA that says other things.
func withStatements(t *testing.T, cp *controlplanetest.ControlPlane, der []byte, change func([]string) []string) []byte {
	t.Helper()
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	says, err := identity.Statements(leaf)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(strings.TrimPrefix(leaf.URIs[0].String(), "spiffe://"), "/") // domain, site, its id, node, its id
	made, err := cp.Bundle.IssueNode(pki.NodeRequest{
		Key: leaf.PublicKey, Site: parts[2], Node: parts[4], Role: "node", Statements: change(says), Now: cp.Clock.Now(), Lifetime: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Raw
}

// A join whose key the TPM lost, because it was cleared or replaced, begins with another key.
func TestJoinWhoseKeyTheTPMLost(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{Enrollment: true}, controlplanetest.Options{})
	m, tpm := newTPMMachine(t, cp)
	if _, err := m.joinByTPM(func(o *agent.JoinOptions) { o.NoWait = true }); !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	tpm.Clear(t)
	m.sleep = func(ctx context.Context, _ time.Duration) error {
		approve(t, cp)
		return context.Cause(ctx)
	}
	if _, err := m.joinByTPM(nil); err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	if m.log.count(`msg="try join with new key"`) != 1 {
		t.Errorf("it is the same request:\n%s", m.log)
	}
	m.sleep = nil
	m.connects()
}

// The key of a join with a token is another one than that of a join by TPM, and the token's file key never serves for it.
func TestJoinByTPMAfterAJoinWithAToken(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	m, tpm := newTPMMachine(t, cp)
	m.allow()
	m.tpm = `mode = "off"`
	relay := cp.Relay(t)
	m.url = relay.URL
	relay.OnJoin(func(context.Context, *joinv1.JoinRequest, nextJoin) (*daemonv1.JoinResponse, error) {
		return nil, status.Error(codes.Unavailable, "lost")
	})
	if _, err := m.joinWithin(newToken(t, cp, 1), time.Millisecond); !fault.Is(err, fault.Unreachable) {
		t.Fatal(err)
	}
	if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
		t.Fatalf("files %q, want %q", got, want)
	}
	m.use(tpm)
	m.url = cp.GatewayURL
	result, err := m.joinByTPM(nil)
	if err != nil {
		t.Fatal(err)
	}
	if result.Key != "tpm" {
		t.Errorf("the key is in the %s", result.Key)
	}
	m.namesItsAK()
}

package agent_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/seal"
)

// The gateway relays and may be the attacker's: it holds a serving certificate and a client certificate for JoinService.
// The tests here give it all of that and show that it can deny service, and nothing else.

type nextJoin = func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)

// Req: SE-008 SE-009 SE-013
func TestRelayCannotReadTheToken(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	relay := cp.Relay(t)
	m := newMachine(t, cp)
	m.url = relay.URL
	token := newToken(t, cp, 1)
	if _, err := m.join(token); err != nil {
		t.Fatal(err)
	}
	_, secret, _ := strings.Cut(token, ".")
	seen := relay.Seen()
	if len(seen) == 0 {
		t.Fatal("the relay saw nothing")
	}
	for _, text := range []string{"bcjt_", secret} {
		if bytes.Contains(seen, []byte(text)) {
			t.Errorf("the relay saw %q", text)
		}
	}
}

// changedBody returns the request with a changed body under the machine's signature.
func changedBody(t *testing.T, req *joinv1.JoinRequest, change func(*daemonv1.JoinRequestBody)) *joinv1.JoinRequest {
	t.Helper()
	var body daemonv1.JoinRequestBody
	if err := proto.Unmarshal(req.GetRequest().GetBody(), &body); err != nil {
		t.Error(err)
	}
	change(&body)
	b, err := proto.Marshal(&body)
	if err != nil {
		t.Error(err)
	}
	req = proto.Clone(req).(*joinv1.JoinRequest)
	req.Request.Body = b
	return req
}

// ownCSR makes the relay's own key and request, and signs a body with it.
func ownCSR(t *testing.T) (csr []byte, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	csr, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr, key
}

// Req: JF-086 SE-009
func TestRelayCannotChangeARequest(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	csr, key := ownCSR(t)
	joinKey, err := seal.NewKey(cp.Bundle.JoinEncryption().PublicKey())
	if err != nil {
		t.Fatal(err)
	}
	attackers := newToken(t, cp, 1)
	for name, c := range map[string]struct {
		change func(*daemonv1.JoinRequestBody)
		resign bool
		reason string
	}{
		"its own CSR under our seal": {func(b *daemonv1.JoinRequestBody) { b.Csr = csr }, true, "join:token"},
		"its own CSR, our signature": {func(b *daemonv1.JoinRequestBody) { b.Csr = csr }, false, "join:request"},
		"its token sealed over our CSR": {func(b *daemonv1.JoinRequestBody) {
			sealed, err := seal.Seal(joinKey, []byte(attackers), b.GetCsr(), time.Now())
			if err != nil {
				t.Error(err)
			}
			b.SealedToken = sealed
		}, false, "join:request"},
		"claims":   {func(b *daemonv1.JoinRequestBody) { b.Claims.ProductSerial = "OTHER1" }, false, "join:request"},
		"role":     {func(b *daemonv1.JoinRequestBody) { b.Role = "site" }, false, "join:request"},
		"site":     {func(b *daemonv1.JoinRequestBody) { b.Site = "site_other" }, false, "join:request"},
		"node id":  {func(b *daemonv1.JoinRequestBody) { b.NodeId = "node_other" }, false, "join:request"},
		"attestor": {func(b *daemonv1.JoinRequestBody) { b.Attestor = "tpm" }, false, "join:request"},
		"evidence": {func(b *daemonv1.JoinRequestBody) { b.Evidence = &daemonv1.Evidence{} }, false, "join:request"},
	} {
		t.Run(name, func(t *testing.T) {
			relay := cp.Relay(t)
			relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
				req = changedBody(t, req, c.change)
				if c.resign {
					sig, err := signing.Sign(key, signing.JoinRequest, req.GetRequest().GetBody())
					if err != nil {
						t.Error(err)
					}
					req.Request.Sig = sig
				}
				return next(req)
			})
			m := newMachine(t, cp)
			m.url, m.host = relay.URL, anotherHost(t, name)
			token := newToken(t, cp, 1)
			before := len(cp.Refusals(t))
			_, err := m.join(token)
			if !fault.Is(err, fault.AccessDenied) {
				t.Errorf("error %v", err)
			}
			if got := cp.Refusals(t)[before:]; !slices.Equal(got, []string{c.reason}) {
				t.Errorf("refusals %q, want %q", got, c.reason)
			}
			// All that the relay did was to deny: the same machine joins through an honest gateway with the same token.
			m.url = cp.GatewayURL
			if _, err := m.join(token); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
	if got := usesLeft(t, cp, attackers); got != 1 {
		t.Errorf("the attacker's token has %d uses left", got)
	}
}

// Req: JF-058 JF-059 JF-060 JF-061 JF-062 JF-063 JF-086
func TestForgedAnswers(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	other := controlplanetest.Start(t, controlplanetest.Options{})

	// Another node's answer, as a relay could have kept it.
	stale := cp.Relay(t)
	var kept *daemonv1.JoinResponse
	stale.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		resp, err := next(req)
		kept = resp
		return resp, err
	})
	neighbour := newMachine(t, cp)
	neighbour.url, neighbour.host = stale.URL, anotherHost(t, "neighbour")
	if _, err := neighbour.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	var keptBody daemonv1.JoinResponseBody
	if err := proto.Unmarshal(kept.GetBody(), &keptBody); err != nil {
		t.Fatal(err)
	}

	// resigned is an answer that the holder of the join-signing key changed: JoinService itself would have to lie.
	resigned := func(change func(*daemonv1.Admission)) func(*daemonv1.JoinResponse) *daemonv1.JoinResponse {
		return func(r *daemonv1.JoinResponse) *daemonv1.JoinResponse {
			var body daemonv1.JoinResponseBody
			if err := proto.Unmarshal(r.GetBody(), &body); err != nil {
				t.Error(err)
			}
			change(body.GetAdmission())
			return sign(t, cp, &body)
		}
	}
	for name, c := range map[string]struct {
		forge func(*daemonv1.JoinResponse) *daemonv1.JoinResponse
		check identity.CheckName
	}{
		"a flipped bit of the body": {func(r *daemonv1.JoinResponse) *daemonv1.JoinResponse {
			r.Body[len(r.Body)/2] ^= 1
			return r
		}, identity.CheckSignature},
		"a flipped bit of the signature": {func(r *daemonv1.JoinResponse) *daemonv1.JoinResponse {
			r.Sig.Signature[len(r.Sig.Signature)-1] ^= 1
			return r
		}, identity.CheckSignature},
		"no signature": {func(r *daemonv1.JoinResponse) *daemonv1.JoinResponse {
			return &daemonv1.JoinResponse{Body: r.GetBody()}
		}, identity.CheckSignature},
		"signed by another control plane": {func(r *daemonv1.JoinResponse) *daemonv1.JoinResponse {
			var body daemonv1.JoinResponseBody
			if err := proto.Unmarshal(r.GetBody(), &body); err != nil {
				t.Error(err)
			}
			return sign(t, other, &body)
		}, identity.CheckSignature},
		"nothing":              {func(*daemonv1.JoinResponse) *daemonv1.JoinResponse { return &daemonv1.JoinResponse{} }, identity.CheckSignature},
		"another node's":       {func(*daemonv1.JoinResponse) *daemonv1.JoinResponse { return kept }, identity.CheckCSR},
		"another node's chain": {resigned(func(a *daemonv1.Admission) { a.Chain = keptBody.GetAdmission().GetChain() }), identity.CheckKey},
		"no chain":             {resigned(func(a *daemonv1.Admission) { a.Chain = nil }), identity.CheckKey},
		"another node id":      {resigned(func(a *daemonv1.Admission) { a.NodeId = "node_other" }), identity.CheckSPIFFE},
		"another site":         {resigned(func(a *daemonv1.Admission) { a.Site = "site_other" }), identity.CheckSPIFFE},
		"another domain":       {resigned(func(a *daemonv1.Admission) { a.TrustDomain = "other.test" }), identity.CheckSPIFFE},
		"another role":         {resigned(func(a *daemonv1.Admission) { a.Role = "site" }), identity.CheckRole},
		"another node CA":      {resigned(func(a *daemonv1.Admission) { a.NodeCaBundle = [][]byte{other.Bundle.Public().NodeCA().Raw} }), identity.CheckChain},
		"no generation":        {resigned(func(a *daemonv1.Admission) { a.IdentityGeneration = 0 }), identity.CheckGeneration},
	} {
		t.Run(name, func(t *testing.T) {
			relay := cp.Relay(t)
			relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
				resp, err := next(req)
				if err != nil {
					return nil, err
				}
				return c.forge(proto.Clone(resp).(*daemonv1.JoinResponse)), nil
			})
			m := newMachine(t, cp)
			m.url, m.host = relay.URL, anotherHost(t, name)
			token := newToken(t, cp, 1)
			_, err := m.join(token)
			if fault.CodeOf(err).Exit() != 76 || identity.FailedCheck(err) != c.check {
				t.Fatalf("error %v, want the check %s and exit status 76", err, c.check)
			}
			if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
				t.Errorf("files %q, want %q", got, want)
			}
			// The admission was recorded and its use is spent: the same request gets it again.
			m.url = cp.GatewayURL
			if _, err := m.join(token); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// sign signs an answer with a control plane's join-signing key.
func sign(t *testing.T, cp *controlplanetest.ControlPlane, body *daemonv1.JoinResponseBody) *daemonv1.JoinResponse {
	t.Helper()
	b, err := proto.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := signing.Sign(cp.Bundle.JoinSigner(), signing.JoinResponse, b)
	if err != nil {
		t.Fatal(err)
	}
	return &daemonv1.JoinResponse{Body: b, Sig: &daemonv1.Signature{Signature: sig, Certificate: cp.Bundle.Public().JoinSigningCertificate().Raw}}
}

// A captured join can be replayed, and gives what it gave: never an admission afresh, and nothing once the node is revoked.
func TestCapturedJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	m := newMachine(t, cp)
	m.url = relay.URL
	token := newToken(t, cp, 5)
	result, err := m.join(token)
	if err != nil {
		t.Fatal(err)
	}
	captured := relay.Joins()[0]

	again, err := relay.JoinService.Join(t.Context(), captured)
	if err != nil {
		t.Fatal(err)
	}
	var body daemonv1.JoinResponseBody
	if err := proto.Unmarshal(again.GetBody(), &body); err != nil {
		t.Fatal(err)
	}
	if body.GetAdmission().GetNodeId() != result.NodeID {
		t.Errorf("a replay gives node %s", body.GetAdmission().GetNodeId())
	}
	if got, want := body.GetRequestSha256(), sha256.Sum256(captured.GetRequest().GetBody()); !bytes.Equal(got, want[:]) {
		t.Error("the answer is not for the request")
	}
	if got := usesLeft(t, cp, token); got != 4 {
		t.Errorf("%d uses left, want 4", got)
	}
	if got := joined(t, cp); len(got) != 1 {
		t.Errorf("%d joins", len(got))
	}

	revokeIdentity(t, cp, result.NodeID)
	if _, err := relay.JoinService.Join(t.Context(), captured); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a replay after the revocation: %v", err)
	}
	if got := cp.Refusals(t); !slices.Equal(got, []string{"join:replayed"}) {
		t.Errorf("refusals %q", got)
	}
	cp.Read(t, func(tx *store.Tx) error {
		node, err := tx.Node(result.NodeID)
		if err == nil && node.IdentityGeneration != 1 {
			t.Errorf("the node's generation is %d", node.IdentityGeneration)
		}
		return err
	})
}

// When the request is sent, key and CSR are on the disk, and the token is sealed for that CSR.
// Req: SE-007 SE-011
func TestSealIsMadeAfterKeyAndCSR(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	relay := cp.Relay(t)
	m := newMachine(t, cp)
	m.url = relay.URL
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		var body daemonv1.JoinRequestBody
		if err := proto.Unmarshal(req.GetRequest().GetBody(), &body); err != nil {
			t.Error(err)
		}
		pending, err := os.ReadFile(filepath.Join(m.data(), identity.PendingFile))
		if err != nil {
			t.Error(err)
		}
		var onDisk struct {
			CSR []byte `json:"csr"`
		}
		if err := json.Unmarshal(pending, &onDisk); err != nil || !bytes.Equal(onDisk.CSR, body.GetCsr()) {
			t.Errorf("the CSR that is sent is not the one on the disk (%v)", err)
		}
		if !slices.Contains(m.files(), identity.JoinKeyFile) {
			t.Error("the key is not on the disk")
		}
		protected, _, _ := strings.Cut(body.GetSealedToken(), ".")
		header, err := base64.RawURLEncoding.DecodeString(protected)
		if err != nil {
			t.Error(err)
		}
		sum := sha256.Sum256(onDisk.CSR)
		if want := `"csr":"` + base64.RawURLEncoding.EncodeToString(sum[:]) + `"`; !bytes.Contains(header, []byte(want)) {
			t.Errorf("the seal's header %s has no %s", header, want)
		}
		return next(req)
	})
	if _, err := m.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
}

// A gateway that drops an answer and then forges refusals makes the machine try a new key, and no more: the recorded
// admission is still there for the next, honest gateway, and a token of one use was spent once.
func TestForgedRefusalLosesNoAdmission(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	calls := 0
	refused := status.Error(codes.PermissionDenied, "Join refused")
	if s, err := status.Convert(refused).WithDetails(&errdetails.ErrorInfo{Reason: string(fault.AccessDenied), Domain: "better-compute"}); err == nil {
		refused = s.Err()
	}
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		if calls++; calls == 1 {
			if _, err := next(req); err != nil {
				t.Error(err)
			}
			return nil, status.Error(codes.Unavailable, "dropped")
		}
		return nil, refused
	})
	m := newMachine(t, cp)
	m.url = relay.URL
	token := newToken(t, cp, 1)
	if _, err := m.join(token); !fault.Is(err, fault.AccessDenied) {
		t.Fatalf("error %v", err)
	}
	if calls != 3 {
		t.Errorf("%d requests, want the first, its repeat and one with a new key", calls)
	}
	m.url = cp.GatewayURL
	result, err := m.join(token)
	if err != nil {
		t.Fatalf("afterwards: %v", err)
	}
	if got := joined(t, cp); !slices.Equal(got, []string{result.NodeID}) {
		t.Errorf("nodes %q joined, want %q once", got, result.NodeID)
	}
}

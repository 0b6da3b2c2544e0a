package controlplanetest_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/gateway"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/seal"
)

var noLimits tokens.CreateRequest

// Req: NC-003 NC-012 NC-013 SS-004
func TestAMachineJoinsRenewsAndConnects(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp).mustJoin()

	leaf := m.leaf()
	want := "spiffe://" + controlplanetest.TrustDomain + "/site/" + cp.Site + "/node/" + m.admission.GetNodeId()
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != want || len(leaf.DNSNames) > 0 || leaf.Subject.String() != "OU=bc-role:node" {
		t.Errorf("leaf is for %v %v %q, want %s alone", leaf.URIs, leaf.DNSNames, leaf.Subject, want)
	}
	if bytes.Contains(leaf.Raw, []byte(cp.Tenant)) {
		t.Error("the certificate names the tenant")
	}
	if life := leaf.NotAfter.Sub(leaf.NotBefore); life != 24*time.Hour {
		t.Errorf("the certificate lives %v, want 24h", life)
	}
	if err := m.renew(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	if m.leaf().SerialNumber.Cmp(leaf.SerialNumber) == 0 {
		t.Error("the renewal gave the same certificate")
	}
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	cp.WaitForEvent(t, events.TypeNodeJoined, 1)
	cp.WaitForEvent(t, events.TypeNodeConnected, 1)
}

// Req: SS-006
func TestANodeThatIsNotAdoptedYetConnects(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	cp.Write(t, func(tx *store.Tx) error {
		p, err := tx.Pool(cp.Pool)
		if err != nil {
			return err
		}
		p.Acceptance = true
		return tx.UpdatePool(p)
	})
	m := newMachine(t, cp).mustJoin()
	var state store.NodeState
	cp.Read(t, func(tx *store.Tx) error {
		n, err := tx.Node(m.admission.GetNodeId())
		state = n.State
		return err
	})
	if state != store.NodeAdopting {
		t.Fatalf("node is %q, want %q", state, store.NodeAdopting)
	}
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Errorf("session: %v", err)
	}
}

// Req: RN-009 RN-010
func TestAnOwnedGatewayMintsNothing(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	victim := newMachine(t, cp).mustJoin()
	if err := victim.renew(relay.URL); err != nil {
		t.Fatal(err)
	}
	seen := relay.Renews()[0]

	// With all that it saw, and the victim's certificate as "the peer", it asks for a certificate of its own.
	_, mine := newCSR(t)
	for name, change := range map[string]func(*joinv1.RenewRequest){
		"its own CSR":               func(r *joinv1.RenewRequest) { r.Request.Csr = mine },
		"the CSR and the new chain": func(r *joinv1.RenewRequest) { r.Request.Csr, r.Request.Chain = mine, victim.admission.GetChain() },
		"no proof":                  func(r *joinv1.RenewRequest) { r.Request.PopSig = nil },
	} {
		forged := &joinv1.RenewRequest{Peer: seen.GetPeer(), Request: &daemonv1.RenewRequest{
			Csr: seen.GetRequest().GetCsr(), Chain: seen.GetRequest().GetChain(), PopSig: seen.GetRequest().GetPopSig(),
			ClientTimeUnixMs: seen.GetRequest().GetClientTimeUnixMs(),
		}}
		change(forged)
		if _, err := relay.JoinService.Renew(t.Context(), forged); status.Code(err) != codes.PermissionDenied {
			t.Errorf("%s: %v, want a refusal", name, err)
		}
	}
	if got := cp.Refusals(t); len(got) != 3 || slices.ContainsFunc(got, func(r string) bool { return r != "pop" }) {
		t.Errorf("refusals %q, want pop three times", got)
	}
}

func TestARelaySeesNoToken(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	token := cp.NewToken(t, noLimits)
	if err := newMachine(t, cp).join(relay.URL, token); err != nil {
		t.Fatal(err)
	}
	_, secret, _ := strings.Cut(token, ".")
	if seen := relay.Seen(); len(seen) == 0 || bytes.Contains(seen, []byte(secret)) || bytes.Contains(seen, []byte(token)) {
		t.Errorf("the relay saw %d bytes, and the token among them or nothing", len(seen))
	}
	// It seals its own token over the machine's CSR: the machine's signature covers what it asked for.
	stolen := cp.NewToken(t, noLimits)
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)) (*daemonv1.JoinResponse, error) {
		req.Request.Body = append(req.Request.Body, 0x52, 0x01, 'x') // one more field
		return next(req)
	})
	if err := newMachine(t, cp).join(relay.URL, stolen); codeOf(err) != fault.AccessDenied {
		t.Errorf("changed request: %v, want a refusal", err)
	}
	if got := cp.Refusals(t); !slices.Equal(got, []string{"join:request"}) {
		t.Errorf("refusals %q", got)
	}
	relay.OnJoin(nil)
	if err := newMachine(t, cp).join(relay.URL, stolen); err != nil {
		t.Errorf("the refused join spent the token: %v", err)
	}
}

func TestRelayTampersWithSessionsAndRenewals(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	m := newMachine(t, cp).mustJoin()

	relay.OnRenew(func(context.Context, *joinv1.RenewRequest, func(*joinv1.RenewRequest) (*daemonv1.RenewResponse, error)) (*daemonv1.RenewResponse, error) {
		return nil, status.Error(codes.Unavailable, "not today")
	})
	if err := m.renew(relay.URL); status.Code(err) != codes.Unavailable {
		t.Errorf("renewal: %v, want the relay's answer", err)
	}
	var asked string
	relay.OnSession(
		func(r *joinv1.SessionRequest) { asked = r.GetHello().GetNodeId() },
		func(e *joinv1.SessionEvent) *joinv1.SessionEvent {
			if w := e.GetOpened().GetWelcome(); w != nil {
				w.SessionId = "forged"
			}
			return e
		},
	)
	s, err := m.dial(relay.URL, true).Session(m.ctx())
	if err != nil {
		t.Fatal(err)
	}
	hello := &daemonv1.Hello{NodeId: m.admission.GetNodeId(), ProtocolMin: 1, ProtocolMax: 1, CertificateSerial: m.leaf().SerialNumber.Text(16)}
	if err := s.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Hello{Hello: hello}}); err != nil {
		t.Fatal(err)
	}
	f, err := s.Recv()
	if err != nil || f.GetWelcome().GetSessionId() != "forged" || asked != m.admission.GetNodeId() {
		t.Errorf("frame %v (%v), asked for %q", f, err, asked)
	}
}

// Req: JF-019
func TestJoinServiceTakesNobodyButAGateway(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	other, err := pki.New(controlplanetest.TrustDomain, cp.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	ours := cp.Bundle.InternalClient(cp.Clock.Now)
	anonymous, foreign := ours.Clone(), ours.Clone()
	anonymous.GetClientCertificate = nil
	foreign.GetClientCertificate = other.InternalClient(cp.Clock.Now).GetClientCertificate
	for name, creds := range map[string]credentials.TransportCredentials{
		"no certificate": credentials.NewTLS(anonymous), "a foreign one": credentials.NewTLS(foreign),
	} {
		conn, err := grpc.NewClient(cp.Server().JoinServiceAddr(), grpc.WithTransportCredentials(creds), grpc.WithNoProxy())
		if err != nil {
			t.Fatal(err)
		}
		_, err = joinv1.NewJoinServiceClient(conn).Join(t.Context(), &joinv1.JoinRequest{})
		if status.Code(err) != codes.Unavailable || codeOf(err) != "" {
			t.Errorf("%s: %v, want a connection that is refused", name, err)
		}
		_ = conn.Close()
	}
}

func TestALostAnswerCostsNothing(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	token := cp.NewToken(t, noLimits)
	id, _, _ := strings.Cut(strings.TrimPrefix(token, "bcjt_"), ".")
	m := newMachine(t, cp)

	cp.DropAnswer(controlplanetest.Join, 1)
	if err := m.join(cp.GatewayURL, token); status.Code(err) != codes.Unavailable {
		t.Fatalf("first: %v, want UNAVAILABLE", err)
	}
	if cp.Dropped(controlplanetest.Join) != 1 || cp.Token(t, id).UsesLeft != 0 {
		t.Fatal("JoinService had not committed")
	}
	if err := m.join(cp.GatewayURL, token); err != nil {
		t.Fatalf("the same join again: %v", err)
	}
	cp.DropAnswer(controlplanetest.Renew, 1)
	key, csr := newCSR(t)
	if err := m.renewWith(cp.GatewayURL, key, csr); status.Code(err) != codes.Unavailable {
		t.Fatalf("first renewal: %v, want UNAVAILABLE", err)
	}
	if err := m.renewWith(cp.GatewayURL, key, csr); err != nil {
		t.Fatalf("the same renewal again: %v", err)
	}
}

func TestRestartKeepsAll(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp).mustJoin()
	api := cp.Server().APIURL()
	cp.Restart(t)
	if cp.Server().APIURL() != api {
		t.Errorf("the API moved from %s to %s", api, cp.Server().APIURL())
	}
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Errorf("session after the restart: %v", err)
	}
	if n := len(cp.Events(t)); n == 0 {
		t.Error("the events are gone")
	}
}

func TestStoppedGatewaySaysGoodbye(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp).mustJoin()
	s, err := m.open(cp.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	cp.StopGateway(t)
	f, err := s.Recv()
	if err != nil || f.GetGoodbye().GetReason() != "draining" {
		t.Errorf("frame %v (%v), want goodbye: draining", f, err)
	}
	if _, err := net.Dial("tcp", strings.TrimPrefix(cp.GatewayURL, "https://")); err == nil {
		t.Error("something listens on the gateway's address")
	}
	cp.WaitForEvent(t, events.TypeNodeDisconnected, 1)
	cp.StartGateway(t)
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Errorf("session after the start: %v", err)
	}
}

func TestSessionEndsWithTheClock(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: time.Hour})
	m := newMachine(t, cp).mustJoin()
	s, err := m.open(cp.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	cp.Clock.Advance(2 * time.Hour)
	for {
		f, err := s.Recv()
		if err != nil {
			t.Fatalf("session ended with %v, want a goodbye", err)
		}
		if g := f.GetGoodbye(); g != nil {
			if g.GetReason() != "certificate-expired" {
				t.Errorf("goodbye %q", g.GetReason())
			}
			break
		}
	}
	if err := m.renew(cp.GatewayURL); err == nil || !strings.Contains(err.Error(), "expired certificate") {
		t.Errorf("renewal with an expired certificate: %v, want the TLS alert", err)
	}
}

// Req: CF-001 CF-014
func TestWithoutJoinKeys(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{WithoutJoinKeys: true})
	err := newMachine(t, cp).join(cp.GatewayURL, cp.NewToken(t, noLimits))
	if status.Code(err) != codes.FailedPrecondition || codeOf(err) != fault.InvalidConfig {
		t.Errorf("join: %v, want %s", err, fault.InvalidConfig)
	}
	if d := document(t, cp); d["join"] != nil {
		t.Errorf("the document has a join section: %v", d)
	}
}

// Req: CF-013 CF-014 CF-016 CF-030 CF-031 CF-032 CF-040 CF-041
func TestWellKnownDocumentNamesTheRunningKeys(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	d := document(t, cp)
	join, gw := d["join"].(map[string]any), d["gateway"].(map[string]any)

	jwk, err := json.Marshal(join["encryptionJwk"])
	if err != nil {
		t.Fatal(err)
	}
	key, err := seal.ParseKey(jwk)
	if err != nil {
		t.Fatal(err)
	}
	p, err := key.Pin()
	if err != nil || join["encryptionKeyPin"] != p.String() || p != cp.Pins.JoinEncryption {
		t.Errorf("encryptionKeyPin %v, the JWK's is %v (%v)", join["encryptionKeyPin"], p, err)
	}
	var der []byte
	if err := json.Unmarshal([]byte(`"`+join["signingCertificate"].(string)+`"`), &der); err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	if s := pin.OfCertificate(c); join["signingKeyPin"] != s.String() || s != cp.Pins.JoinSigning {
		t.Errorf("signingKeyPin %v, the certificate's is %v", join["signingKeyPin"], s)
	}
	if gw["url"] != cp.GatewayURL || gw["servingCaPin"] != cp.Pins.ServingCA.String() {
		t.Errorf("gateway section %v", gw)
	}
	if len(join) != 4 {
		t.Errorf("join section has %d members, want 4", len(join))
	}
}

func document(t *testing.T, cp *controlplanetest.ControlPlane) (d map[string]any) {
	t.Helper()
	resp, err := http.Get(cp.Server().APIURL() + "/.well-known/better-compute")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestAGatewayOfAnotherCAIsNoGateway(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	other, err := pki.New(controlplanetest.TrustDomain, cp.Clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	url := cp.Gateway(t, func(o *gateway.Options) {
		if o.GetCertificate, err = other.GatewayCertificate([]string{"127.0.0.1"}, cp.Clock.Now); err != nil {
			t.Fatal(err)
		}
	})
	if err := newMachine(t, cp).join(url, cp.NewToken(t, noLimits)); status.Code(err) != codes.Unavailable {
		t.Errorf("join: %v, want no connection", err)
	}
}

func TestWriteConfig(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	dir := t.TempDir()
	path := cp.WriteConfig(t, dir, cp.GatewayURL, "data_dir = \"/x\"\n")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{cp.GatewayURL, cp.Site, cp.Pins.ServingCA.String(), cp.Pins.JoinSigning.String(), cp.Pins.JoinEncryption.String(), "data_dir"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("config.toml has no %q:\n%s", want, text)
		}
	}
	jwk, err := os.ReadFile(filepath.Join(dir, "join-encryption.jwk"))
	if err != nil {
		t.Fatal(err)
	}
	if key, err := seal.ParseKey(jwk); err != nil || !key.Public().Equal(cp.Bundle.Public().JoinEncryptionKey()) {
		t.Errorf("join-encryption.jwk: %v", err)
	}
}

func TestClock(t *testing.T) {
	var c controlplanetest.Clock
	if d := time.Until(c.Now()); d.Abs() > time.Minute {
		t.Errorf("the zero clock is off by %v", d)
	}
	at := time.Date(2076, 1, 2, 3, 4, 5, 0, time.UTC)
	c.Set(at)
	c.Advance(-time.Hour)
	if d := c.Now().Sub(at.Add(-time.Hour)); d < 0 || d > time.Minute {
		t.Errorf("the set clock is off by %v", d)
	}
}

func TestFaultsOfTheStoreReachTheCaller(t *testing.T) {
	full := errors.New("disk full")
	fail := false
	cp := controlplanetest.Start(t, controlplanetest.Options{AfterStep: func(step string) error {
		if fail && strings.Contains(step, "certificate") {
			return full
		}
		return nil
	}})
	token := cp.NewToken(t, noLimits)
	m := newMachine(t, cp)
	fail = true
	if err := m.join(cp.GatewayURL, token); status.Code(err) != codes.Unavailable {
		t.Errorf("join: %v, want UNAVAILABLE", err)
	}
	fail = false
	if err := m.join(cp.GatewayURL, token); err != nil {
		t.Errorf("the same join once there is room: %v", err)
	}
}

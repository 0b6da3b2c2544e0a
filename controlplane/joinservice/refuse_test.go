package joinservice_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/seal"
)

// refusalCase makes a request that must be refused.
type refusalCase struct {
	reason string
	// owner says that the token's tenant is told, and not the root tenant.
	owner bool
	// make prepares the world and returns the request and the token, if there is one. The token's tenant is w.other.
	make func(w *world, m *machine) (*joinv1.JoinRequest, token)
}

// ofOther makes the pool and its site the other tenant's, so that its stream is not the root tenant's.
func ofOther(w *world) {
	w.updatePool(func(p *store.Pool) { p.TenantID = w.other })
}

func (w *world) otherToken(m *machine, change ...func(*call)) (*joinv1.JoinRequest, token) {
	tok := w.token(inOther(w))
	return w.request(m, tok, change...), tok
}

func placeholder() *daemonv1.HardwareClaims {
	return &daemonv1.HardwareClaims{ProductUuid: "00000000-0000-0000-0000-000000000000", ProductSerial: "To Be Filled By O.E.M."}
}

var refusalCases = []refusalCase{
	{"join:request", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.raw = func(r *daemonv1.JoinRequest) { r.Body = []byte{0xff} } })
	}},
	{"join:request", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // the gateway changes a byte
		return w.otherToken(m, func(c *call) { c.raw = func(r *daemonv1.JoinRequest) { r.Body[len(r.Body)-1] ^= 1 } })
	}},
	{"join:request", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // another key signs
		return w.otherToken(m, func(c *call) { c.key = newMachine(w.t).key })
	}},
	{"join:request", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Protocol = 2 })
	}},
	{"join:request", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Role = strings.Repeat("x", 200) })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Csr = []byte("no CSR"); c.sealedFor = c.body.Csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // P-384
		key, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
		return w.otherToken(m, func(c *call) { c.body.Csr = newCSR(w.t, key); c.sealedFor = c.body.Csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // RSA
		key, _ := rsa.GenerateKey(rand.Reader, 2048)
		return w.otherToken(m, func(c *call) { c.body.Csr = newCSR(w.t, key); c.sealedFor = c.body.Csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // its own signature is broken
		csr := slices.Clone(m.csr)
		csr[len(csr)-1] ^= 1
		return w.otherToken(m, func(c *call) { c.body.Csr, c.sealedFor = csr, csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // too large
		csr, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{strings.Repeat("x", 5000)}}, m.key)
		return w.otherToken(m, func(c *call) { c.body.Csr, c.sealedFor = csr, csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // signed over SHA-1
		csr, _ := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA1}, m.key)
		return w.otherToken(m, func(c *call) { c.body.Csr, c.sealedFor = csr, csr })
	}},
	{"join:csr", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // more after it
		csr := append(slices.Clone(m.csr), 0)
		return w.otherToken(m, func(c *call) { c.body.Csr, c.sealedFor = csr, csr })
	}},
	{"join:claims", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Claims.Hostname = "bad\x1b[2Jname" })
	}},
	{"join:claims", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Claims.Macs = slices.Repeat([]string{"b4:96:91:a7:00:00"}, 65) })
	}},
	{"join:attestor", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Attestor = "tpm" })
	}},
	{"join:token", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.SealedToken = "garbage" })
	}},
	{"join:token", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // made for another CSR
		return w.otherToken(m, func(c *call) { c.sealedFor = newMachine(w.t).csr })
	}},
	{"join:token", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // for another recipient
		foreign, _ := pki.New("other.example.com", epoch)
		key, _ := seal.NewKey(foreign.JoinEncryption().PublicKey())
		tok := w.token(inOther(w))
		sealed, _ := seal.Seal(key, tok.bearer, m.csr, epoch)
		return w.request(m, tok, func(c *call) { c.body.SealedToken = sealed }), tok
	}},
	{"join-token:malformed", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.token = []byte("not a token") })
	}},
	{"join-token:unknown", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) {
			c.token = []byte("bcjt_jt_01k5w00000000000000000000x." + base64.RawURLEncoding.EncodeToString(make([]byte, 32)))
		})
	}},
	{"join-token:secret-mismatch", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		tok := w.token(inOther(w))
		return w.request(m, tok, func(c *call) { c.token = withSecret(tok, sha256.Sum256([]byte("guess"))) }), tok
	}},
	{"join-token:secret-mismatch", false, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // the stored digest
		tok := w.token(inOther(w))
		return w.request(m, tok, func(c *call) { c.token = withSecret(tok, tok.SecretSHA256) }), tok
	}},
	{"join-token:revoked", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		if _, err := w.tokens.Revoke(context.Background(), "key", w.other, w.pool, tok.ID); err != nil {
			w.t.Fatal(err)
		}
		return req, tok
	}},
	{"join-token:expired", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.clock.add(time.Hour)
		return req, tok
	}},
	{"join-token:exhausted", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.mustJoin(newMachine(w.t), tok)
		return req, tok
	}},
	{"join-token:role-mismatch", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, role("site"))
	}},
	{"join:node-id", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.NodeId = "node_01k5w00000000000000000000x" })
	}},
	{"join:expect", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		tok := w.token(inOther(w), expect(hwclaims.Expect{Serial: "SN-7701"}))
		return w.request(m, tok), tok
	}},
	{"join:expect", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // one of two identifiers
		tok := w.token(inOther(w), expect(hwclaims.Expect{Serial: m.claims.GetProductSerial(), MAC: "b4:96:91:ff:ff:fe"}))
		return w.request(m, tok), tok
	}},
	{"join:placeholder-hardware", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		return w.otherToken(m, func(c *call) { c.body.Claims = placeholder() })
	}},
	{"join:placeholder-hardware", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // no claims at all
		return w.otherToken(m, func(c *call) { c.body.Claims = nil })
	}},
	{"join:placeholder-hardware", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // untrusted: one class
		return w.otherToken(m, func(c *call) {
			c.body.Claims = &daemonv1.HardwareClaims{ProductUuid: m.claims.GetProductUuid()}
		})
	}},
	{"join:placeholder-hardware", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // neither UUID nor serial
		return w.otherToken(m, func(c *call) {
			c.body.Claims = &daemonv1.HardwareClaims{
				Macs: m.claims.GetMacs(), GpuUuids: []string{"GPU-8c1d2f3a-4b5c-6d7e-8f90-a1b2c3d4e5f6"},
			}
		})
	}},
	{"join:reclaim", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		w.mustJoin(m, w.token(inOther(w)))
		m.newKey(w.t)
		return w.otherToken(m)
	}},
	{"join:pool", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.updatePool(func(p *store.Pool) { p.Agent = store.AgentNone })
		return req, tok
	}},
	{"join:pool", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.updatePool(func(p *store.Pool) { p.ArchivedAt = epoch })
		return req, tok
	}},
	{"join:tenant", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.updatePool(func(p *store.Pool) { p.TenantID = w.root })
		return req, tok
	}},
	{"join:site", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.moveSite()
		return req, tok
	}},
	{"join:site", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // the machine's configuration
		return w.otherToken(m, func(c *call) { c.body.Site = "site_01k5w00000000000000000000x" })
	}},
	{"join:site", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) { // the gateway's sites
		return w.otherToken(m, func(c *call) { c.peer.GatewaySites = []string{"site_01k5w00000000000000000000x"} })
	}},
	{"join:pool-attestor", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		req, tok := w.otherToken(m)
		w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{"tpm"} })
		return req, tok
	}},
	{"join:replayed", true, func(w *world, m *machine) (*joinv1.JoinRequest, token) {
		w.mustJoin(m, w.token(inOther(w)))
		return w.otherToken(m) // the same CSR with another token
	}},
}

// Req: JF-004 JF-021 JF-024 JF-025 JF-026 JF-027 JF-032 JF-033 JF-068 JF-078 JF-084 RF-001 RF-002 RF-003 RF-004 RF-005 RF-006 RF-007 RF-008 RF-009 RF-013 RF-014 RF-015 RF-016 RF-017 RF-018 RF-019 RF-020 RF-021 RF-022 RF-023 RF-024 RF-025 RF-026 RF-028 RF-029 RF-031 RF-032 JT-007 JT-049 JT-066 JT-067 SE-009 SE-010 SE-013 HC-017 HC-018 HC-019 AT-002 NC-001
func TestRefusals(t *testing.T) {
	for _, c := range refusalCases {
		t.Run(c.reason, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			ofOther(w)
			serial := m.claims.GetProductSerial()
			req, tok := c.make(w, m)
			nodes, uses := len(w.nodes()), int64(0)
			if tok.ID != "" {
				uses = w.usesLeft(tok.ID)
			}
			receiver, bystander := w.root, w.other
			if c.owner {
				receiver, bystander = w.other, w.root
			}
			quiet := len(w.eventTypes(bystander))

			e := w.refusedJoin(req, receiver) // compares the answer's bytes

			if e.Reason != c.reason || e.Suppressed != 0 {
				t.Errorf("event %+v, want reason %q", e, c.reason)
			}
			if len(w.eventTypes(bystander)) != quiet {
				t.Error("another tenant was told")
			}
			if got := len(w.nodes()); got != nodes {
				t.Errorf("%d nodes, want %d", got, nodes)
			}
			if tok.ID != "" && w.usesLeft(tok.ID) != uses {
				t.Errorf("%d uses left, want %d", w.usesLeft(tok.ID), uses)
			}
			text, err := json.Marshal(e)
			if err != nil {
				t.Fatal(err)
			}
			for _, secret := range []string{serial, "b4:96", "rack-b7", "bcjt_", string(tok.bearer[5:])} {
				if strings.Contains(string(text), secret) {
					t.Errorf("the event holds %q: %s", secret, text)
				}
			}
		})
	}
}

// Req: RF-004 RF-006 RF-007
func TestRefusalEventHoldsHashes(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	tok := w.token(expect(hwclaims.Expect{Serial: "SN-7701"}))
	e := w.refusedJoin(w.request(m, tok), w.root)
	csr := sha256.Sum256(m.csr)
	key := hwclaims.Assess(hwclaims.Claims{
		ProductUUID: m.claims.GetProductUuid(), ProductSerial: m.claims.GetProductSerial(), MACs: m.claims.GetMacs(),
	}).HardwareKey
	want := events.JoinRefused{
		Attestor: "join-token", Reason: "join:expect", Role: "node",
		CSRSHA256: hex.EncodeToString(csr[:]), HardwareKey: hex.EncodeToString(key),
	}
	if e != want {
		t.Errorf("event %+v, want %+v", e, want)
	}
}

// A machine that asks for an attestor or a role of its own making cannot put its text into an event.
func TestRefusalEventHoldsNoForeignText(t *testing.T) {
	w := newWorld(t)
	e := w.refusedJoin(w.request(newMachine(t), w.token(), role("<script>"), func(c *call) { c.body.Attestor = "<script>" }), w.root)
	if e.Attestor != "unknown" || e.Role != "" {
		t.Errorf("event %+v", e)
	}
}

// Where two checks fail, the earlier one is the reason.
//
// Req: JF-021 JF-029 JF-030 JF-031 JF-032 JF-033 JF-083 JT-066
func TestChecksRunInOrder(t *testing.T) {
	// Each fault is added to those before it, latest check first, so that the newest must be the one that is named.
	faults := []struct {
		reason string
		add    func(w *world, c *call, tok *token)
	}{
		{"join:pool-attestor", func(w *world, _ *call, _ *token) {
			w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{"tpm"} })
		}},
		{"join:site", func(w *world, c *call, _ *token) { c.body.Site = "site_01k5w00000000000000000000x" }},
		{"join:tenant", func(w *world, _ *call, _ *token) { w.updatePool(func(p *store.Pool) { p.TenantID = w.root }) }},
		{"join:pool", func(w *world, _ *call, _ *token) { w.updatePool(func(p *store.Pool) { p.Agent = store.AgentNone }) }},
		{"join:reclaim", func(w *world, c *call, _ *token) {
			n := w.nodeRow("node_x", c.body.GetClaims())
			w.write(func(tx *store.Tx) error { return tx.InsertNode(n) })
		}},
		{"join:placeholder-hardware", func(_ *world, c *call, _ *token) { c.body.Claims = placeholder() }},
		{"join:expect", func(w *world, _ *call, tok *token) {
			e := hwclaims.Expect{Serial: "SN-7701"}
			*tok = w.token(inOther(w), expect(e))
		}},
		{"join:node-id", func(_ *world, c *call, _ *token) { c.body.NodeId = "node_y" }},
		{"join-token:role-mismatch", func(_ *world, c *call, _ *token) { c.body.Role = "site" }},
		{"join-token:exhausted", func(w *world, _ *call, tok *token) {
			w.write(func(tx *store.Tx) error { return tx.SpendToken(tok.ID) })
		}},
		{"join-token:expired", func(w *world, _ *call, _ *token) { w.clock.add(time.Hour) }},
		{"join-token:revoked", func(w *world, _ *call, tok *token) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeToken(tok.ID); return err })
		}},
		{"join-token:secret-mismatch", func(_ *world, c *call, tok *token) {
			c.token = withSecret(*tok, sha256.Sum256([]byte("guess")))
		}},
		{"join:token", func(w *world, c *call, _ *token) { c.sealedFor = newMachine(w.t).csr }},
		{"join:attestor", func(_ *world, c *call, _ *token) { c.body.Attestor = "tpm" }},
		{"join:claims", func(_ *world, c *call, _ *token) { c.body.Claims.Hostname = "\x00" }},
		{"join:request", func(w *world, c *call, _ *token) { c.key = newMachine(w.t).key }},
		{"join:csr", func(_ *world, c *call, _ *token) { c.body.Csr = []byte("no CSR") }},
	}
	for n := 1; n <= len(faults); n++ {
		want := faults[n-1].reason
		t.Run(want, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			ofOther(w)
			tok := w.token(inOther(w))
			// The faults that make another token must come before the request is made, and the clock's after the token was.
			c := &call{
				body: &daemonv1.JoinRequestBody{Csr: m.csr, Claims: m.claims, Role: "node", Site: w.site, Protocol: 1}, key: m.key,
			}
			if n > 6 { // expect comes with a token of its own, which a changed pool would not give
				faults[6].add(w, c, &tok)
			}
			for i, f := range faults[:n] {
				if i != 6 {
					f.add(w, c, &tok)
				}
			}
			req := w.request(m, tok, func(made *call) {
				made.body, made.key = c.body, c.key
				if c.token != nil {
					made.token = c.token
				}
				if c.sealedFor != nil {
					made.sealedFor = c.sealedFor
				}
			})
			_, err := w.svc.Join(t.Context(), req)
			if wire(t, err) != joinRefused {
				t.Fatalf("answer %v", err)
			}
			all := append(eventsOf[events.JoinRefused](w, w.other), eventsOf[events.JoinRefused](w, w.root)...)
			if len(all) != 1 || all[0].Reason != want {
				t.Errorf("events %+v, want reason %q", all, want)
			}
		})
	}
}

// Req: RF-027
func TestWithoutKeysEveryCallIsInvalidConfig(t *testing.T) {
	w := newWorld(t, func(o *joinservice.Options) { o.Keys = nil })
	_, join := w.svc.Join(t.Context(), w.request(newMachine(t), w.token()))
	_, renew := w.svc.Renew(t.Context(), &joinv1.RenewRequest{})
	_, challenge := w.svc.Challenge(t.Context(), &joinv1.ChallengeRequest{})
	for _, err := range []error{join, renew, challenge, w.svc.Session(&joinv1.SessionRequest{}, nil)} {
		wantCode(t, err, codes.FailedPrecondition, "JoinService has no keys")
		if !strings.Contains(wire(t, err), "INVALID_CONFIG") {
			t.Errorf("%v does not say INVALID_CONFIG", err)
		}
	}
	if len(w.slept) != 0 {
		t.Error("answered as a refusal")
	}
}

// Req: RF-011 RF-012 RF-033
func TestRefusalEventsAreLimited(t *testing.T) {
	w := newWorld(t)
	refuse := func(n int, change ...func(*call)) {
		req := w.request(newMachine(t), w.token(), change...)
		for range n {
			if _, err := w.svc.Join(t.Context(), req); wire(t, err) != joinRefused {
				t.Fatal(err)
			}
		}
	}
	refuse(100, role("site"))
	if got := len(eventsOf[events.JoinRefused](w, w.root)); got != 60 {
		t.Errorf("%d events, want 60", got)
	}
	refuse(1, func(c *call) { c.body.NodeId = "node_x" })              // another reason
	refuse(1, func(c *call) { c.body.Attestor = "tpm" })               // another attestor
	refuse(1, func(c *call) { c.body.Attestor = "made-up" }, role("")) // and one that shares its count
	if got := len(eventsOf[events.JoinRefused](w, w.root)); got != 63 {
		t.Errorf("%d events, want 63", got)
	}
	w.clock.add(time.Minute)
	refuse(2, role("site"))
	all := eventsOf[events.JoinRefused](w, w.root)
	if len(all) != 65 || all[63].Suppressed != 40 || all[64].Suppressed != 0 {
		t.Errorf("%d events, the last two suppressed %d and %d, want 65, 40 and 0", len(all), all[len(all)-2].Suppressed, all[len(all)-1].Suppressed)
	}
}

// Req: RF-010
func TestGuessesDoNotReachTheOwner(t *testing.T) {
	w := newWorld(t)
	ofOther(w)
	tok := w.token(inOther(w))
	before := len(w.eventTypes(w.other))
	for range 100 {
		req := w.request(newMachine(t), tok, func(c *call) { c.token = withSecret(tok, sha256.Sum256([]byte("guess"))) })
		if _, err := w.svc.Join(t.Context(), req); wire(t, err) != joinRefused {
			t.Fatal(err)
		}
	}
	if got := len(w.eventTypes(w.other)); got != before {
		t.Errorf("%d events reached the owner", got-before)
	}
}

// A refusal is answered on a grid from the call's arrival on, whatever the check cost.
//
// Req: RF-002
func TestRefusalsAreAnsweredOnTheGrid(t *testing.T) {
	for _, c := range []struct{ took, sleep time.Duration }{
		{0, 250 * time.Millisecond},
		{time.Millisecond, 249 * time.Millisecond},
		{250 * time.Millisecond, 0},
		{251 * time.Millisecond, 249 * time.Millisecond},
		{time.Second, 0},
		{-time.Hour, 250 * time.Millisecond}, // the clock was set back
	} {
		w := newWorld(t)
		req := w.request(newMachine(t), w.token(), role("site"))
		w.step = oneStep(func() { w.clock.add(c.took) })
		if _, err := w.svc.Join(t.Context(), req); wire(t, err) != joinRefused {
			t.Fatal(err)
		}
		if !slices.Equal(w.slept, []time.Duration{c.sleep}) {
			t.Errorf("after %v of work it slept %v, want %v", c.took, w.slept, c.sleep)
		}
	}
}

// A refusal takes no write lock before its event, and holds none while it waits.
func TestRefusalHoldsNoLock(t *testing.T) {
	var w *world
	w = newWorld(t, func(o *joinservice.Options) {
		o.Sleep = func(context.Context, time.Duration) error {
			w.write(func(tx *store.Tx) error { return tx.InsertTenant(store.Tenant{ID: "tn_z", Name: "z"}) })
			return nil
		}
	})
	var steps []string
	req := w.request(newMachine(t), w.token(), role("site"))
	w.step = func(s string) error { steps = append(steps, s); return nil }
	if _, err := w.svc.Join(t.Context(), req); wire(t, err) != joinRefused {
		t.Fatal(err)
	}
	if !slices.Equal(steps, []string{"publish security.join.refused", "insert the tenant"}) {
		t.Errorf("steps %q", steps)
	}
}

// A database that fails is no refusal: nothing is told, and the machine may try again.
func TestFailureIsNoRefusal(t *testing.T) {
	w := newWorld(t)
	req := w.request(newMachine(t), w.token())
	w.step = func(string) error { return errors.New("disk on fire") }
	_, err := w.svc.Join(t.Context(), req)
	wantCode(t, err, codes.Unavailable, "The control plane is not available")
	w.step = nil
	if got := len(eventsOf[events.JoinRefused](w, w.root)); got != 0 {
		t.Errorf("%d events", got)
	}
	if _, err := w.svc.Join(t.Context(), req); err != nil {
		t.Errorf("the retry: %v", err)
	}
}

func TestChallengeIsRefusedWithoutAnAttestor(t *testing.T) {
	w := newWorld(t)
	digest := sha256.Sum256([]byte("a CSR"))
	_, err := w.svc.Challenge(t.Context(), &joinv1.ChallengeRequest{Request: &daemonv1.ChallengeRequest{CsrSha256: digest[:]}})
	if wire(t, err) != joinRefused {
		t.Errorf("answer %v", err)
	}
	want := []events.JoinRefused{{Attestor: "unknown", Reason: "join:attestor", CSRSHA256: hex.EncodeToString(digest[:])}}
	if diff := cmp.Diff(want, eventsOf[events.JoinRefused](w, w.root)); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// The digest of a CSR that is not there would look like one.
func TestRefusalEventNamesNoCSRWhereThereIsNone(t *testing.T) {
	w := newWorld(t)
	if _, err := w.svc.Join(t.Context(), &joinv1.JoinRequest{}); wire(t, err) != joinRefused {
		t.Errorf("answer %v", err)
	}
	if _, err := w.svc.Renew(t.Context(), &joinv1.RenewRequest{}); err == nil {
		t.Error("an empty renewal was admitted")
	}
	joins, renewals := eventsOf[events.JoinRefused](w, w.root), eventsOf[events.RenewRefused](w, w.root)
	if len(joins) != 1 || joins[0].CSRSHA256 != "" || len(renewals) != 1 || renewals[0].CSRSHA256 != "" {
		t.Errorf("events %+v, %+v", joins, renewals)
	}
}

package joinservice_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/seal"
)

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

// clock is a clock that only tests move.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }

func (c *clock) add(d time.Duration) { c.mu.Lock(); defer c.mu.Unlock(); c.t = c.t.Add(d) }

// world is a control plane with a root tenant, a tenant, a site and a pool of the root tenant.
type world struct {
	t      testing.TB
	clock  *clock // nil in a bubble
	now    func() time.Time
	store  store.Store
	bundle *pki.Bundle
	svc    *joinservice.Service
	tokens *tokens.Service

	root, other string // tenants
	site        string
	pool        string

	mu    sync.Mutex
	slept []time.Duration
	step  func(string) error
}

var testBundle = sync.OnceValues(func() (*pki.Bundle, error) { return pki.New("compute.example.com", epoch) })

func newWorld(t testing.TB, change ...func(*joinservice.Options)) *world {
	t.Helper()
	c := &clock{t: epoch}
	return newWorldAt(t, t.TempDir(), c, c.now, change...)
}

// newBubble is a world on the clock of a synctest bubble. The directory is made outside it.
func newBubble(t testing.TB, dir string, change ...func(*joinservice.Options)) *world {
	t.Helper()
	return newWorldAt(t, dir, nil, time.Now, change...)
}

func newWorldAt(t testing.TB, dir string, c *clock, now func() time.Time, change ...func(*joinservice.Options)) *world {
	t.Helper()
	bundle, err := testBundle()
	if err != nil {
		t.Fatal(err)
	}
	template, err := testDatabase()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		t: t, clock: c, now: now, bundle: bundle,
		root: rootID, other: otherID, site: siteID, pool: poolID,
	}
	path := filepath.Join(dir, "control.db")
	if err := os.WriteFile(path, template, 0o600); err != nil {
		t.Fatal(err)
	}
	w.store, err = store.Open(t.Context(), store.Options{
		Path: path, Now: now,
		AfterStep: func(s string) error {
			w.mu.Lock()
			f := w.step
			w.mu.Unlock()
			if f == nil {
				return nil
			}
			return f(s)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	w.tokens = &tokens.Service{Store: w.store}
	o := joinservice.Options{
		Store: w.store, Keys: joinservice.KeysOf(bundle), RootTenant: w.root, Now: now,
		Sleep: func(_ context.Context, d time.Duration) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.slept = append(w.slept, d)
			return nil
		},
	}
	for _, c := range change {
		c(&o)
	}
	if w.svc, err = joinservice.New(o); err != nil {
		t.Fatal(err)
	}
	return w
}

var (
	rootID, otherID = store.NewID(store.PrefixTenant, epoch), store.NewID(store.PrefixTenant, epoch)
	siteID, poolID  = store.NewID(store.PrefixSite, epoch), store.NewID(store.PrefixPool, epoch)
)

// testDatabase is the file of a database with the world's tenants, site and pool: to copy it is quicker than to make it.
var testDatabase = sync.OnceValues(func() (_ []byte, err error) {
	dir, err := os.MkdirTemp("", "joinservice")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	path := filepath.Join(dir, "control.db")
	s, err := store.Open(context.Background(), store.Options{Path: path, Now: func() time.Time { return epoch }})
	if err != nil {
		return nil, err
	}
	err = s.Write(context.Background(), func(tx *store.Tx) error {
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: rootID, Name: "root"}),
			tx.InsertTenant(store.Tenant{ID: otherID, Name: "other"}),
			tx.InsertSite(store.Site{ID: siteID, TenantID: rootID, Name: "eu"}),
			tx.InsertPool(store.Pool{
				ID: poolID, TenantID: rootID, SiteID: siteID, Name: "metal", Agent: store.AgentBCD, Acceptance: true,
			}),
		)
	})
	if err := errors.Join(err, s.Close()); err != nil {
		return nil, err
	}
	return os.ReadFile(path)
})

func (w *world) write(fn func(*store.Tx) error) {
	w.t.Helper()
	if err := w.store.Write(context.Background(), fn); err != nil {
		w.t.Fatal(err)
	}
}

// updatePool changes the pool.
func (w *world) updatePool(change func(*store.Pool)) {
	w.t.Helper()
	w.write(func(tx *store.Tx) error {
		p, err := tx.Pool(w.pool)
		if err != nil {
			return err
		}
		change(&p)
		return tx.UpdatePool(p)
	})
}

func query[T any](w *world, fn func(*store.Tx) (T, error)) T {
	w.t.Helper()
	var v T
	err := w.store.Read(context.Background(), func(tx *store.Tx) (err error) { v, err = fn(tx); return err })
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) nodes() []store.Node {
	w.t.Helper()
	return query(w, func(tx *store.Tx) ([]store.Node, error) {
		a, err := tx.NodesOfTenant(w.root, "", 1000)
		if err != nil {
			return nil, err
		}
		b, err := tx.NodesOfTenant(w.other, "", 1000)
		return append(a, b...), err
	})
}

func (w *world) node(id string) store.Node {
	w.t.Helper()
	return query(w, func(tx *store.Tx) (store.Node, error) { return tx.Node(id) })
}

func (w *world) certs(nodeID string) []store.Cert {
	w.t.Helper()
	return query(w, func(tx *store.Tx) ([]store.Cert, error) { return tx.CertsOfNode(nodeID) })
}

func (w *world) usesLeft(id string) int64 {
	w.t.Helper()
	return query(w, func(tx *store.Tx) (store.Token, error) { return tx.Token(id) }).UsesLeft
}

// events returns the payloads of a tenant's events of the payload's type.
func eventsOf[P events.Payload](w *world, tenant string) []P {
	w.t.Helper()
	var zero P
	all := query(w, func(tx *store.Tx) ([]events.Event, error) { return tx.Events(tenant, 0, 10_000) })
	var out []P
	for _, e := range all {
		if e.Type != zero.EventType() {
			continue
		}
		var p P
		if err := json.Unmarshal(e.Data, &p); err != nil {
			w.t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

func (w *world) eventTypes(tenant string) []events.Type {
	w.t.Helper()
	all := query(w, func(tx *store.Tx) ([]events.Event, error) { return tx.Events(tenant, 0, 10_000) })
	var out []events.Type
	for _, e := range all {
		out = append(out, e.Type)
	}
	return out
}

// token is a join token with its bearer.
type token struct {
	store.Token
	bearer []byte
}

var keys int

func (w *world) token(change ...func(*tokens.CreateRequest)) token {
	w.t.Helper()
	keys++
	r := tokens.CreateRequest{TenantID: w.root, PoolID: w.pool, TTL: time.Hour, IdempotencyKey: fmt.Sprint(keys)}
	for _, c := range change {
		c(&r)
	}
	made, bearer, err := w.tokens.Create(context.Background(), "key_test", r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token{made, bearer.Bytes()}
}

func uses(n int64) func(*tokens.CreateRequest) {
	return func(r *tokens.CreateRequest) { r.MaxUses = &n }
}

func expect(e hwclaims.Expect) func(*tokens.CreateRequest) {
	return func(r *tokens.CreateRequest) { r.Expect = &e }
}

func allowReclaim(r *tokens.CreateRequest) { r.AllowReclaim = true }

func hosted(r *tokens.CreateRequest) { r.Hosted = tokens.HostedKubernetes }

func (w *world) issue(r tokens.IssueRequest) token {
	w.t.Helper()
	r.TTL, r.IssuedBy = time.Hour, "module"
	made, bearer, err := w.tokens.Issue(context.Background(), r)
	if err != nil {
		w.t.Fatal(err)
	}
	return token{made, bearer.Bytes()}
}

// machine is hardware with a key.
type machine struct {
	claims *daemonv1.HardwareClaims
	key    *ecdsa.PrivateKey
	csr    []byte
}

var machines int

// newMachine returns hardware that no other test machine is.
func newMachine(t testing.TB) *machine {
	machines++
	m := &machine{claims: &daemonv1.HardwareClaims{
		ProductUuid:   fmt.Sprintf("9f0c2b1e-7a44-4d3c-b1a5-3ca82a1f%04x", machines),
		ProductSerial: fmt.Sprintf("B7T%04XQ", machines),
		Macs:          []string{fmt.Sprintf("b4:96:91:a7:%02x:%02x", machines>>8, machines&0xff)},
		Hostname:      "rack-b7",
	}}
	m.newKey(t)
	return m
}

func (m *machine) newKey(t testing.TB) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	m.key, m.csr = key, newCSR(t, key)
}

func newCSR(t testing.TB, key any) []byte {
	t.Helper()
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		// What a CSR says beside its key is not believed.
		Subject: pkix.Name{OrganizationalUnit: []string{"bc-role:site"}}, DNSNames: []string{"evil.example.com"},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// call is a Join in the making.
type call struct {
	body  *daemonv1.JoinRequestBody
	key   crypto.Signer
	peer  *joinv1.Peer
	token []byte // nil is none
	// sealedFor is the CSR that the token is sealed for.
	sealedFor []byte
	// raw, if set, changes the signed request.
	raw func(*daemonv1.JoinRequest)
}

// request returns the Join of a machine with a token.
func (w *world) request(m *machine, tok token, change ...func(*call)) *joinv1.JoinRequest {
	w.t.Helper()
	c := &call{
		body: &daemonv1.JoinRequestBody{
			Csr: m.csr, Claims: m.claims, Role: "node", Site: w.site, Protocol: 1, AgentVersion: "0.1.0",
		},
		key: m.key, peer: &joinv1.Peer{Address: "192.0.2.1"}, token: tok.bearer, sealedFor: m.csr,
	}
	for _, f := range change {
		f(c)
	}
	if c.body.SealedToken == "" && c.token != nil {
		key, err := seal.NewKey(w.bundle.JoinEncryption().PublicKey())
		if err != nil {
			w.t.Fatal(err)
		}
		if c.body.SealedToken, err = seal.Seal(key, c.token, c.sealedFor, w.now()); err != nil {
			w.t.Fatal(err)
		}
	}
	raw, err := proto.Marshal(c.body)
	if err != nil {
		w.t.Fatal(err)
	}
	sig, err := signing.Sign(c.key, signing.JoinRequest, raw)
	if err != nil {
		w.t.Fatal(err)
	}
	req := &daemonv1.JoinRequest{Body: raw, Sig: sig}
	if c.raw != nil {
		c.raw(req)
	}
	return &joinv1.JoinRequest{Peer: c.peer, Request: req}
}

func role(r string) func(*call) { return func(c *call) { c.body.Role = r } }

func (w *world) join(m *machine, tok token, change ...func(*call)) (*daemonv1.Admission, error) {
	w.t.Helper()
	req := w.request(m, tok, change...)
	resp, err := w.svc.Join(context.Background(), req)
	if err != nil {
		return nil, err
	}
	return w.open(req, resp), nil
}

// open verifies a response as a daemon does and returns what it admits to; a deferral admits to nothing.
func (w *world) open(req *joinv1.JoinRequest, resp *daemonv1.JoinResponse) *daemonv1.Admission {
	w.t.Helper()
	return w.openBody(req, resp).GetAdmission()
}

func (w *world) openBody(req *joinv1.JoinRequest, resp *daemonv1.JoinResponse) *daemonv1.JoinResponseBody {
	w.t.Helper()
	cert, err := x509.ParseCertificate(resp.GetSig().GetCertificate())
	if err != nil {
		w.t.Fatal(err)
	}
	if !cert.Equal(w.bundle.Public().JoinSigningCertificate()) {
		w.t.Error("signed by another certificate")
	}
	if err := signing.Verify(cert.PublicKey, signing.JoinResponse, resp.GetBody(), resp.GetSig().GetSignature()); err != nil {
		w.t.Error(err)
	}
	var body daemonv1.JoinResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
		w.t.Fatal(err)
	}
	if digest := sha256.Sum256(req.GetRequest().GetBody()); string(body.GetRequestSha256()) != string(digest[:]) {
		w.t.Error("the response belongs to another request")
	}
	if body.GetServerTimeUnixMs() != w.now().UnixMilli() {
		w.t.Error("server_time is not the control plane's")
	}
	return &body
}

// mustAdmit sends a Join and returns the admission.
func (w *world) mustAdmit(req *joinv1.JoinRequest) *daemonv1.Admission {
	w.t.Helper()
	resp, err := w.svc.Join(context.Background(), req)
	if err != nil {
		w.t.Fatalf("join: %v%s", err, w.lastRefusal())
	}
	a := w.open(req, resp)
	if a == nil {
		w.t.Fatal("the join is deferred")
	}
	return a
}

// mustJoin joins and returns the admission.
func (w *world) mustJoin(m *machine, tok token, change ...func(*call)) *daemonv1.Admission {
	w.t.Helper()
	return w.mustAdmit(w.request(m, tok, change...))
}

func (w *world) lastRefusal() string {
	for _, tenant := range []string{w.root, w.other} {
		if all := eventsOf[events.JoinRefused](w, tenant); len(all) > 0 {
			return " (" + all[len(all)-1].Reason + ")"
		}
	}
	return ""
}

// refusedJoin runs a Join that must be refused, and returns the reason and whether the event went to the tenant.
func (w *world) refusedJoin(req *joinv1.JoinRequest, tenant string) events.JoinRefused {
	w.t.Helper()
	before := len(eventsOf[events.JoinRefused](w, tenant))
	_, err := w.svc.Join(context.Background(), req)
	if got, want := wire(w.t, err), joinRefused; got != want {
		w.t.Errorf("answer %q, want %q", got, want)
	}
	all := eventsOf[events.JoinRefused](w, tenant)
	if len(all) != before+1 {
		w.t.Fatalf("%d events of refusal for the tenant, want 1%s", len(all)-before, w.lastRefusal())
	}
	return all[before]
}

// joinRefused is the answer to every refused join, as the bytes of google.rpc.Status.
const joinRefused = "\b\a\x12\fJoin refused\x1aK\n(type.googleapis.com/google.rpc.ErrorInfo\x12\x1f\n\rACCESS_DENIED\x12\x0ebetter-compute"

func wire(t testing.TB, err error) string {
	t.Helper()
	b, merr := proto.MarshalOptions{Deterministic: true}.Marshal(status.Convert(err).Proto())
	if merr != nil {
		t.Fatal(merr)
	}
	return string(b)
}

func wantCode(t testing.TB, err error, code codes.Code, message string) {
	t.Helper()
	if s := status.Convert(err); s.Code() != code || s.Message() != message {
		t.Errorf("answer %v %q, want %v %q", s.Code(), s.Message(), code, message)
	}
}

func leafOf(t testing.TB, a *daemonv1.Admission) *x509.Certificate {
	t.Helper()
	if len(a.GetChain()) == 0 {
		t.Fatal("no chain")
	}
	leaf, err := x509.ParseCertificate(a.GetChain()[0])
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// inOther asks for the token as the other tenant, which owns the pool.
func inOther(w *world) func(*tokens.CreateRequest) {
	return func(r *tokens.CreateRequest) { r.TenantID = w.other }
}

// withSecret returns the token's bearer with another secret.
func withSecret(tok token, secret [32]byte) []byte {
	id, _, _ := bytes.Cut(tok.bearer, []byte("."))
	return append(append(bytes.Clone(id), '.'), base64.RawURLEncoding.EncodeToString(secret[:])...)
}

// moveSite moves the pool to a new site of the root tenant and returns the site.
func (w *world) moveSite() string {
	id := store.NewID(store.PrefixSite, epoch)
	w.write(func(tx *store.Tx) error {
		return tx.InsertSite(store.Site{ID: id, TenantID: w.root, Name: "us"})
	})
	w.updatePool(func(p *store.Pool) { p.SiteID = id })
	return id
}

// nodeRow is a node of the machine with the claims, as if it had joined.
func (w *world) nodeRow(id string, c *daemonv1.HardwareClaims) store.Node {
	claims := hwclaims.Claims{ProductUUID: c.GetProductUuid(), ProductSerial: c.GetProductSerial(), MACs: c.GetMacs()}
	a := hwclaims.Assess(claims)
	return store.Node{
		ID: id, TenantID: w.root, PoolID: w.pool, SiteID: w.site, Role: "node", State: store.NodeAdopted,
		Trust: store.TrustPlatform, IdentityGeneration: 1, HardwareKey: a.HardwareKey, HardwareKeyTrusted: a.Trusted, Claims: claims,
	}
}

// oneStep calls f at the first step only.
func oneStep(f func()) func(string) error {
	var once sync.Once
	return func(string) error { once.Do(f); return nil }
}

// failEachStep sends a join once for each statement of its transaction, which fails there: each time nothing is left behind.
// It returns the statements in their order, after the try that met no fault, whose answer stands.
func (w *world) failEachStep(req *joinv1.JoinRequest) (failed []string) {
	w.t.Helper()
	before := w.dump()
	for n := 1; ; n++ {
		left := n
		w.step = func(step string) error {
			if left--; left == 0 {
				failed = append(failed, step)
				return errors.New("power cut")
			}
			return nil
		}
		_, err := w.svc.Join(w.t.Context(), req)
		w.step = nil
		if err == nil {
			return failed
		}
		wantCode(w.t, err, codes.Unavailable, "The control plane is not available")
		if after := w.dump(); after != before {
			w.t.Fatalf("after a fault at %q:\n%s\nbefore:\n%s", failed[n-1], after, before)
		}
	}
}

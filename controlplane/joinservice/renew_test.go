package joinservice_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/signing"
)

// renewRefused is the answer to every refused renewal, as the bytes of google.rpc.Status.
var renewRefused = strings.Replace(joinRefused, "\fJoin refused", "\rRenew refused", 1)

// member is a machine that joined: its key and its certificate.
type member struct {
	nodeID string
	key    *ecdsa.PrivateKey
	leaf   []byte
}

func (w *world) member(change ...func(*call)) *member {
	w.t.Helper()
	m := newMachine(w.t)
	a := w.mustJoin(m, w.token(), change...)
	return &member{nodeID: a.GetNodeId(), key: m.key, leaf: a.GetChain()[0]}
}

// renewCall is a Renew in the making.
type renewCall struct {
	csr        []byte
	chain      [][]byte
	peer       []byte
	nodeID     string
	clientTime time.Time
	signer     *ecdsa.PrivateKey
	purpose    signing.Purpose
	sig        func([]byte) []byte
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) renewal(m *member, next *ecdsa.PrivateKey, change ...func(*renewCall)) (*joinv1.RenewRequest, []byte) {
	w.t.Helper()
	c := &renewCall{
		csr: newCSR(w.t, next), chain: [][]byte{m.leaf}, peer: m.leaf, nodeID: m.nodeID, clientTime: w.clock.now(),
		signer: m.key, purpose: signing.RenewPoP,
	}
	for _, f := range change {
		f(c)
	}
	pop := signing.PoP(sha256.Sum256(c.csr), c.clientTime, c.nodeID)
	sig, err := signing.Sign(c.signer, c.purpose, pop)
	if err != nil {
		w.t.Fatal(err)
	}
	if c.sig != nil {
		sig = c.sig(sig)
	}
	return &joinv1.RenewRequest{
		Peer:    &joinv1.Peer{Certificate: c.peer},
		Request: &daemonv1.RenewRequest{Csr: c.csr, Chain: c.chain, ClientTimeUnixMs: c.clientTime.UnixMilli(), PopSig: sig},
	}, pop
}

// renew renews and returns the next member; it verifies the answer as a daemon does.
func (w *world) renew(m *member, change ...func(*renewCall)) (*member, error) {
	w.t.Helper()
	next := newKey(w.t)
	req, pop := w.renewal(m, next, change...)
	resp, err := w.svc.Renew(context.Background(), req)
	if err != nil {
		return nil, err
	}
	a := w.openRenew(req, pop, resp)
	return &member{nodeID: a.GetNodeId(), key: next, leaf: a.GetChain()[0]}, nil
}

func (w *world) openRenew(req *joinv1.RenewRequest, pop []byte, resp *daemonv1.RenewResponse) *daemonv1.Admission {
	w.t.Helper()
	cert, err := x509.ParseCertificate(resp.GetSig().GetCertificate())
	if err != nil {
		w.t.Fatal(err)
	}
	if !cert.Equal(w.bundle.Public().JoinSigningCertificate()) {
		w.t.Error("signed by another certificate")
	}
	if err := signing.Verify(cert.PublicKey, signing.RenewResponse, resp.GetBody(), resp.GetSig().GetSignature()); err != nil {
		w.t.Error(err)
	}
	var body daemonv1.RenewResponseBody
	if err := proto.Unmarshal(resp.GetBody(), &body); err != nil {
		w.t.Fatal(err)
	}
	digest, csr := sha256.Sum256(pop), sha256.Sum256(req.GetRequest().GetCsr())
	if !bytes.Equal(body.GetRequestSha256(), digest[:]) || !bytes.Equal(body.GetAdmission().GetCsrSha256(), csr[:]) ||
		body.GetServerTimeUnixMs() != w.clock.now().UnixMilli() {
		w.t.Error("the answer belongs to another request")
	}
	return body.GetAdmission()
}

func (w *world) mustRenew(m *member, change ...func(*renewCall)) *member {
	w.t.Helper()
	next, err := w.renew(m, change...)
	if err != nil {
		all := append(eventsOf[events.RenewRefused](w, w.root), eventsOf[events.RenewRefused](w, w.other)...)
		w.t.Fatalf("renew: %v %+v", err, all)
	}
	return next
}

// refusedRenew runs a Renew that must be refused and told to the tenant.
func (w *world) refusedRenew(req *joinv1.RenewRequest, tenant string) events.RenewRefused {
	w.t.Helper()
	before := len(eventsOf[events.RenewRefused](w, tenant))
	slept := len(w.slept)
	_, err := w.svc.Renew(context.Background(), req)
	if got := wire(w.t, err); got != renewRefused {
		w.t.Errorf("answer %q, want %q", got, renewRefused)
	}
	if len(w.slept) != slept+1 {
		w.t.Error("not answered on the grid")
	}
	all := eventsOf[events.RenewRefused](w, tenant)
	if len(all) != before+1 {
		w.t.Fatalf("%d events for the tenant, want 1", len(all)-before)
	}
	return all[before]
}

// Req: RN-022 RN-023 RN-024 RN-025 RN-031 RN-033 NC-017 NC-018
func TestRenewKeepsWhatTheCertificateSays(t *testing.T) {
	w := newWorld(t, shortening)
	m := w.member()
	w.clock.add(6 * time.Minute)
	next := w.mustRenew(m)
	old, err := x509.ParseCertificate(m.leaf)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(next.leaf)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(leaf.Subject.OrganizationalUnit, old.Subject.OrganizationalUnit) || len(leaf.URIs) != 1 ||
		leaf.URIs[0].String() != old.URIs[0].String() || next.nodeID != m.nodeID {
		t.Errorf("subject %v, URIs %v", leaf.Subject, leaf.URIs)
	}
	if !next.key.PublicKey.Equal(leaf.PublicKey) {
		t.Error("another key")
	}
	if got := leaf.NotAfter.Sub(leaf.NotBefore); got != 10*time.Minute { // the attestor's bound stays
		t.Errorf("lifetime %v", got)
	}
	certs := w.certs(m.nodeID)
	if len(certs) != 2 {
		t.Fatalf("%d rows", len(certs))
	}
	c := certs[1]
	if c.Predecessor != certs[0].Serial || c.Generation != 1 || c.Role != "node" || !slices.Equal(c.AllowedKinds, []string{"disk.*"}) ||
		!bytes.Equal(c.DER, next.leaf) || certs[0].FirstUsedAt.IsZero() || !c.FirstUsedAt.IsZero() {
		t.Errorf("rows %+v", certs)
	}
	w.mustRenew(next)
}

// Each fault alone is the reason, and with later faults beside it still is.
//
// Req: RN-008 RN-010 RN-011 RN-012 RN-013 RN-014 RN-015 RN-016 RN-017 RN-018 RN-019 RN-027 RN-034 RN-035 RN-036 RN-037 RN-038 RN-045 NC-018
func TestRenewRefusalsInOrder(t *testing.T) {
	faults := []struct {
		reason string
		owner  bool
		add    func(w *world, m *member, c *renewCall)
	}{
		{"csr", true, func(w *world, _ *member, c *renewCall) { c.csr = []byte("no CSR") }},
		{"key-attestation-missing", true, func(w *world, m *member, _ *renewCall) {}}, // see below
		{"identity-mismatch", true, func(w *world, _ *member, c *renewCall) { c.peer = w.member().leaf }},
		{"retired", true, func(w *world, m *member, _ *renewCall) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(m.nodeID, store.NodeRetired) })
		}},
		{"generation", true, func(w *world, m *member, _ *renewCall) {
			w.write(func(tx *store.Tx) error {
				n, err := tx.Node(m.nodeID)
				if err != nil {
					return err
				}
				n.IdentityGeneration++
				return tx.ReclaimNode(n)
			})
		}},
		{"expired", true, func(w *world, _ *member, c *renewCall) {
			w.clock.add(24 * time.Hour)
			c.clientTime = w.clock.now()
		}},
		{"revoked", true, func(w *world, m *member, _ *renewCall) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(m.nodeID, 1, "operator"); return err })
		}},
		{"client-time", true, func(w *world, _ *member, c *renewCall) { c.clientTime = w.clock.now().Add(61 * time.Second) }},
		{"pop", false, func(w *world, _ *member, c *renewCall) { c.signer = newKey(w.t) }},
		{"unknown-certificate", false, func(w *world, m *member, c *renewCall) { c.chain = [][]byte{foreignLeaf(w, m)} }},
	}
	for n := 1; n <= len(faults); n++ {
		for _, alone := range []bool{true, false} {
			want := faults[n-1]
			name := want.reason
			if !alone {
				name += " first"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				ofOther(w)
				var m *member
				// A leaf that names an attestation key, and no attestation.
				statements := want.reason == "key-attestation-missing" || !alone && n > 2
				if statements {
					m = w.memberWithStatement()
				} else {
					m = w.memberOf(w.other)
				}
				req, _ := w.renewal(m, newKey(t), func(c *renewCall) {
					from := 0
					if alone {
						from = n - 1
					}
					for _, f := range faults[from:n] {
						if f.reason == "identity-mismatch" {
							c.peer = w.memberOf(w.other).leaf
							continue
						}
						f.add(w, m, c)
					}
				})
				tenant := w.root
				if want.owner {
					tenant = w.other
				}
				e := w.refusedRenew(req, tenant)
				if e.Reason != want.reason {
					t.Errorf("reason %q, want %q", e.Reason, want.reason)
				}
				if (e.NodeID != "") != (want.reason != "unknown-certificate") {
					t.Errorf("event %+v", e)
				}
			})
		}
	}
}

func (w *world) memberOf(tenant string) *member {
	w.t.Helper()
	m := newMachine(w.t)
	a := w.mustJoin(m, w.token(inOther(w)))
	if w.node(a.GetNodeId()).TenantID != tenant {
		w.t.Fatal("another tenant's node")
	}
	return &member{nodeID: a.GetNodeId(), key: m.key, leaf: a.GetChain()[0]}
}

// memberWithStatement is a node of the other tenant whose certificate names a TPM's attestation key.
func (w *world) memberWithStatement() *member {
	w.t.Helper()
	statement := "urn:bc:tpm-ak:sha256:" + strings.Repeat("ab", 32)
	m := newMachine(w.t)
	n := w.nodeRow(store.NewID(store.PrefixNode, epoch), m.claims)
	n.TenantID = w.other
	leaf, err := w.bundle.IssueNode(pki.NodeRequest{
		Site: w.site, Node: n.ID, Role: "node", Statements: []string{statement}, Key: &m.key.PublicKey, Now: epoch, Lifetime: 24 * time.Hour,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(func(tx *store.Tx) error {
		return errors.Join(tx.InsertNode(n), tx.InsertCert(store.Cert{
			Serial: leaf.SerialNumber.Text(16), NodeID: n.ID, Generation: 1, Role: "node", DER: leaf.Raw,
			SPKISHA256: sha256.Sum256(leaf.RawSubjectPublicKeyInfo), CSRSHA256: sha256.Sum256(m.csr),
			Statements: []string{statement}, NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
		}))
	})
	return &member{nodeID: n.ID, key: m.key, leaf: leaf.Raw}
}

// foreignLeaf is a certificate of the node's CA, key and serial that JoinService did not issue.
func foreignLeaf(w *world, m *member) []byte {
	leaf, err := w.bundle.IssueNode(pki.NodeRequest{
		Site: w.site, Node: m.nodeID, Role: "node", Key: &m.key.PublicKey, Now: epoch, Lifetime: time.Hour,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return leaf.Raw
}

// Req: RN-008 RN-010 RN-011 RN-016 RN-018 RN-045
func TestRenewIsBoundToItsRequest(t *testing.T) {
	w := newWorld(t)
	m, other := w.member(), w.member()
	for name, c := range map[string]struct {
		reason string
		change func(*joinv1.RenewRequest)
	}{
		"another CSR":             {"pop", func(r *joinv1.RenewRequest) { r.Request.Csr = newCSR(t, newKey(t)) }},
		"another time":            {"pop", func(r *joinv1.RenewRequest) { r.Request.ClientTimeUnixMs++ }},
		"another node's chain":    {"pop", func(r *joinv1.RenewRequest) { r.Request.Chain = [][]byte{other.leaf} }},
		"no chain":                {"unknown-certificate", func(r *joinv1.RenewRequest) { r.Request.Chain = nil }},
		"garbage for a chain":     {"unknown-certificate", func(r *joinv1.RenewRequest) { r.Request.Chain = [][]byte{{1, 2, 3}} }},
		"no client certificate":   {"identity-mismatch", func(r *joinv1.RenewRequest) { r.Peer.Certificate = nil }},
		"another node's identity": {"identity-mismatch", func(r *joinv1.RenewRequest) { r.Peer.Certificate = other.leaf }},
		"unknown identity":        {"identity-mismatch", func(r *joinv1.RenewRequest) { r.Peer.Certificate = foreignLeaf(w, m) }},
	} {
		req, _ := w.renewal(m, newKey(t))
		c.change(req)
		if e := w.refusedRenew(req, w.root); e.Reason != c.reason {
			t.Errorf("%s: reason %q, want %q", name, e.Reason, c.reason)
		}
	}
	req, _ := w.renewal(m, newKey(t), func(c *renewCall) { c.purpose = signing.X509PoP })
	if e := w.refusedRenew(req, w.root); e.Reason != "pop" {
		t.Errorf("another purpose: reason %q", e.Reason)
	}
	// A byte of the row's certificate, changed where it still parses: the signature's last.
	forged := bytes.Clone(m.leaf)
	forged[len(forged)-1] ^= 1
	req, _ = w.renewal(m, newKey(t), func(c *renewCall) { c.chain = [][]byte{forged} })
	if e := w.refusedRenew(req, w.root); e.Reason != "unknown-certificate" {
		t.Errorf("another byte: reason %q", e.Reason)
	}
}

// Req: RN-017
func TestRenewClientTimeWithinAMinute(t *testing.T) {
	for _, d := range []time.Duration{-60 * time.Second, -59 * time.Second, 60 * time.Second} {
		w := newWorld(t)
		w.mustRenew(w.member(), func(c *renewCall) { c.clientTime = c.clientTime.Add(d) })
	}
	w := newWorld(t)
	m := w.member()
	for _, d := range []time.Duration{-60*time.Second - time.Millisecond, -61 * time.Second, 61 * time.Second, 1 << 62} {
		req, _ := w.renewal(m, newKey(t), func(c *renewCall) { c.clientTime = c.clientTime.Add(d) })
		if e := w.refusedRenew(req, w.root); e.Reason != "client-time" {
			t.Errorf("%v: reason %q", d, e.Reason)
		}
	}
}

// A proof is good once, whichever of its two signatures carries it.
//
// Req: RN-018
func TestRenewProofIsGoodOnce(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	req, _ := w.renewal(m, newKey(t), func(c *renewCall) { c.clientTime = w.clock.now().Add(time.Minute) })
	if _, err := w.svc.Renew(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	req.Request.PopSig = twin(t, req.Request.GetPopSig())
	if e := w.refusedRenew(req, w.root); e.Reason != "replay" {
		t.Errorf("at once: reason %q", e.Reason)
	}
	w.clock.add(120 * time.Second)
	if e := w.refusedRenew(req, w.root); e.Reason != "replay" {
		t.Errorf("after 120 s: reason %q", e.Reason)
	}
	w.clock.add(time.Second)
	if e := w.refusedRenew(req, w.root); e.Reason != "client-time" {
		t.Errorf("after 121 s: reason %q", e.Reason)
	}
}

// twin returns the other signature (r, n-s) of the same input.
func twin(t *testing.T, sig []byte) []byte {
	t.Helper()
	var rs struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(sig, &rs); err != nil {
		t.Fatal(err)
	}
	rs.S = new(big.Int).Sub(elliptic.P256().Params().N, rs.S)
	out, err := asn1.Marshal(rs)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A lost answer costs nothing: the same leaf and CSR get the same certificate, for a proof of its own.
func TestRenewIsIdempotent(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	next := newKey(t)
	csr := newCSR(t, next)
	same := func(c *renewCall) { c.csr = csr }
	req, pop := w.renewal(m, next, same)
	resp, err := w.svc.Renew(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	first := w.openRenew(req, pop, resp)
	w.clock.add(time.Second)
	req, pop = w.renewal(m, next, same)
	if resp, err = w.svc.Renew(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	second := w.openRenew(req, pop, resp)
	if !bytes.Equal(first.GetChain()[0], second.GetChain()[0]) || len(w.certs(m.nodeID)) != 2 {
		t.Error("another certificate")
	}
	// What was revoked meanwhile is not given out again.
	w.write(func(tx *store.Tx) error {
		c, err := tx.Cert(leafOf(t, first).SerialNumber.Text(16))
		if err != nil {
			return err
		}
		return tx.RevokeCert(&c, "operator")
	})
	w.clock.add(time.Second)
	req, _ = w.renewal(m, next, same)
	if e := w.refusedRenew(req, w.root); e.Reason != "revoked" {
		t.Errorf("reason %q", e.Reason)
	}
}

// A key that ever had a certificate is no next key: not the current one, not another node's.
func TestRenewNeedsANewKey(t *testing.T) {
	w := newWorld(t)
	m, other := w.member(), w.member()
	for _, key := range []*ecdsa.PrivateKey{m.key, other.key} {
		req, _ := w.renewal(m, key)
		if e := w.refusedRenew(req, w.root); e.Reason != "csr" {
			t.Errorf("reason %q", e.Reason)
		}
	}
}

// Both certificates are good until the new one is used; a renewal of the old one after that is told.
func TestForkedRenewalIsTold(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	next := w.mustRenew(m)
	w.mustRenew(m) // the answer was lost, and the key with it: no fork while nothing is in use
	if got := eventsOf[events.RenewForked](w, w.root); len(got) != 0 {
		t.Errorf("events %+v", got)
	}
	w.mustRenew(next) // first use
	forked := w.mustRenew(m)
	serial := func(m *member) string {
		c, err := x509.ParseCertificate(m.leaf)
		if err != nil {
			t.Fatal(err)
		}
		return c.SerialNumber.Text(16)
	}
	want := []events.RenewForked{{NodeID: m.nodeID, Serial: serial(m), Successor: serial(next), Forked: serial(forked)}}
	if got := eventsOf[events.RenewForked](w, w.root); !slices.Equal(got, want) {
		t.Errorf("events %+v, want %+v", got, want)
	}
}

// Every statement of the renewal's transaction is failed in turn; nothing is left, and the next try is good.
func TestRenewalIsAllOrNothing(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	for n := 1; ; n++ {
		left := n
		w.step = func(string) error {
			if left--; left == 0 {
				return errors.New("power cut")
			}
			return nil
		}
		w.clock.add(time.Second)
		_, err := w.renew(m)
		w.step = nil
		if err == nil {
			if n != 5 { // two of the proof, the old certificate's first use, the new certificate
				t.Errorf("%d steps", n-1)
			}
			return
		}
		wantCode(t, err, codes.Unavailable, "The control plane is not available")
		if certs := w.certs(m.nodeID); len(certs) != 1 || !certs[0].FirstUsedAt.IsZero() {
			t.Fatalf("after a fault at step %d: %+v", n, certs)
		}
	}
}

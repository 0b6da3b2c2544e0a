package joinservice_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/approvals"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/nodes"
	"github.com/better-compute/bcd/controlplane/pki"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/tpmkey"
	"github.com/better-compute/bcd/tpmkey/tpmkeytest"
)

// Req: JF-015 NC-012
func TestAListedTPMJoinsWithoutAToken(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	req := w.newTPMJoin(m)
	a := w.mustAdmit(req)
	leaf := leafOf(t, a)
	if len(leaf.URIs) != 2 || leaf.URIs[1].String() != m.statement() {
		t.Errorf("URIs %v, want %q second", leaf.URIs, m.statement())
	}
	n := w.node(a.GetNodeId())
	ek := m.ek()
	if !bytes.Equal(n.EKSHA256, ek[:]) || !n.HardwareKeyTrusted || n.PoolID != w.pool || n.IdentityGeneration != 1 || n.Trust != store.TrustPlatform {
		t.Errorf("node %+v", n)
	}
	c := w.certs(n.ID)
	if len(c) != 1 || !slices.Equal(c[0].Statements, []string{m.statement()}) {
		t.Errorf("certificates %+v", c)
	}
	want := events.NodeJoined{
		NodeID: n.ID, PoolID: w.pool, SiteID: w.site, Role: "node", Attestor: "tpm", HardwareKeyTrusted: true, Serial: c[0].Serial,
		IdentityGeneration: 1, NodeKey: "tpm", EKSHA256: m.ekText(),
	}
	if joined := eventsOf[events.NodeJoined](w, w.root); len(joined) != 1 || joined[0] != want {
		t.Errorf("events %+v, want %+v", joined, want)
	}
	audit := query(w, func(tx *store.Tx) ([]events.Audit, error) { return tx.Audit(w.root, "", 10) })
	if len(audit) != 1 || audit[0].Action != events.ActionNodeJoined || audit[0].Actor != n.ID {
		t.Errorf("audit %+v", audit)
	}
	// The same request again, within the life of its challenge, is the same admission, and writes nothing. So is the same CSR
	// with evidence afresh.
	before := w.everything()
	for range 2 {
		if b := w.mustAdmit(req); !bytes.Equal(b.GetChain()[0], a.GetChain()[0]) {
			t.Error("a repeat got another certificate")
		}
	}
	if !slices.Equal(w.everything(), before) {
		t.Error("a repeat is told")
	}
	key := m.nodeKey()
	csr := newCSR(t, key)
	first := w.mustAdmit(w.tpmJoin(m, key, csr)) // a reclaim
	before = w.everything()
	w.clock.add(time.Hour)
	if b := w.mustAdmit(w.tpmJoin(m, key, csr)); !bytes.Equal(b.GetChain()[0], first.GetChain()[0]) || w.node(n.ID).IdentityGeneration != 2 {
		t.Error("evidence afresh got another certificate")
	}
	if !slices.Equal(w.everything(), before) {
		t.Error("evidence afresh is told")
	}
}

// Who vouches for a TPM: each alone, and the first one of more.
//
// Req: AT-008
func TestWhoVouchesForATPM(t *testing.T) {
	m := newTPMMachine(t)
	contoso, other := newMaker(t), newMaker(t)
	for name, c := range map[string]struct {
		options []func(*joinservice.TPMOptions)
		chain   [][]byte
		listed  bool
		reason  string // "" is admitted, "?" deferred
	}{
		"nobody":                                {reason: "tpm:ek"},
		"the list":                              {listed: true},
		"its maker":                             {options: []func(*joinservice.TPMOptions){makerOf(contoso.root)}, chain: [][]byte{contoso.certificate(m)}},
		"another maker":                         {options: []func(*joinservice.TPMOptions){makerOf(contoso.root)}, chain: [][]byte{other.certificate(m)}, reason: "tpm:ek"},
		"no certificate":                        {options: []func(*joinservice.TPMOptions){makerOf(contoso.root)}, reason: "tpm:ek"},
		"a broken certificate":                  {options: []func(*joinservice.TPMOptions){makerOf(contoso.root)}, chain: [][]byte{{0x30, 0}}, reason: "tpm:ek"},
		"another maker and the list":            {options: []func(*joinservice.TPMOptions){makerOf(contoso.root)}, chain: [][]byte{other.certificate(m)}, listed: true},
		"a maker without a pool":                {options: []func(*joinservice.TPMOptions){makerOf(contoso.root), func(o *joinservice.TPMOptions) { o.Pools = nil }}, chain: [][]byte{contoso.certificate(m)}, reason: "tpm:ek"},
		"a person":                              {options: []func(*joinservice.TPMOptions){enrollment}, reason: "?"},
		"the list before a person":              {options: []func(*joinservice.TPMOptions){enrollment}, listed: true},
		"its maker before a person":             {options: []func(*joinservice.TPMOptions){enrollment, makerOf(contoso.root)}, chain: [][]byte{contoso.certificate(m)}},
		"a person, of another maker's":          {options: []func(*joinservice.TPMOptions){enrollment, makerOf(contoso.root)}, chain: [][]byte{other.certificate(m)}, reason: "?"},
		"a person, where no pool takes a maker": {options: []func(*joinservice.TPMOptions){enrollment, makerOf(contoso.root), func(o *joinservice.TPMOptions) { o.Pools = nil }}, chain: [][]byte{contoso.certificate(m)}, reason: "?"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, tpm(c.options...))
			m.chain = c.chain
			if c.listed {
				w.allow(m)
			}
			req := w.newTPMJoin(m)
			switch c.reason {
			case "":
				w.mustAdmit(req)
			case "?":
				r := w.joinRequest(w.deferred(req).GetRequestId())
				if verified := name == "a person, where no pool takes a maker"; r.EKUnverified == verified {
					t.Errorf("unverified: %v", r.EKUnverified)
				}
			default:
				if e := w.refusedTPM(req, w.root, c.reason); e.EKSHA256 != m.ekText() {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

// A real maker's chain: swtpm's own tools, with an issuer below the root that the TPM does not hold.
func TestATPMWithItsMakersCertificateJoins(t *testing.T) {
	k := tpmkeytest.NewMaker(t)
	chip := k.Swtpm(t)
	m := tpmMachineOf(t, chip, newMachine(t).claims)
	if len(m.chain) == 0 {
		t.Fatal("the TPM shows no certificate")
	}
	// The certificates are of now.
	at := time.Now().Add(time.Minute)
	on := func(roots ...*x509.Certificate) *world {
		return newWorldAt(t, t.TempDir(), &clock{t: at}, (&clock{t: at}).now, tpm(makerOf(roots...)))
	}
	w := on(k.Root(t), k.Issuer(t))
	if n := w.mustJoinByTPM(m); w.node(n.nodeID).PoolID != w.pool {
		t.Error("in another pool")
	}
	w = on(newMaker(t).root)
	w.refusedTPM(w.newTPMJoin(m), w.root, "tpm:ek")
}

// Req: AT-006 AP-007 AP-009
func TestAnUnknownTPMWaitsForAPerson(t *testing.T) {
	w, m := newWorld(t, tpm(enrollment)), newTPMMachine(t)
	key := m.nodeKey()
	csr := newCSR(t, key)
	d := w.deferred(w.tpmJoin(m, key, csr))
	r := w.joinRequest(d.GetRequestId())
	ek := m.ek()
	if r.MachineKey != "ek:"+m.ekText() || !bytes.Equal(r.EKSHA256, ek[:]) || !r.EKUnverified || r.PoolID != "" || r.TenantID != w.root ||
		r.SiteID != w.site || r.Attestor != "tpm" || r.TokenID != "" || r.Claims.ProductSerial != m.claims.GetProductSerial() ||
		!r.ExpiresAt.Equal(epoch.Add(24*time.Hour)) {
		t.Errorf("request %+v", r)
	}
	created := eventsOf[events.JoinRequestCreated](w, w.root)
	if len(created) != 1 || created[0].EKSHA256 != m.ekText() || !created[0].EKUnverified {
		t.Errorf("events %+v", created)
	}
	if len(w.nodes()) != 0 || len(eventsOf[events.NodeJoined](w, w.root)) != 0 {
		t.Error("something was issued")
	}
	// The same CSR with a new challenge waits on; a new key takes the request over.
	if again := w.deferred(w.tpmJoin(m, key, csr)); again.GetRequestId() != d.GetRequestId() {
		t.Error("the retry made another request")
	}
	other := m.nodeKey()
	csr2 := newCSR(t, other)
	if again := w.deferred(w.tpmJoin(m, other, csr2)); again.GetRequestId() != d.GetRequestId() {
		t.Error("a machine has two requests")
	}
	w.approve(d.GetRequestId())
	if again := w.deferred(w.tpmJoin(m, key, csr)); again.GetRequestId() == d.GetRequestId() {
		t.Error("the approval of another CSR is touched")
	}
	a := w.mustAdmit(w.tpmJoin(m, other, csr2))
	if r := w.joinRequest(d.GetRequestId()); r.State != store.JoinRequestConsumed {
		t.Errorf("request %+v", r)
	}
	if n := w.node(a.GetNodeId()); n.PoolID != w.pool || !bytes.Equal(n.EKSHA256, ek[:]) {
		t.Errorf("node %+v", n)
	}
	// Known now: nobody is asked again.
	if b := w.mustAdmit(w.newTPMJoin(m)); b.GetNodeId() != a.GetNodeId() || b.GetIdentityGeneration() != 2 {
		t.Errorf("admission %v", b)
	}
}

// Another EK of the same TPM is another machine to a person: the approval is for what was shown.
func TestAnApprovalIsForItsEndorsementKey(t *testing.T) {
	w, m := newWorld(t, tpm(enrollment)), newTPMMachine(t)
	key := m.nodeKey()
	csr := newCSR(t, key)
	d := w.deferred(w.tpmJoin(m, key, csr))
	w.approve(d.GetRequestId())
	index := uint32(0x01c00002)
	if m.id.EKIndex == index {
		index = 0x01c0000a
	}
	rsa := m.withEK(index)
	if again := w.deferred(w.tpmJoin(rsa, key, csr)); again.GetRequestId() == d.GetRequestId() {
		t.Error("another EK used the approval")
	}
}

// Req: AP-014
func TestARejectedTPMIsRefused(t *testing.T) {
	w, m := newWorld(t, tpm(enrollment)), newTPMMachine(t)
	key := m.nodeKey()
	csr := newCSR(t, key)
	w.reject(w.deferred(w.tpmJoin(m, key, csr)).GetRequestId())
	w.refusedTPM(w.tpmJoin(m, key, csr), w.root, "tpm:rejected")
}

// Req: AP-016
func TestHowLongATPMWaits(t *testing.T) {
	w := newWorld(t, tpm(enrollment, func(o *joinservice.TPMOptions) { o.PendingTTL = time.Minute }))
	m := newTPMMachine(t)
	r := w.joinRequest(w.deferred(w.newTPMJoin(m)).GetRequestId())
	if !r.ExpiresAt.Equal(epoch.Add(time.Minute)) {
		t.Errorf("expires %v", r.ExpiresAt)
	}
	// A pool whose policy leaves tpm out cannot take it.
	w.updatePool(func(p *store.Pool) { p.Policy.JoinAttestors = []string{"join-token"} })
	if _, err := w.approvals().Approve(t.Context(), "key_test", approvals.ApproveRequest{TenantID: w.root, PoolID: w.pool, RequestID: r.ID}); err == nil {
		t.Error("approved into a pool that does not take it")
	}
}

// Machines whose firmware does not tell them from others are admitted where somebody vouches for this very one.
//
// Req: HC-022
func TestATPMWithPlaceholderHardware(t *testing.T) {
	claims := &daemonv1.HardwareClaims{ProductSerial: "To be filled by O.E.M.", Hostname: "whitebox"}
	m := tpmMachineOf(t, tpmkeytest.Any(t), claims)
	contoso := newMaker(t)
	m.chain = [][]byte{contoso.certificate(m)}

	w := newWorld(t, tpm(makerOf(contoso.root)))
	w.refusedTPM(w.newTPMJoin(m), w.root, "join:placeholder-hardware")
	w.allow(m)
	n := w.node(w.mustJoinByTPM(m).nodeID)
	if n.HardwareKeyTrusted {
		t.Error("its hardware key is trusted")
	}
	if b := w.mustJoinByTPM(m); b.nodeID != n.ID { // its EK reclaims it, not its hardware
		t.Error("joined as another node")
	}
	// Two of them share no identity.
	second := tpmMachineOf(t, tpmkeytest.Any(t), claims)
	w.allow(second)
	if b := w.mustJoinByTPM(second); b.nodeID == n.ID {
		t.Error("two machines are one node")
	}

	w = newWorld(t, tpm(enrollment))
	key := m.nodeKey()
	csr := newCSR(t, key)
	w.approve(w.deferred(w.tpmJoin(m, key, csr)).GetRequestId())
	if a := w.mustAdmit(w.tpmJoin(m, key, csr)); w.node(a.GetNodeId()).HardwareKeyTrusted {
		t.Error("its hardware key is trusted")
	}
}

// Req: TP-004
func TestAClearedTPMReclaimsItsNode(t *testing.T) {
	w := newWorld(t, tpm(), func(o *joinservice.Options) { o.Poll = time.Hour })
	m := newTPMMachine(t)
	e := w.allow(m)
	first := w.mustJoinByTPM(m)
	s := w.dial(&member{nodeID: first.nodeID, leaf: first.leaf})
	s.opened()
	w.write(func(tx *store.Tx) error { return tx.SetNodeState(first.nodeID, store.NodeAdopted) })

	m.tpm.Clear(t)
	// Nothing but the binding is needed: the list may have changed since.
	w.write(func(tx *store.Tx) error { _, err := tx.RemoveEKAllow(e.ID); return err })
	again := w.mustJoinByTPM(tpmMachineOf(t, m.tpm, m.claims))
	if again.nodeID != first.nodeID {
		t.Fatalf("node %q, want %q", again.nodeID, first.nodeID)
	}
	if g := s.goodbye(); g.GetReason() != "certificate-revoked" {
		t.Errorf("the session ended with %q", g.GetReason())
	}
	n := w.node(first.nodeID)
	ek := m.ek()
	if n.IdentityGeneration != 2 || n.State != store.NodeAdopting || !bytes.Equal(n.EKSHA256, ek[:]) {
		t.Errorf("node %+v", n)
	}
	joined := eventsOf[events.NodeJoined](w, w.root)
	if last := joined[len(joined)-1]; !last.Reclaim || last.NodeKey != "tpm" || last.IdentityGeneration != 2 {
		t.Errorf("event %+v", last)
	}
	revoked := eventsOf[events.CertificateRevoked](w, w.root)
	if len(revoked) != 1 || revoked[0].Reason != "reclaimed" {
		t.Errorf("events %+v", revoked)
	}
}

// The TPM names the machine: what was changed around it is what the machine has now.
func TestATPMReclaimsItsNodeWhateverElseChanged(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	first := w.mustJoinByTPM(m)
	m.claims = newMachine(t).claims
	again := w.mustJoinByTPM(m)
	n := w.node(first.nodeID)
	if again.nodeID != first.nodeID || n.Claims.ProductSerial != m.claims.GetProductSerial() {
		t.Errorf("node %+v", n)
	}
	// The key of the old hardware is free, that of the new one is the node's.
	fresh := newMachine(t)
	fresh.claims = m.claims
	if e := w.refusedJoin(w.request(fresh, w.token()), w.root); e.Reason != "join:reclaim" {
		t.Errorf("reason %q", e.Reason)
	}
	m.claims = &daemonv1.HardwareClaims{Hostname: "whitebox"}
	w.mustJoinByTPM(m)
	if n := w.node(first.nodeID); n.HardwareKeyTrusted {
		t.Errorf("node %+v", n)
	}
	w.mustJoin(fresh, w.token())
}

// A machine that a tenant controls, by a hosted token, does not become the platform's by its TPM.
func TestATPMDoesNotRaiseItsNodesTrust(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	first := w.mustJoinByTPM(m)
	byToken := &machine{claims: m.claims}
	byToken.newKey(t)
	w.mustJoin(byToken, w.token(hosted, allowReclaim))
	if n := w.node(first.nodeID); n.Trust != store.TrustTenantControlled {
		t.Fatalf("node %+v", n)
	}
	a := w.mustAdmit(w.newTPMJoin(m))
	if n := w.node(first.nodeID); n.Trust != store.TrustTenantControlled || a.GetRole() != "node-tenant" || a.GetNodeId() != n.ID {
		t.Errorf("node %+v, role %q", n, a.GetRole())
	}
	// Only the platform's operator can say that the platform operates the cluster.
	w.updatePool(func(p *store.Pool) { p.Policy.Kubernetes.PlatformOperated = true })
	w.mustAdmit(w.newTPMJoin(m))
	if n := w.node(first.nodeID); n.Trust != store.TrustPlatform {
		t.Errorf("node %+v", n)
	}
}

// Req: TP-005 TP-006 TP-010
func TestANewTPMNeedsTheOldNodeDeleted(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	old := w.mustJoinByTPM(m)
	replaced := tpmMachineOf(t, tpmkeytest.Any(t), m.claims)
	w.allow(replaced)
	w.refusedTPM(w.newTPMJoin(replaced), w.root, "join:reclaim")

	operator := &nodes.Service{Store: w.store}
	if _, err := operator.Cordon(t.Context(), "key_test", w.root, old.nodeID); err != nil {
		t.Fatal(err)
	}
	w.refusedTPM(w.newTPMJoin(replaced), w.root, "join:reclaim")
	if _, err := operator.Delete(t.Context(), "key_test", w.root, old.nodeID); err != nil {
		t.Fatal(err)
	}
	if n := w.node(old.nodeID); n.EKSHA256 != nil || n.HardwareKey != nil {
		t.Errorf("the deleted node holds %x and %x", n.EKSHA256, n.HardwareKey)
	}
	fresh := w.mustJoinByTPM(replaced)
	if fresh.nodeID == old.nodeID || w.node(fresh.nodeID).IdentityGeneration != 1 {
		t.Error("the new TPM is the old node")
	}
	// The old TPM in another machine is a machine like any other.
	moved := tpmMachineOf(t, m.tpm, newMachine(t).claims)
	if n := w.mustJoinByTPM(moved); n.nodeID == old.nodeID || n.nodeID == fresh.nodeID {
		t.Error("the freed TPM is a node that it is not")
	}
}

// A deleted node's request is never admitted again, though its EK is free.
func TestARequestOfADeletedNodeIsNotReplayed(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	req := w.newTPMJoin(m)
	a := w.mustAdmit(req)
	if _, err := (&nodes.Service{Store: w.store}).Delete(t.Context(), "key_test", w.root, a.GetNodeId()); err != nil {
		t.Fatal(err)
	}
	w.refusedTPM(req, w.root, "join:replayed")
}

// Req: TP-004
func TestConflictsOfATPMAndItsHardware(t *testing.T) {
	w := newWorld(t, tpm())
	a, b := newTPMMachine(t), newTPMMachine(t)
	w.allow(a)
	w.allow(b)
	// The hardware of a node that joined by a token: nobody can tell whether it is the same machine.
	byToken := newMachine(t)
	w.mustJoin(byToken, w.token(allowReclaim))
	hardware := a.claims
	a.claims = byToken.claims
	w.refusedTPM(w.newTPMJoin(a), w.root, "join:reclaim")
	a.claims = hardware
	w.mustJoinByTPM(a)
	w.mustJoinByTPM(b)
	// The EK of one node with the hardware of another.
	a.claims = b.claims
	w.refusedTPM(w.newTPMJoin(a), w.root, "join:reclaim")
	// A token still reclaims by the hardware, and the binding stays.
	m := &machine{claims: hardware}
	m.newKey(t)
	w.mustJoin(m, w.token(allowReclaim))
	a.claims = hardware
	if n := w.node(w.mustJoinByTPM(a).nodeID); n.IdentityGeneration != 3 {
		t.Errorf("node %+v", n)
	}
}

// A TPM has an RSA and an ECC endorsement key. It is one node all the same: with each of them it proves the same attestation key.
func TestATPMWithTwoEndorsementKeysIsOneNode(t *testing.T) {
	w, chip := newWorld(t, tpm()), tpmkeytest.Any(t)
	by := func(ek uint32) *tpmMachine {
		m := tpmMachineOf(t, chip, newMachine(t).claims, func(o *tpmkey.Options) { o.EK = ek })
		w.allow(m)
		return m
	}
	rsa, ecc := by(0x01c00002), by(0x01c0000a)
	if rsa.ek() == ecc.ek() {
		t.Fatal("it is the same endorsement key")
	}
	first := w.mustJoinByTPM(rsa)
	w.refusedTPM(w.newTPMJoin(ecc), w.root, "join:reclaim")
	if again := w.mustJoinByTPM(rsa); again.nodeID != first.nodeID || len(w.nodes()) != 1 {
		t.Errorf("%d nodes", len(w.nodes()))
	}
	if _, err := (&nodes.Service{Store: w.store}).Delete(t.Context(), "key_test", w.root, first.nodeID); err != nil {
		t.Fatal(err)
	}
	if n := w.mustJoinByTPM(ecc); n.nodeID == first.nodeID {
		t.Error("it is the node that was deleted")
	}
	w.refusedTPM(w.newTPMJoin(rsa), w.root, "join:reclaim")
}

func TestConcurrentJoinsOfOneTPM(t *testing.T) {
	const n = 16
	for name, sameCSR := range map[string]bool{"one request": true, "a key each": false} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t, tpm()), newTPMMachine(t)
			w.allow(m)
			key := m.nodeKey()
			csr := newCSR(t, key)
			var sent sync.WaitGroup
			results := make([]error, n)
			begin := make(chan struct{})
			for i := range n {
				if !sameCSR && i > 0 {
					key = m.nodeKey()
					csr = newCSR(t, key)
				}
				req := w.tpmJoin(m, key, csr)
				sent.Go(func() {
					<-begin
					_, results[i] = w.svc.Join(context.Background(), req)
				})
			}
			close(begin)
			sent.Wait()
			admitted := 0
			for _, err := range results {
				switch {
				case err == nil:
					admitted++
				case status.Code(err) != codes.Aborted:
					t.Errorf("answer %v%s", err, w.lastRefusal())
				}
			}
			all := w.nodes()
			if len(all) != 1 || admitted == 0 {
				t.Fatalf("%d admitted, %d nodes", admitted, len(all))
			}
			valid := 0
			for _, c := range w.certs(all[0].ID) {
				if c.RevokedAt.IsZero() {
					valid++
				}
			}
			certs := len(w.certs(all[0].ID))
			if valid != 1 || int64(certs) != all[0].IdentityGeneration || sameCSR && certs != 1 || !sameCSR && certs != admitted {
				t.Errorf("%d certificates, %d of them valid, generation %d, %d admitted", certs, valid, all[0].IdentityGeneration, admitted)
			}
		})
	}
}

// An admission by a TPM is all or nothing.
func TestAJoinByTPMIsOneTransaction(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	req := w.newTPMJoin(m)
	before := w.everything()
	for failed := range 100 {
		steps := 0
		w.step = func(string) error {
			if steps++; steps == failed+1 {
				return errors.New("stopped")
			}
			return nil
		}
		resp, err := w.svc.Join(context.Background(), req)
		w.step = nil
		if err == nil {
			if failed < 5 || w.open(req, resp) == nil {
				t.Errorf("admitted after %d steps", failed)
			}
			return
		}
		if len(w.nodes()) != 0 || !slices.Equal(w.everything(), before) {
			t.Fatalf("a join that stopped after step %d left something", failed)
		}
	}
	t.Error("never admitted")
}

// Two replicas share the bundle and the database, and nothing else: each takes the other's challenges.
func TestAChallengeIsGoodAtEveryReplica(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.allow(m)
	replica := w.replica(w.bundle)
	key := m.nodeKey()
	csr := newCSR(t, key)
	e := m.answer(challenge(t, replica, m.challengeRequest(csr)), csr)
	e.KeyAttestation = m.certify(key, csr)
	w.mustAdmit(w.tpmRequest(m, key, csr, e))

	foreign, err := pki.New("compute.example.com", epoch)
	if err != nil {
		t.Fatal(err)
	}
	key = m.nodeKey()
	csr = newCSR(t, key)
	e = m.answer(challenge(t, w.replica(foreign), m.challengeRequest(csr)), csr)
	e.KeyAttestation = m.certify(key, csr)
	w.refusedTPM(w.tpmRequest(m, key, csr, e), w.root, "tpm:challenge")
}

// replica is another JoinService over the world's database.
func (w *world) replica(bundle *pki.Bundle) *joinservice.Service {
	w.t.Helper()
	o := joinservice.Options{Store: w.store, Keys: joinservice.KeysOf(bundle), RootTenant: w.root, Now: w.now}
	tpm()(&o)
	s, err := joinservice.New(o)
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// A challenge is kept by nobody: neither it nor an unknown EK leaves a trace.
func TestAChallengeWritesNothing(t *testing.T) {
	w, m := newWorld(t, tpm()), newTPMMachine(t)
	w.step = func(step string) error { return errors.New("written: " + step) }
	csr := sha256.Sum256([]byte("csr"))
	one, two := challenge(t, w.svc, m.challengeRequest(csr[:])), challenge(t, w.svc, m.challengeRequest(csr[:]))
	if bytes.Equal(one.GetState(), two.GetState()) || bytes.Equal(one.GetCredentialBlob(), two.GetCredentialBlob()) {
		t.Error("two challenges are the same")
	}
	ek := m.ek()
	for _, part := range [][]byte{ek[:], csr[:], []byte("urn:bc:")} {
		if bytes.Contains(one.GetState(), part) {
			t.Error("the state can be read")
		}
	}
	w.step = nil
}

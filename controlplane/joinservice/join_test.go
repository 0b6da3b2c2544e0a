package joinservice_test

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
)

// Req: JF-001 JF-003 JF-017 JF-028 JF-034 JF-035 JF-036 JF-037 JF-038 JF-039 JF-041 JF-042 JF-044 JF-047 JF-079
func TestJoinWritesTheAdmission(t *testing.T) {
	for _, attestor := range []string{"", "join-token"} {
		t.Run(attestor, func(t *testing.T) {
			w := newWorld(t)
			tok, m := w.token(uses(3)), newMachine(t)
			a := w.mustJoin(m, tok, func(c *call) { c.body.Attestor = attestor })
			leaf := leafOf(t, a)
			serial := leaf.SerialNumber.Text(16)

			n := w.node(a.GetNodeId())
			if n.PoolID != w.pool || n.SiteID != w.site || n.TenantID != w.root || n.State != store.NodeAdopting ||
				n.IdentityGeneration != 1 || !n.HardwareKeyTrusted || n.Trust != store.TrustPlatform ||
				n.Claims.ProductSerial != m.claims.GetProductSerial() {
				t.Errorf("node %+v", n)
			}
			if got := w.usesLeft(tok.ID); got != 2 {
				t.Errorf("%d uses left, want 2", got)
			}
			authz := query(w, func(tx *store.Tx) (store.NodeAuthz, error) { return tx.NodeAuthz(n.ID) })
			if diff := cmp.Diff(store.NodeAuthz{
				NodeID: n.ID, TenantID: w.root, PoolID: w.pool, SiteID: w.site, Role: "node", Trust: store.TrustPlatform,
			}, authz); diff != "" {
				t.Errorf("authorization (-want +got):\n%s", diff)
			}
			want := events.NodeJoined{
				NodeID: n.ID, PoolID: w.pool, SiteID: w.site, Role: "node", Attestor: "join-token", HardwareKeyTrusted: true,
				Serial: serial, IdentityGeneration: 1, NodeKey: "unattested",
			}
			if diff := cmp.Diff([]events.NodeJoined{want}, eventsOf[events.NodeJoined](w, w.root)); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			audit := query(w, func(tx *store.Tx) ([]events.Audit, error) { return tx.Audit(w.root, "", 100) })
			last := audit[len(audit)-1]
			var data events.NodeJoined
			if err := json.Unmarshal(last.Data, &data); err != nil {
				t.Fatal(err)
			}
			if last.Action != events.ActionNodeJoined || last.Subject != n.ID || last.Actor != tok.ID || data != want {
				t.Errorf("audit %+v", last)
			}
			if queue := query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) }); len(queue) != 0 {
				t.Errorf("queued before the first Hello: %v", queue)
			}
		})
	}
}

// Req: JF-045
func TestPoolWithoutAcceptanceAdoptsAtOnce(t *testing.T) {
	w := newWorld(t)
	w.updatePool(func(p *store.Pool) { p.Acceptance = false })
	a := w.mustJoin(newMachine(t), w.token())
	if n := w.node(a.GetNodeId()); n.State != store.NodeAdopted {
		t.Errorf("state %q", n.State)
	}
	queue := query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) })
	if len(queue) != 1 || queue[0].NodeID != a.GetNodeId() {
		t.Errorf("queue %v", queue)
	}
	if got := w.eventTypes(w.root); !slices.Equal(got[len(got)-2:], []events.Type{"node.joined", "node.adopted"}) {
		t.Errorf("events %v", got)
	}
}

// Req: JF-049 JF-050 JF-051 JF-052 JF-053 JF-054 JF-055 JF-056 JF-057
func TestResponseHoldsTheAdmission(t *testing.T) {
	w := newWorld(t)
	m := newMachine(t)
	a := w.mustJoin(m, w.token()) // verifies the signature
	csr := sha256.Sum256(m.csr)
	if !bytes.Equal(a.GetCsrSha256(), csr[:]) || a.GetTrustDomain() != "compute.example.com" || a.GetSite() != w.site ||
		a.GetRole() != "node" || a.GetIdentityGeneration() != 1 || len(a.GetAllowedKinds()) != 0 {
		t.Errorf("admission %v", a)
	}
	public := w.bundle.Public()
	if len(a.GetNodeCaBundle()) != 1 || !bytes.Equal(a.GetNodeCaBundle()[0], public.NodeCA().Raw) ||
		len(a.GetCommandTrustBundle()) != 1 || !bytes.Equal(a.GetCommandTrustBundle()[0], public.CommandCA().Raw) {
		t.Error("the trust bundles are not the control plane's")
	}
	if !w.node(a.GetNodeId()).JoinedAt.Equal(epoch) {
		t.Error("joined at another time")
	}
}

// Req: JF-087 NC-001 NC-002 NC-003 NC-006 NC-007 NC-008 NC-011 NC-012 NC-013 NC-014 NC-015 NC-016 NC-017
func TestCertificateIsTheNodesIdentity(t *testing.T) {
	w := newWorld(t)
	m := newMachine(t)
	a := w.mustJoin(m, w.token())
	leaf := leafOf(t, a)
	if !m.key.PublicKey.Equal(leaf.PublicKey) {
		t.Error("another key")
	}
	roots := x509.NewCertPool()
	roots.AddCert(w.bundle.Public().NodeCA())
	if _, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, CurrentTime: epoch, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Error(err)
	}
	if got := leaf.NotAfter.Sub(leaf.NotBefore); got != 24*time.Hour {
		t.Errorf("lifetime %v, want 24h", got)
	}
	if want := "spiffe://compute.example.com/site/" + w.site + "/node/" + a.GetNodeId(); len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
		t.Errorf("URIs %v, want %s", leaf.URIs, want)
	}
	if !slices.Equal(leaf.Subject.OrganizationalUnit, []string{"bc-role:node"}) || len(leaf.Subject.Names) != 1 || len(leaf.DNSNames) != 0 {
		t.Errorf("subject %v, DNS names %v", leaf.Subject, leaf.DNSNames)
	}
	for _, ext := range leaf.Extensions {
		if !ext.Id.Equal([]int{2, 5, 29, ext.Id[len(ext.Id)-1]}) {
			t.Errorf("extension %v", ext.Id)
		}
	}
	if len(leaf.UnhandledCriticalExtensions) != 0 || bytes.Contains(leaf.Raw, []byte(w.root)) {
		t.Error("unhandled critical extensions, or the tenant's id")
	}
	certs := w.certs(a.GetNodeId())
	if len(certs) != 1 {
		t.Fatalf("%d rows", len(certs))
	}
	c := certs[0]
	if c.Serial != leaf.SerialNumber.Text(16) || c.Generation != 1 || c.SPKISHA256 != sha256.Sum256(leaf.RawSubjectPublicKeyInfo) ||
		!bytes.Equal(c.DER, leaf.Raw) || c.CSRSHA256 != sha256.Sum256(m.csr) || !c.NotAfter.Equal(leaf.NotAfter) {
		t.Errorf("row %+v", c)
	}
}

// Req: NC-003
func TestCertTTLIsBounded(t *testing.T) {
	w := newWorld(t, func(o *joinservice.Options) { o.CertTTL = 10 * time.Minute })
	leaf := leafOf(t, w.mustJoin(newMachine(t), w.token()))
	if got := leaf.NotAfter.Sub(leaf.NotBefore); got != 10*time.Minute {
		t.Errorf("lifetime %v", got)
	}
	for _, ttl := range []time.Duration{86401 * time.Second, -1, time.Millisecond, 90*time.Second + time.Millisecond} {
		if _, err := joinservice.New(joinservice.Options{
			Store: w.store, Keys: joinservice.KeysOf(w.bundle), RootTenant: w.root, Now: w.clock.now, CertTTL: ttl,
		}); err == nil {
			t.Errorf("%v is accepted", ttl)
		}
	}
}

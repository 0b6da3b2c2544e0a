package nodes_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane/acceptance"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/nodes"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/internal/fault"
)

const tenant, pool, node, actor = "tn_a", "pool_a", "node_a", "key_a"

var epoch = time.Date(2026, 11, 29, 11, 6, 11, 0, time.UTC)

// world is a database with one adopting node that did not pass, waits for its controllers and has two certificates.
type world struct {
	*nodes.Service
	t    *testing.T
	stop func(step string) error // of the database's faults; nil is none
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t}
	s, err := store.Open(t.Context(), store.Options{
		Path: filepath.Join(t.TempDir(), "db"), Now: func() time.Time { return epoch },
		AfterStep: func(step string) error {
			if w.stop == nil {
				return nil
			}
			return w.stop(step)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	w.Service = &nodes.Service{Store: s}
	n := store.Node{
		ID: node, TenantID: tenant, PoolID: pool, SiteID: "site_a", Role: store.RoleNode, State: store.NodeAdopting,
		Trust: store.TrustPlatform, IdentityGeneration: 2, HardwareKey: []byte{1}, HardwareKeyTrusted: true,
	}
	err = s.Write(t.Context(), func(tx *store.Tx) error {
		cert := func(serial string, generation int64) error {
			sum := sha256.Sum256([]byte(serial))
			return tx.InsertCert(store.Cert{
				Serial: serial, NodeID: node, Generation: generation, Role: "node", SPKISHA256: sum, CSRSHA256: sum, DER: sum[:],
				NotBefore: epoch, NotAfter: epoch.Add(time.Hour),
			})
		}
		return errors.Join(
			tx.InsertTenant(store.Tenant{ID: tenant}), tx.InsertSite(store.Site{ID: "site_a", TenantID: tenant}),
			tx.InsertPool(store.Pool{ID: pool, TenantID: tenant, SiteID: "site_a", Agent: store.AgentBCD}),
			tx.InsertNode(n), tx.PutNodeAuthz(n), tx.Enqueue(node, "hello"), cert("a1", 1), cert("a2", 2),
			tx.SetNodeConditions(node, []store.Condition{{Type: acceptance.ConditionFailed, Message: "no", Since: epoch}}),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// picture is all that an operation may change.
type picture struct {
	Node    store.Node
	Revoked []string
	Events  []events.Type
	Audit   []events.Action
	Queued  int
	Authz   bool
}

func (w *world) picture() (p picture) {
	w.t.Helper()
	err := w.Store.Read(w.t.Context(), func(tx *store.Tx) (err error) {
		p = picture{}
		if p.Node, err = tx.Node(node); err != nil {
			return err
		}
		certs, err := tx.CertsOfNode(node)
		for _, c := range certs {
			if !c.RevokedAt.IsZero() {
				p.Revoked = append(p.Revoked, c.Serial+" "+c.RevokeReason)
			}
		}
		told, e := tx.Events(tenant, 0, 100)
		for _, e := range told {
			p.Events = append(p.Events, e.Type)
		}
		audit, e2 := tx.Audit(tenant, "", 100)
		for _, a := range audit {
			if a.Actor != actor || a.Subject != node {
				w.t.Errorf("audit row %+v", a)
			}
			p.Audit = append(p.Audit, a.Action)
		}
		queue, e3 := tx.Queue(10)
		p.Queued = len(queue)
		_, authz := tx.NodeAuthz(node)
		p.Authz = authz == nil
		return errors.Join(err, e, e2, e3)
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

type operation func(s *nodes.Service, ctx context.Context, actor, tenantID, nodeID string) (store.Node, error)

// operations are all of them, and what each leaves.
var operations = map[string]struct {
	do   operation
	want func(*picture)
}{
	"adopt": {(*nodes.Service).Adopt, func(p *picture) {
		p.Node.State, p.Node.Conditions = store.NodeAdopted, nil
		p.Events, p.Audit = []events.Type{"node.adopted"}, []events.Action{"node.adopted"}
	}},
	"cordon": {(*nodes.Service).Cordon, func(p *picture) {
		p.Node.CordonedAt = epoch
		p.Events, p.Audit = []events.Type{"node.cordoned"}, []events.Action{"node.cordoned"}
	}},
	"uncordon": {(*nodes.Service).Uncordon, func(*picture) {}},
	"revoke": {(*nodes.Service).RevokeIdentity, func(p *picture) {
		p.Revoked = []string{"a1 revoked", "a2 revoked"}
		p.Events = []events.Type{"security.certificate-revoked", "security.certificate-revoked"}
		p.Audit = []events.Action{"node.identity-revoked", "node.identity-revoked"}
	}},
	"delete": {(*nodes.Service).Delete, func(p *picture) {
		p.Node.State, p.Node.Conditions, p.Node.HardwareKey, p.Node.HardwareKeyTrusted = store.NodeRetired, nil, nil, false
		p.Node.RetiredAt, p.Node.DeletedAt = epoch, epoch
		p.Queued, p.Authz, p.Revoked = 0, false, []string{"a1 deleted", "a2 deleted"}
		p.Events = []events.Type{"security.certificate-revoked", "security.certificate-revoked", "node.deleted"}
		p.Audit = []events.Action{"node.identity-revoked", "node.identity-revoked", "node.deleted"}
	}},
}

// Each operation does all of it once, however often it is called, and stopped after any step it does nothing.
func TestOperations(t *testing.T) {
	for name, op := range operations {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			want := w.picture()
			before := want
			errStop := errors.New("stopped")
			for steps := 0; ; steps++ {
				left := steps
				w.stop = func(string) error {
					if left--; left < 0 {
						return errStop
					}
					return nil
				}
				_, err := op.do(w.Service, t.Context(), actor, tenant, node)
				w.stop = nil
				if err == nil {
					break
				}
				if !errors.Is(err, errStop) {
					t.Fatal(err)
				}
				if diff := cmp.Diff(before, w.picture()); diff != "" {
					t.Fatalf("stopped after %d steps: %s", steps, diff)
				}
			}
			op.want(&want)
			for range 2 {
				if diff := cmp.Diff(want, w.picture()); diff != "" {
					t.Error(diff)
				}
				n, err := op.do(w.Service, t.Context(), actor, tenant, node)
				if diff := cmp.Diff(want.Node, n); err != nil || diff != "" {
					t.Errorf("again: %v: %s", err, diff)
				}
			}
		})
	}
}

func TestAnotherTenantsNodeDoesNotExist(t *testing.T) {
	w := newWorld(t)
	before := w.picture()
	for name, op := range operations {
		for _, ref := range [][2]string{{"tn_b", node}, {tenant, "node_b"}} {
			if _, err := op.do(w.Service, t.Context(), actor, ref[0], ref[1]); !fault.Is(err, fault.NotFound) {
				t.Errorf("%s of %q: %v", name, ref, err)
			}
		}
	}
	if diff := cmp.Diff(before, w.picture()); diff != "" {
		t.Error(diff)
	}
}

func TestARetiredNodeIsNotAdoptedAndNotCordoned(t *testing.T) {
	w := newWorld(t)
	if _, err := w.Delete(t.Context(), actor, tenant, node); err != nil {
		t.Fatal(err)
	}
	before := w.picture()
	for _, name := range []string{"adopt", "cordon", "uncordon"} {
		if _, err := operations[name].do(w.Service, t.Context(), actor, tenant, node); !fault.Is(err, fault.InvalidState) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.RevokeIdentity(t.Context(), actor, tenant, node); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, w.picture()); diff != "" {
		t.Error(diff)
	}
}

// Whoever is first tells of it, once.
func TestOperationsAtOnce(t *testing.T) {
	w := newWorld(t)
	var wg sync.WaitGroup
	for range 16 {
		for _, op := range operations {
			wg.Go(func() {
				if _, err := op.do(w.Service, t.Context(), actor, tenant, node); err != nil && !fault.Is(err, fault.InvalidState) {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	p := w.picture()
	if p.Node.State != store.NodeRetired || len(p.Revoked) != 2 {
		t.Errorf("left: %+v", p)
	}
	count := func(kind events.Type) (n int) {
		for _, e := range p.Events {
			if e == kind {
				n++
			}
		}
		return n
	}
	cordoned := 0
	if !p.Node.CordonedAt.IsZero() {
		cordoned = 1
	}
	if count("node.deleted") != 1 || count("node.adopted") > 1 || count("security.certificate-revoked") != 2 ||
		count("node.cordoned")-count("node.uncordoned") != cordoned {
		t.Errorf("told: %q", p.Events)
	}
}

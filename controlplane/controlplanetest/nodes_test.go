package controlplanetest_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"google.golang.org/grpc"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/controlplane/httpapi/client"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// operator calls the HTTP API with the key that the first start made.
func operator(t *testing.T, cp *controlplanetest.ControlPlane) *client.Client {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(cp.Dir, "admin.toml"))
	if err != nil {
		t.Fatal(err)
	}
	var admin struct {
		URL string `toml:"url"`
		Key string `toml:"api_key"`
	}
	if err := toml.Unmarshal(text, &admin); err != nil {
		t.Fatal(err)
	}
	// A restart serves on another port; the file keeps the first one.
	c, err := client.New(cp.Server().APIURL(), admin.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// node calls a method about the machine's node.
func (m *machine) node(method string) (n httpapi.Node) {
	m.t.Helper()
	in := httpapi.NodeRef{TenantID: m.cp.Tenant, NodeID: m.admission.GetNodeId()}
	if err := operator(m.t, m.cp).Call(m.t.Context(), method, in, &n); err != nil {
		m.t.Fatal(err)
	}
	return n
}

// goodbye reads a session to its end and returns the reason and when it came.
func goodbye(t *testing.T, s grpc.BidiStreamingClient[daemonv1.AgentFrame, daemonv1.GatewayFrame]) (string, time.Time) {
	t.Helper()
	for {
		f, err := s.Recv()
		if err != nil {
			t.Fatalf("session ended with %v, want a goodbye", err)
		}
		if g := f.GetGoodbye(); g != nil {
			return g.GetReason(), time.Now()
		}
	}
}

// again returns the machine after a reinstall: with another key.
func (m *machine) again() *machine {
	m.t.Helper()
	fresh := newMachine(m.t, m.cp)
	fresh.claims = m.claims
	return fresh
}

// Req: RS-013
func TestANodeIsCutOffAtOnce(t *testing.T) {
	for method, reason := range map[string]string{"nodes.revokeIdentity": "revoked", "nodes.delete": "deleted"} {
		t.Run(method, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
			m := newMachine(t, cp).mustJoin()
			old := *m
			if err := m.renew(cp.GatewayURL); err != nil {
				t.Fatal(err)
			}
			s, err := m.open(cp.GatewayURL)
			if err != nil {
				t.Fatal(err)
			}
			if !m.node("nodes.get").Connected {
				t.Error("the node has no session")
			}
			cut := time.Now()
			m.node(method)
			if why, at := goodbye(t, s); why != "certificate-revoked" || at.Sub(cut) > time.Second {
				t.Errorf("the session ended with %q after %v", why, at.Sub(cut))
			}
			cp.WaitForEvent(t, events.TypeNodeDisconnected, 1)
			cp.WaitForEvent(t, events.TypeCertificateRevoked, 2)
			if n := m.node("nodes.get"); n.Connected || n.Certificate.RevokedAt == nil {
				t.Errorf("the node is %+v", n)
			}
			cp.Read(t, func(tx *store.Tx) error {
				certs, err := tx.CertsOfNode(m.admission.GetNodeId())
				for _, c := range certs {
					if c.RevokedAt.IsZero() || c.RevokeReason != reason {
						t.Errorf("certificate %s: revoked %v, %q", c.Serial, c.RevokedAt, c.RevokeReason)
					}
				}
				if len(certs) != 2 {
					t.Errorf("%d certificates", len(certs))
				}
				return err
			})
			// Neither certificate opens a session or is renewed.
			for _, m := range []*machine{m, &old} {
				if _, err := m.open(cp.GatewayURL); codeOf(err) != fault.AccessDenied {
					t.Errorf("session: %v", err)
				}
				if err := m.renew(cp.GatewayURL); codeOf(err) != fault.AccessDenied {
					t.Errorf("renewal: %v", err)
				}
			}
		})
	}
}

// A machine whose node was deleted joins as a new node, with an ordinary token; the join that made the old one stays used.
func TestADeletedMachineJoinsAsANewNode(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m := newMachine(t, cp)
	two := int64(2)
	token := cp.NewToken(t, tokens.CreateRequest{MaxUses: &two})
	if err := m.join(cp.GatewayURL, token); err != nil {
		t.Fatal(err)
	}
	if err := m.again().join(cp.GatewayURL, token); codeOf(err) != fault.AccessDenied {
		t.Errorf("a known machine joins without allowReclaim: %v", err)
	}
	old := m.admission.GetNodeId()
	m.node("nodes.delete")

	if err := m.join(cp.GatewayURL, token); codeOf(err) != fault.AccessDenied {
		t.Errorf("the join of the deleted node is repeated: %v", err)
	}
	fresh := m.again()
	if err := fresh.join(cp.GatewayURL, token); err != nil {
		t.Fatal(err)
	}
	if got := fresh.admission; got.GetNodeId() == old || got.GetIdentityGeneration() != 1 {
		t.Errorf("the machine became %q, generation %d", got.GetNodeId(), got.GetIdentityGeneration())
	}
	if n := m.node("nodes.get"); n.State != "retired" || n.HardwareKey != nil {
		t.Errorf("the deleted node is %+v", n)
	}
	if _, err := fresh.open(cp.GatewayURL); err != nil {
		t.Error(err)
	}
	want := []string{"join:reclaim", "join:replayed"}
	if got := cp.Refusals(t); len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("refusals %q, want %q", got, want)
	}
}

// What an operator set aside stays aside when the machine is installed anew.
func TestACordonOutlivesAReclaim(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp).mustJoin()
	s, err := m.open(cp.GatewayURL)
	if err != nil {
		t.Fatal(err)
	}
	at := m.node("nodes.cordon").CordonedAt
	if err := s.Send(&daemonv1.AgentFrame{Frame: &daemonv1.AgentFrame_Heartbeat{Heartbeat: &daemonv1.Heartbeat{}}}); err != nil {
		t.Errorf("a cordoned node's session: %v", err)
	}
	if !m.node("nodes.get").Connected {
		t.Error("a cordoned node lost its session")
	}
	if err := m.renew(cp.GatewayURL); err != nil {
		t.Errorf("a cordoned node renews: %v", err)
	}
	fresh := m.again()
	if err := fresh.join(cp.GatewayURL, cp.NewToken(t, tokens.CreateRequest{AllowReclaim: true})); err != nil {
		t.Fatal(err)
	}
	n := fresh.node("nodes.get")
	if n.ID != m.admission.GetNodeId() || n.IdentityGeneration != 2 || n.CordonedAt == nil || !n.CordonedAt.Equal(*at) {
		t.Errorf("after the reclaim: %+v", n)
	}
}

// A node that does not pass stays adopting until an operator adopts it.
//
// Req: JF-082
func TestAnOperatorAdoptsANodeThatDidNotPass(t *testing.T) {
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
	m.claims.ProductSerial = "ANOTHER1" // what it says now is not what joined
	if _, err := m.open(cp.GatewayURL); err != nil {
		t.Fatal(err)
	}
	cp.WaitForEvent(t, events.TypeNodeAcceptanceFailed, 1)
	if n := m.node("nodes.get"); n.State != "adopting" || len(n.Conditions) != 1 || n.Conditions[0].Type != "AcceptanceFailed" || n.HelloAt == nil {
		t.Errorf("before: %+v", n)
	}
	if n := m.node("nodes.adopt"); n.State != "adopted" || len(n.Conditions) != 0 {
		t.Errorf("after: %+v", n)
	}
	cp.WaitForEvent(t, events.TypeNodeAdopted, 1)
}

// A deletion that stops after any step leaves the node as it was.
func TestADeletionIsWholeOrNothing(t *testing.T) {
	errStop := errors.New("stopped")
	var left atomic.Int64 // steps until the fault; negative is none
	left.Store(-1)
	cp := controlplanetest.Start(t, controlplanetest.Options{AfterStep: func(string) error {
		if left.Load() >= 0 && left.Add(-1) < 0 {
			return errStop
		}
		return nil
	}})
	m := newMachine(t, cp).mustJoin()
	waitForEmptyQueue(t, cp)
	before := m.node("nodes.get")
	in := httpapi.NodeRef{TenantID: cp.Tenant, NodeID: before.ID}
	api := operator(t, cp)
	told := len(cp.Events(t))
	steps := int64(0)
	for ; ; steps++ {
		left.Store(steps)
		var n httpapi.Node
		err := api.Call(context.Background(), "nodes.delete", in, &n)
		left.Store(-1)
		if err == nil {
			break
		}
		if after := m.node("nodes.get"); after.State != before.State || after.Certificate.RevokedAt != nil || after.HardwareKey == nil || len(cp.Events(t)) != told {
			t.Fatalf("stopped after %d steps: %+v", steps, after)
		}
	}
	if steps < 8 {
		t.Errorf("only %d steps", steps)
	}
	if after := m.node("nodes.get"); after.State != "retired" {
		t.Errorf("the node is %+v", after)
	}
}

// waitForEmptyQueue waits until the controllers have nothing left to write.
func waitForEmptyQueue(t *testing.T, cp *controlplanetest.ControlPlane) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		var waiting []store.Queued
		cp.Read(t, func(tx *store.Tx) (err error) {
			waiting, err = tx.Queue(1)
			return err
		})
		if len(waiting) == 0 {
			return
		}
	}
	t.Fatal("the queue never empties")
}

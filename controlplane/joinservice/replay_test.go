package joinservice_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
)

// A lost answer costs nothing: the same request gets the same certificate again, even when the token no longer admits.
func TestJoinIsIdempotentByItsCSR(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	tok := w.token(uses(2))
	req := w.request(m, tok)
	first, err := w.svc.Join(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	before := w.dump()
	w.clock.add(2 * time.Hour) // the token has expired
	var steps []string
	w.step = func(s string) error { steps = append(steps, s); return nil }
	second, err := w.svc.Join(t.Context(), req)
	if err != nil {
		t.Fatalf("%v%s", err, w.lastRefusal())
	}
	if bytes.Equal(first.GetBody(), second.GetBody()) {
		t.Error("the body is not newly made")
	}
	a, b := leafOf(t, w.open(req, second)), w.certs(w.nodes()[0].ID)
	if len(b) != 1 || !bytes.Equal(a.Raw, b[0].DER) {
		t.Error("another certificate")
	}
	if len(steps) != 0 || w.dump() != before {
		t.Errorf("the repeat wrote %q", steps)
	}
	w.step = nil
	// A new seal and other claims of the same machine are the same request.
	m.claims.Hostname = "renamed"
	if _, err := w.join(m, tok); err != nil {
		t.Errorf("sealed again: %v%s", err, w.lastRefusal())
	}
	if w.usesLeft(tok.ID) != 1 {
		t.Errorf("%d uses left", w.usesLeft(tok.ID))
	}
	w.write(func(tx *store.Tx) error { _, err := tx.RevokeToken(tok.ID); return err })
	if _, err := w.join(m, tok); err != nil {
		t.Errorf("token revoked: %v%s", err, w.lastRefusal())
	}
}

// What was admitted once is never admitted afresh: a captured request must not reclaim the node.
func TestReplayedJoinIsRefused(t *testing.T) {
	for name, c := range map[string]func(w *world, m *machine, nodeID string, tok *token) []func(*call){
		"revoked": func(w *world, _ *machine, id string, _ *token) []func(*call) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(id, 1, "operator"); return err })
			return nil
		},
		"expired": func(w *world, _ *machine, _ string, _ *token) []func(*call) {
			w.clock.add(24 * time.Hour)
			return nil
		},
		"reclaimed since": func(w *world, m *machine, _ string, _ *token) []func(*call) {
			key, csr := m.key, m.csr
			m.newKey(w.t)
			w.mustJoin(m, w.token(allowReclaim))
			m.key, m.csr = key, csr
			return nil
		},
		"retired": func(w *world, _ *machine, id string, _ *token) []func(*call) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(id, store.NodeRetired) })
			return nil
		},
		"another token": func(w *world, _ *machine, _ string, tok *token) []func(*call) {
			*tok = w.token(allowReclaim)
			return nil
		},
		"another role": func(*world, *machine, string, *token) []func(*call) { return []func(*call){role("site")} },
		"another site": func(*world, *machine, string, *token) []func(*call) {
			return []func(*call){func(c *call) { c.body.Site = "site_x" }}
		},
		"a node id": func(*world, *machine, string, *token) []func(*call) {
			return []func(*call){func(c *call) { c.body.NodeId = "node_x" }}
		},
		"another CSR of the key": func(w *world, m *machine, _ string, _ *token) []func(*call) {
			m.csr = newCSR(w.t, m.key) // ECDSA signatures differ
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := newWorld(t), newMachine(t)
			tok := w.token(uses(5), allowReclaim)
			a := w.mustJoin(m, tok)
			change := c(w, m, a.GetNodeId(), &tok)
			uses, generation := w.usesLeft(tok.ID), w.node(a.GetNodeId()).IdentityGeneration
			if e := w.refusedJoin(w.request(m, tok, change...), w.root); e.Reason != "join:replayed" {
				t.Errorf("reason %q", e.Reason)
			}
			if n := w.node(a.GetNodeId()); n.IdentityGeneration != generation || w.usesLeft(tok.ID) != uses || len(w.nodes()) != 1 {
				t.Errorf("node %+v, %d uses left", n, w.usesLeft(tok.ID))
			}
		})
	}
}

// moving is an attestor whose grants can change: an approval that was given for another pool since, for instance.
type moving struct {
	joinservice.JoinToken
	change func(*joinservice.Grant)
}

func (a *moving) Open(ctx context.Context, r *joinservice.Request) (joinservice.Credential, error) {
	c, err := a.JoinToken.Open(ctx, r)
	return movingCredential{c, a.change}, err
}

type movingCredential struct {
	joinservice.Credential
	change func(*joinservice.Grant)
}

func (c movingCredential) Prove(tx *store.Tx) (*joinservice.Grant, error) {
	g, err := c.Credential.Prove(tx)
	if err == nil && c.change != nil {
		c.change(g)
	}
	return g, err
}

func TestReplayUnderAnotherGrantIsRefused(t *testing.T) {
	for name, change := range map[string]func(*joinservice.Grant){
		"pool": func(g *joinservice.Grant) { g.PoolID = "pool_x" },
		"site": func(g *joinservice.Grant) { g.SiteID = "site_x" },
	} {
		var a *moving
		w := newWorld(t, func(o *joinservice.Options) {
			a = &moving{JoinToken: joinservice.JoinToken{Keys: o.Keys.Decryption}}
			o.Attestors = []joinservice.Attestor{a}
		})
		m, tok := newMachine(t), w.token(uses(5))
		w.mustJoin(m, tok)
		a.change = change
		if e := w.refusedJoin(w.request(m, tok), w.root); e.Reason != "join:replayed" {
			t.Errorf("another %s: reason %q", name, e.Reason)
		}
	}
}

// A repeat must prove the credential again: the CSR is no secret.
func TestRepeatNeedsTheSecret(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	tok := w.token()
	w.mustJoin(m, tok)
	e := w.refusedJoin(w.request(m, tok, func(c *call) { c.token = withSecret(tok, [32]byte{1}) }), w.root)
	if e.Reason != "join-token:secret-mismatch" {
		t.Errorf("reason %q", e.Reason)
	}
	if got := len(eventsOf[events.NodeJoined](w, w.root)); got != 1 {
		t.Errorf("%d events", got)
	}
}

package joinservice_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/joinservice"
	"github.com/better-compute/bcd/controlplane/store"
)

// sessionRefused is the answer to every refused session, as the bytes of google.rpc.Status.
var sessionRefused = strings.Replace(joinRefused, "\fJoin refused", "\x0fSession refused", 1)

// stream is a session's call: the server's side of it without the network.
type stream struct {
	grpc.ServerStream
	ctx  context.Context
	sent chan *joinv1.SessionEvent
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(e *joinv1.SessionEvent) error {
	select {
	case s.sent <- e:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// session is an open call of Session.
type session struct {
	t      testing.TB
	events chan *joinv1.SessionEvent
	end    context.CancelFunc
	done   chan error
}

func (w *world) dial(m *member, change ...func(*joinv1.SessionRequest)) *session {
	req := &joinv1.SessionRequest{
		Peer: &joinv1.Peer{Certificate: m.leaf},
		Hello: &daemonv1.Hello{
			NodeId: m.nodeID, AgentVersion: "0.1.0", ProtocolMin: 1, ProtocolMax: 1, BootId: "boot-1",
		},
		Gateway: "gw-1",
	}
	for _, f := range change {
		f(req)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.t.Cleanup(cancel)
	s := &session{t: w.t, events: make(chan *joinv1.SessionEvent), end: cancel, done: make(chan error, 1)}
	go func() {
		s.done <- w.svc.Session(req, &stream{ctx: ctx, sent: s.events})
		close(s.events)
	}()
	return s
}

// opened waits for the Welcome.
func (s *session) opened() *joinv1.SessionOpened {
	s.t.Helper()
	e, ok := <-s.events
	if !ok {
		s.t.Fatalf("not opened: %v", <-s.done)
	}
	if e.GetOpened() == nil {
		s.t.Fatalf("not opened: %v", e)
	}
	return e.GetOpened()
}

// goodbye waits for the end and returns its reason.
func (s *session) goodbye() *daemonv1.Goodbye {
	s.t.Helper()
	e := <-s.events
	if e.GetEnded() == nil {
		s.t.Fatalf("not ended: %v", e)
	}
	if err := <-s.done; err != nil {
		s.t.Errorf("the call ended with %v", err)
	}
	return e.GetEnded().GetGoodbye()
}

// hangUp ends the call as a node that goes away does, and waits for it.
func (s *session) hangUp() {
	s.end()
	<-s.done
}

func bootID(id string) func(*joinv1.SessionRequest) {
	return func(r *joinv1.SessionRequest) { r.Hello.BootId = id }
}

// Req: SS-002 SS-003 SS-004 SS-006 JF-048
func TestSessionOfANodeThatIsToBeAccepted(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	s := w.dial(m)
	o := s.opened()
	welcome := o.GetWelcome()
	if welcome.GetSessionId() == "" || welcome.GetServerTimeUnixMs() != epoch.UnixMilli() ||
		welcome.GetHeartbeatIntervalSeconds() != 25 || welcome.GetProtocol() != 1 ||
		o.GetNotAfterUnixMs() != w.certs(m.nodeID)[0].NotAfter.UnixMilli() {
		t.Errorf("opened %v", o)
	}
	queue := query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) })
	if len(queue) != 1 || queue[0].NodeID != m.nodeID || queue[0].Reason != "hello" {
		t.Errorf("queue %v", queue)
	}
	want := []events.NodeConnected{{
		NodeID: m.nodeID, SessionID: welcome.GetSessionId(), Serial: w.certs(m.nodeID)[0].Serial, AgentVersion: "0.1.0", Gateway: "gw-1",
	}}
	if got := eventsOf[events.NodeConnected](w, w.root); !slices.Equal(got, want) {
		t.Errorf("events %+v", got)
	}
	if !w.svc.Connected(m.nodeID) {
		t.Error("not connected")
	}
	if w.certs(m.nodeID)[0].FirstUsedAt.IsZero() {
		t.Error("the certificate's first use is not recorded")
	}
	s.hangUp()
	if w.svc.Connected(m.nodeID) {
		t.Error("still connected")
	}
	gone := eventsOf[events.NodeDisconnected](w, w.root)
	if len(gone) != 1 || gone[0] != (events.NodeDisconnected{NodeID: m.nodeID, SessionID: welcome.GetSessionId(), Reason: "closed"}) {
		t.Errorf("events %+v", gone)
	}
	// Only the first Hello queues the node, until it joins again.
	w.write(func(tx *store.Tx) error { return tx.Dequeue(m.nodeID) })
	s = w.dial(m)
	s.opened()
	if queue := query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) }); len(queue) != 0 {
		t.Errorf("queue %v", queue)
	}
	s.hangUp()
}

// Req: JF-077
func TestHelloAfterAReclaimStartsAcceptanceAgain(t *testing.T) {
	w, m := newWorld(t), newMachine(t)
	first := w.mustJoin(m, w.token())
	s := w.dial(&member{nodeID: first.GetNodeId(), leaf: first.GetChain()[0]})
	s.opened()
	w.write(func(tx *store.Tx) error { return tx.Dequeue(first.GetNodeId()) })
	m.newKey(t)
	second := w.mustJoin(m, w.token(allowReclaim))
	if bye := s.goodbye(); bye.GetReason() != "certificate-revoked" { // at once: nothing here waits for a clock
		t.Errorf("goodbye %v", bye)
	}
	s = w.dial(&member{nodeID: second.GetNodeId(), leaf: second.GetChain()[0]})
	s.opened()
	if queue := query(w, func(tx *store.Tx) ([]store.Queued, error) { return tx.Queue(10) }); len(queue) != 1 {
		t.Errorf("queue %v", queue)
	}
	s.hangUp()
}

func TestSessionsThatAreRefused(t *testing.T) {
	for name, c := range map[string]func(w *world, m *member, r *joinv1.SessionRequest){
		"no certificate":   func(_ *world, _ *member, r *joinv1.SessionRequest) { r.Peer.Certificate = nil },
		"foreign":          func(w *world, m *member, r *joinv1.SessionRequest) { r.Peer.Certificate = foreignLeaf(w, m) },
		"overlong hello":   func(_ *world, _ *member, r *joinv1.SessionRequest) { r.Hello.BootId = strings.Repeat("x", 200) },
		"overlong command": func(_ *world, _ *member, r *joinv1.SessionRequest) { r.Hello.LastCommand = strings.Repeat("x", 200) },
		"overlong serial": func(_ *world, _ *member, r *joinv1.SessionRequest) {
			r.Hello.CertificateSerial = strings.Repeat("x", 200)
		},
		"overlong version": func(_ *world, _ *member, r *joinv1.SessionRequest) { r.Hello.AgentVersion = strings.Repeat("x", 200) },
		"overlong digest":  func(_ *world, _ *member, r *joinv1.SessionRequest) { r.Hello.ClaimsDigest = make([]byte, 33) },
		"another node id":  func(w *world, _ *member, r *joinv1.SessionRequest) { r.Hello.NodeId = w.member().nodeID },
		"revoked": func(w *world, m *member, _ *joinv1.SessionRequest) {
			w.write(func(tx *store.Tx) error { _, err := tx.RevokeCerts(m.nodeID, 1, "operator"); return err })
		},
		"expired": func(w *world, _ *member, _ *joinv1.SessionRequest) { w.clock.add(24 * time.Hour) },
		"retired": func(w *world, m *member, _ *joinv1.SessionRequest) {
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(m.nodeID, store.NodeRetired) })
		},
		"replaced by a certificate in use": func(w *world, m *member, _ *joinv1.SessionRequest) {
			w.mustRenew(w.mustRenew(m))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.member()
			s := w.dial(m, func(r *joinv1.SessionRequest) { c(w, m, r) })
			if e, ok := <-s.events; ok {
				t.Fatalf("got %v", e)
			}
			if got := wire(t, <-s.done); got != sessionRefused {
				t.Errorf("answer %q, want %q", got, sessionRefused)
			}
			if got := eventsOf[events.NodeConnected](w, w.root); len(got) != 0 {
				t.Errorf("events %+v", got)
			}
		})
	}
}

func TestSessionNeedsProtocolOne(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	for _, r := range [][2]uint32{{2, 3}, {0, 0}} {
		s := w.dial(m, func(req *joinv1.SessionRequest) { req.Hello.ProtocolMin, req.Hello.ProtocolMax = r[0], r[1] })
		wantCode(t, <-s.done, codes.FailedPrecondition, "The control plane speaks protocol 1")
	}
	s := w.dial(m, func(req *joinv1.SessionRequest) { req.Hello.ProtocolMin, req.Hello.ProtocolMax = 1, 7 })
	s.opened()
	s.hangUp()
}

// One session a node: a newer one ends the older. A renewed certificate opens the next before the last is closed.
func TestNewerSessionEndsTheOlder(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	old := w.dial(m)
	old.opened()
	next := w.mustRenew(m)
	fresh := w.dial(next)
	fresh.opened()
	if bye := old.goodbye(); bye.GetReason() != "superseded" {
		t.Errorf("goodbye %v", bye)
	}
	if !w.svc.Connected(m.nodeID) {
		t.Error("the newer session's place is free")
	}
	fresh.hangUp()
	if w.svc.Connected(m.nodeID) {
		t.Error("still connected")
	}
}

// Two machines that use one identity take turns: after the second time, both are out until the machine joins again.
func TestDuplicateIdentity(t *testing.T) {
	w, hw := newWorld(t), newMachine(t)
	a := w.mustJoin(hw, w.token())
	m := &member{nodeID: a.GetNodeId(), leaf: a.GetChain()[0]}
	var last *session
	for _, id := range []string{"a", "b", "a"} {
		s := w.dial(m, bootID(id))
		s.opened()
		if last != nil {
			if bye := last.goodbye(); bye.GetReason() != "superseded" {
				t.Errorf("goodbye %v", bye)
			}
		}
		last = s
	}
	second := w.dial(m, bootID("b"))
	for _, s := range []*session{second, last} {
		if bye := s.goodbye(); bye.GetReason() != "duplicate-identity" {
			t.Errorf("goodbye %v", bye)
		}
	}
	if c := w.node(m.nodeID).Conditions; len(c) != 1 || c[0].Type != joinservice.ConditionDuplicateIdentity {
		t.Errorf("conditions %+v", c)
	}
	if err := <-w.dial(m, bootID("a")).done; wire(t, err) != sessionRefused {
		t.Errorf("answer %v", err)
	}
	hw.newKey(t)
	a = w.mustJoin(hw, w.token(allowReclaim))
	s := w.dial(&member{nodeID: a.GetNodeId(), leaf: a.GetChain()[0]}, bootID("a"))
	s.opened()
	s.hangUp()
}

// A machine that boots again and again is one machine.
func TestRebootsAreNoDuplicate(t *testing.T) {
	w := newWorld(t)
	m := w.member()
	for _, id := range []string{"a", "a", "b", "c", "", "c", "d"} {
		s := w.dial(m, bootID(id))
		s.opened()
		s.hangUp()
	}
}

func TestRevocationEndsTheSessionAtOnce(t *testing.T) {
	for name, change := range map[string]func(tx *store.Tx, id string) error{
		"revoked": func(tx *store.Tx, id string) error { _, err := tx.RevokeCerts(id, 1, "operator"); return err },
		"retired": func(tx *store.Tx, id string) error { return tx.SetNodeState(id, store.NodeRetired) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.member()
			s := w.dial(m)
			s.opened()
			w.write(func(tx *store.Tx) error { return tx.SetNodeState(m.nodeID, store.NodeAdopted) }) // this one does not
			w.write(func(tx *store.Tx) error { return change(tx, m.nodeID) })
			if bye := s.goodbye(); bye.GetReason() != "certificate-revoked" || bye.GetReconnectAfterSeconds() != 60 {
				t.Errorf("goodbye %v", bye)
			}
		})
	}
}

// A change by another process is found without being told.
func TestSessionPolls(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newBubble(t, dir)
		m := w.member()
		s := w.dial(m)
		s.opened()
		other, err := store.Open(t.Context(), store.Options{Path: filepath.Join(dir, "control.db"), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Write(t.Context(), func(tx *store.Tx) error {
			_, err := tx.RevokeCerts(m.nodeID, 1, "operator")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if bye := s.goodbye(); bye.GetReason() != "certificate-revoked" {
			t.Errorf("goodbye %v", bye)
		}
		if d := time.Since(start); d > joinservice.DefaultPoll {
			t.Errorf("found after %v", d)
		}
	})
}

func TestSessionEndsWithItsCertificate(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		w := newBubble(t, dir, func(o *joinservice.Options) { o.CertTTL = 10*time.Minute + 7*time.Second })
		m := w.member()
		s := w.dial(m)
		notAfter := time.UnixMilli(s.opened().GetNotAfterUnixMs())
		if bye := s.goodbye(); bye.GetReason() != "certificate-expired" || bye.GetReconnectAfterSeconds() != 0 {
			t.Errorf("goodbye %v", bye)
		}
		if late := time.Since(notAfter); late < 0 || late > time.Second {
			t.Errorf("ended %v after the certificate", late)
		}
	})
}

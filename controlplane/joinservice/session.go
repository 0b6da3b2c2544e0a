package joinservice

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"time"

	"google.golang.org/grpc"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
)

// Reasons of a Goodbye, and of a node.disconnected event.
const (
	endSuperseded = "superseded"
	endExpired    = "certificate-expired"
	endRevoked    = "certificate-revoked"
	endDuplicate  = "duplicate-identity"
	endClosed     = "closed" // the node or its gateway went away; only in events
)

// ConditionDuplicateIdentity is the condition of a node whose identity two machines use. It ends when the machine joins
// again.
const ConditionDuplicateIdentity = "DuplicateIdentity"

// reconnectAfter is how long a daemon stays away after a Goodbye, at least.
var reconnectAfter = map[string]time.Duration{
	endSuperseded: 30 * time.Second, // two daemons with one identity must not chase each other
	endExpired:    0,
	endRevoked:    time.Minute,
	endDuplicate:  time.Minute,
}

// closingWrite bounds the write that a session makes when its call is over.
const closingWrite = 10 * time.Second

// live is an open session.
type live struct {
	id       string
	hello    *daemonv1.Hello
	gateway  string
	cert     store.Cert
	node     store.Node
	serverAt time.Time
}

// Session implements [joinv1.JoinServiceServer].
func (s *Service) Session(in *joinv1.SessionRequest, stream grpc.ServerStreamingServer[joinv1.SessionEvent]) error {
	if s.keys == nil {
		return errNoKeys
	}
	ctx := stream.Context()
	arrived := s.now()
	err := s.session(ctx, in, stream.Send)
	if err == nil {
		return nil
	}
	return s.answer(ctx, arrived, err, errSessionRefused, func(r *refusal) {
		s.log.InfoContext(ctx, "refuse session", "reason", r.reason, "node", in.GetHello().GetNodeId())
	})
}

func (s *Service) session(ctx context.Context, in *joinv1.SessionRequest, send func(*joinv1.SessionEvent) error) error {
	hello := in.GetHello()
	if len(hello.GetClaimsDigest()) > sha256.Size {
		return Refuse("hello")
	}
	for _, text := range []string{hello.GetAgentVersion(), hello.GetBootId(), hello.GetCertificateSerial(), hello.GetLastCommand()} {
		if len(text) > maxText { // all of it is kept as long as the session
			return Refuse("hello")
		}
	}
	if hello.GetProtocolMin() > protocol || hello.GetProtocolMax() < protocol {
		return errProtocol
	}
	peer, err := x509.ParseCertificate(in.GetPeer().GetCertificate())
	if err != nil {
		return Refuse(reasonUnknown)
	}
	v := &live{hello: hello, gateway: in.GetGateway()}
	if err := s.store.Read(ctx, func(tx *store.Tx) error { return v.check(tx, peer) }); err != nil {
		return err
	}
	// Watched before it is checked for the last time, so that no change is missed.
	changed, stop := s.store.Watch(store.NodeTopic(v.node.ID))
	defer stop()
	if err := s.store.Write(ctx, func(tx *store.Tx) error { return v.open(tx, peer) }); err != nil {
		return err
	}
	slot, duplicate := s.sessions.enter(v.node.ID, v.node.IdentityGeneration, hello.GetBootId())
	defer s.sessions.leave(v.node.ID, slot)
	reason := endClosed
	defer func() { s.close(ctx, v, reason) }()
	if duplicate {
		reason = endDuplicate
		if err := s.markDuplicate(ctx, v.node.ID); err != nil {
			return err
		}
		return send(ended(reason))
	}
	if err := send(v.opened(s.heartbeat)); err != nil {
		return err
	}
	if reason, err = s.hold(ctx, v, slot, changed); err != nil {
		return err
	}
	return send(ended(reason))
}

// check finds the certificate and checks that it opens a session for the node that Hello names.
func (v *live) check(tx *store.Tx, peer *x509.Certificate) (err error) {
	if v.cert, v.node, err = findLeaf(tx, peer); err != nil {
		return err
	}
	if err := checkLeaf(tx, v.cert, v.node); err != nil {
		return err
	}
	if v.hello.GetNodeId() != v.node.ID {
		return Refuse(reasonIdentity)
	}
	for _, c := range v.node.Conditions {
		if c.Type == ConditionDuplicateIdentity {
			return Refuse(endDuplicate)
		}
	}
	// A renewed certificate is good until its successor is in use.
	successors, err := tx.Successors(v.cert.Serial)
	if err != nil {
		return err
	}
	for _, c := range successors {
		if !c.FirstUsedAt.IsZero() {
			return Refuse(endSuperseded)
		}
	}
	return nil
}

// open records the session's start. The first Hello of a node that is to be accepted queues it.
func (v *live) open(tx *store.Tx, peer *x509.Certificate) error {
	if err := v.check(tx, peer); err != nil {
		return err
	}
	v.id, v.serverAt = tx.NewID(store.PrefixSession), tx.Now()
	if err := markUsed(tx, v.cert); err != nil {
		return err
	}
	first, err := tx.RecordHello(v.node.ID, v.hello.GetClaimsDigest())
	if err != nil {
		return err
	}
	if err := tx.Publish(v.node.TenantID, events.NodeConnected{
		NodeID: v.node.ID, SessionID: v.id, Serial: v.cert.Serial, AgentVersion: v.hello.GetAgentVersion(), Gateway: v.gateway,
	}); err != nil {
		return err
	}
	if first && v.node.State == store.NodeAdopting {
		return tx.Enqueue(v.node.ID, "hello")
	}
	return nil
}

func (v *live) opened(heartbeat time.Duration) *joinv1.SessionEvent {
	return &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Opened{Opened: &joinv1.SessionOpened{
		Welcome: &daemonv1.Welcome{
			SessionId: v.id, ServerTimeUnixMs: v.serverAt.UnixMilli(), Protocol: protocol,
			HeartbeatIntervalSeconds: uint32(heartbeat / time.Second), //nolint:gosec // at most 60
		},
		NotAfterUnixMs: v.cert.NotAfter.UnixMilli(),
	}}}
}

func ended(reason string) *joinv1.SessionEvent {
	return &joinv1.SessionEvent{Event: &joinv1.SessionEvent_Ended{Ended: &joinv1.SessionEnded{Goodbye: &daemonv1.Goodbye{
		Reason: reason, ReconnectAfterSeconds: uint32(reconnectAfter[reason] / time.Second), //nolint:gosec // small
	}}}}
}

// hold waits until the session must end and returns why. An error is the end of the call.
func (s *Service) hold(ctx context.Context, v *live, slot *slot, changed <-chan struct{}) (string, error) {
	for {
		// Clocks jump and other processes write, so a wait is never longer than a poll.
		wait := max(min(s.poll, v.cert.NotAfter.Sub(s.now())), 0)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return endClosed, ctx.Err()
		case <-slot.ended:
			timer.Stop()
			return slot.reason, nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
		err := s.store.Read(ctx, func(tx *store.Tx) error { return v.recheck(tx) })
		var r *refusal
		switch {
		case errors.As(err, &r) && r.reason == reasonExpired:
			return endExpired, nil
		case errors.As(err, &r):
			return endRevoked, nil
		case ctx.Err() != nil:
			return endClosed, ctx.Err()
		case err != nil:
			return endClosed, err
		}
	}
}

// recheck looks at the certificate again. That its successor is in use does not end a session: the successor's own does.
func (v *live) recheck(tx *store.Tx) error {
	c, err := tx.Cert(v.cert.Serial)
	if err != nil {
		return err
	}
	n, err := tx.Node(v.node.ID)
	if err != nil {
		return err
	}
	return checkLeaf(tx, c, n)
}

// close publishes the session's end. The call may be over, so its context does not count.
func (s *Service) close(ctx context.Context, v *live, reason string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingWrite)
	defer cancel()
	err := s.store.Write(ctx, func(tx *store.Tx) error {
		return tx.Publish(v.node.TenantID, events.NodeDisconnected{NodeID: v.node.ID, SessionID: v.id, Reason: reason})
	})
	if err != nil {
		s.log.ErrorContext(ctx, "publish disconnect", "node", v.node.ID, "error", err)
	}
}

// markDuplicate sets the condition that keeps both machines out until the node's identity is revoked and joins again.
func (s *Service) markDuplicate(ctx context.Context, nodeID string) error {
	return s.store.Write(ctx, func(tx *store.Tx) error {
		n, err := tx.Node(nodeID)
		if err != nil {
			return err
		}
		return tx.SetNodeConditions(nodeID, append(n.Conditions, store.Condition{
			Type:    ConditionDuplicateIdentity,
			Message: "two machines use this identity; revoke it and join the right one again",
			Since:   tx.Now(),
		}))
	})
}

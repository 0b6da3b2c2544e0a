package agent

import (
	"context"
	"crypto"
	"crypto/tls"
	"errors"
	"sync"
	"time"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// liveSession is a session that runs.
type liveSession struct {
	*session.Session
	id       *identity.Identity // whose certificate it presents
	opened   time.Time
	ended    chan error // gets why the session ended, once
	cancel   context.CancelFunc
	vouching sync.WaitGroup // what sends vouches
}

func (l *liveSession) stop() {
	if l != nil {
		l.cancel()
		l.Close()
		l.vouching.Wait()
	}
}

// end is the channel that says why the session ended; nil, which blocks for ever, without a session.
func (l *liveSession) end() <-chan error {
	if l == nil {
		return nil
	}
	return l.ended
}

// keepConnected holds one session. After a renewal it opens the new session before it closes the old one. It returns
// when ctx ends, or when the control plane refuses the node.
func (n *node) keepConnected(ctx context.Context) error {
	var live *liveSession
	defer func() { live.stop() }()
	var retry backoff
	attempt := time.NewTimer(0)
	defer attempt.Stop()
	alive := time.NewTicker(10 * time.Second)
	defer alive.Stop()
	for {
		n.connecting.beat(time.Now())
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-alive.C:
		case <-n.renewed:
			attempt.Reset(n.waitAfterRenewal(live))
		case err := <-live.end():
			wait := n.sessionEnded(ctx, live, err, &retry)
			live.stop()
			live = nil
			attempt.Reset(wait)
		case <-attempt.C:
			next, err := n.openSession(ctx)
			if err == nil {
				live.stop() // the new session stands before the old one ends
				live = next
				continue
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if live == nil && n.lostForGood(err) {
				return &parkedError{err: n.expired(err)}
			}
			if live == nil && fault.Is(err, fault.AccessDenied) {
				return &parkedError{err: n.refused(err)}
			}
			wait := max(retry.next(), pauseOf(err))
			n.notConnected(ctx, live, err, wait)
			attempt.Reset(wait)
		}
	}
}

// openSession opens a session with the current identity and starts to run it.
func (n *node) openSession(ctx context.Context) (*liveSession, error) {
	id, key := n.current()
	ctx, cancel := context.WithCancel(ctx)
	s, err := session.Open(ctx, n.gateway(id), clientCertificate(id, key), n.hello(ctx, id))
	if err != nil {
		cancel()
		return nil, err
	}
	n.clock.Hint(s.ServerTime)
	l := &liveSession{Session: s, id: id, opened: n.clock.Local(), ended: make(chan error, 1), cancel: cancel}
	acks := make(chan *daemonv1.VouchAck, 1)
	go func() { l.ended <- s.Run(ctx, n.handling(acks)) }()
	if n.board.vouches != nil {
		l.vouching.Go(func() { n.sendVouches(ctx, l, key, acks) })
	}
	n.log.InfoContext(ctx, "open session", "session", s.ID, "node", id.NodeID, certificateAttrs(id))
	n.board.update(func(st *Status) {
		if st.State != Connected {
			st.State, st.Since = Connected, n.clock.Local()
		}
		st.problem(nil)
		st.Session = &SessionStatus{ID: s.ID, Gateway: n.cfg.Gateway.Address, Since: n.clock.Local()}
	})
	n.notify.status("connected as " + id.NodeID)
	return l, nil
}

func clientCertificate(id *identity.Identity, key crypto.Signer) *tls.Certificate {
	return &tls.Certificate{Certificate: id.Chain.DER(), PrivateKey: key, Leaf: id.Leaf()}
}

func (n *node) hello(ctx context.Context, id *identity.Identity) *daemonv1.Hello {
	h := &daemonv1.Hello{
		NodeId: id.NodeID, AgentVersion: n.version, ProtocolMin: session.Protocol, ProtocolMax: session.Protocol,
		BootId: n.bootID, CertificateSerial: serialText(id.Leaf()),
	}
	if report, err := n.Claims(ctx); err == nil && report.Incomplete() == nil {
		h.ClaimsDigest = report.Assess().HardwareKey
	}
	return h
}

// handling returns what takes the frames of one session's gateway. Answers to vouches go to acks; one that nobody waits for
// is dropped.
func (n *node) handling(acks chan<- *daemonv1.VouchAck) func(*daemonv1.GatewayFrame) error {
	ignore := n.ignoring()
	return func(f *daemonv1.GatewayFrame) error {
		ack := f.GetVouchAck()
		if ack == nil || n.board.vouches == nil {
			return ignore(f)
		}
		select {
		case acks <- ack:
		default:
		}
		return nil
	}
}

// ignoring returns what takes the frames that this version does not know. It says so once for each
// kind, so that a gateway cannot fill the log.
func (n *node) ignoring() func(*daemonv1.GatewayFrame) error {
	said := map[string]bool{}
	return func(f *daemonv1.GatewayFrame) error {
		if kind := frameKind(f); !said[kind] {
			said[kind] = true
			n.log.Warn("ignore frames", "kind", kind, "hint", "upgrade bcd: the control plane sends what this version does not know")
		}
		return nil
	}
}

func frameKind(f *daemonv1.GatewayFrame) string {
	switch f.GetFrame().(type) {
	case *daemonv1.GatewayFrame_Command:
		return "command"
	case *daemonv1.GatewayFrame_ResultAck:
		return "result_ack"
	case *daemonv1.GatewayFrame_VouchAck:
		return "vouch_ack"
	case *daemonv1.GatewayFrame_Welcome:
		return "welcome"
	default:
		return "unknown"
	}
}

// waitAfterRenewal returns how long to wait before the new session: spread, but well within what is left of the
// certificate that the live one presents.
func (n *node) waitAfterRenewal(live *liveSession) time.Duration {
	limit := afterOwnChange
	if live != nil {
		limit = min(limit, live.id.Leaf().NotAfter.Sub(n.clock.Server())/4)
	}
	return uniform(limit)
}

// sessionEnded records the end of a session and returns how long to wait before the next.
func (n *node) sessionEnded(ctx context.Context, live *liveSession, err error, retry *backoff) time.Duration {
	if n.clock.Local().Sub(live.opened) >= healthyAfter {
		retry.reset()
	}
	wait := max(uniform(afterSession), pauseOf(err))
	if id, _ := n.current(); id != live.id {
		wait = n.waitAfterRenewal(nil) // its certificate ended before the new session was there
	}
	n.log.WarnContext(ctx, "lose session", "session", live.ID, "error", err, "reconnect_in", wait.Round(time.Millisecond).String())
	n.disconnected(err)
	return wait
}

// notConnected records a failed attempt to open a session. With a session that still runs nothing else changes.
func (n *node) notConnected(ctx context.Context, live *liveSession, err error, wait time.Duration) {
	n.log.WarnContext(ctx, "fail to open session", "error", err, "hint", fault.HintOf(err), "retry_in", wait.Round(time.Millisecond).String())
	if live == nil {
		n.disconnected(err)
	}
}

func (n *node) disconnected(err error) {
	n.board.update(func(s *Status) {
		if s.State != Connecting {
			s.State, s.Since = Connecting, n.clock.Local()
		}
		s.Session = nil
		s.problem(err)
	})
	n.notify.status("not connected: " + err.Error())
}

// pauseOf returns how long the other side asked to stay away: that long, and up to as much again.
func pauseOf(err error) time.Duration {
	after := session.RetryAfter(err)
	var bye *session.Goodbye
	if errors.As(err, &bye) {
		after = bye.ReconnectAfter
	}
	return after + uniform(after)
}

// refused says why the control plane refuses the node, as far as the node can know.
func (n *node) refused(err error) error {
	id, _ := n.current()
	if n.clock.Proof(0).After(id.Leaf().NotAfter) {
		return n.expired(err)
	}
	return fault.New(fault.AccessDenied, "ask the control plane's operator why; to join again, "+fault.HintJoinAgain,
		"the control plane refuses this node: %w", err)
}

package agent

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

// rejoinWithin is for how long after its end a certificate lets its machine join again (x509pop).
const rejoinWithin = 7 * 24 * time.Hour

// live runs the node, and joins it again with its certificate where that expired: as a renewal does, without a person. It
// returns when ctx ends or the node must park.
func (n *node) live(ctx context.Context) error {
	for again := false; ; again = true {
		err := n.run(ctx)
		var parked *parkedError
		if ctx.Err() != nil || !errors.As(err, &parked) || !n.rejoins(err, again) {
			return err
		}
		if err := n.rejoin(ctx); err != nil {
			return err
		}
	}
}

// rejoins reports whether a node that the control plane refuses may still come back by itself: its certificate expired, and
// not long ago. again says that it did so before: a gateway that calls the new certificate expired too, because its clock is
// wrong or it lies, must not have the node ask for one after the other.
func (n *node) rejoins(refusal error, again bool) bool {
	id, _ := n.current()
	now, end := n.clock.Proof(0), id.Leaf().NotAfter
	if id.Role == identity.RoleRamdisk || now.After(end.Add(rejoinWithin)) {
		return false
	}
	return now.After(end) || !again && errors.Is(refusal, session.ErrCertificateExpired)
}

// rejoin joins the node again with its expired certificate, until that succeeds, is refused, or comes too late. A gateway that
// is away or forges an answer is no reason to end, as in a renewal.
func (n *node) rejoin(ctx context.Context) error {
	renewal, err := n.next().BeginRenewal(ctx)
	if err != nil {
		return &parkedError{err: n.expired(err)}
	}
	defer renewal.Close()
	id, key := renewal.Current()
	proof, err := newX509PoP(n.Agent, id, key, nil)
	if err != nil {
		return err
	}
	schedule := identity.ScheduleOf(id)
	for failures := 1; ; failures++ {
		next, err := n.rejoinOnce(ctx, renewal, proof)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err == nil {
			n.log.InfoContext(ctx, "join again with expired certificate", "node", next.NodeID, certificateAttrs(next))
			return nil
		}
		if fault.Is(err, fault.AccessDenied) && proof.again() {
			continue
		}
		if code := fault.CodeOf(err); !code.Temporary() && code != fault.Verification {
			return &parkedError{err: n.expired(err)}
		}
		if n.clock.Proof(0).After(id.Leaf().NotAfter.Add(rejoinWithin)) {
			return &parkedError{err: n.expired(err)}
		}
		now := n.clock.Server()
		due := schedule.Retry(now, failures, rand.Float64())
		if asked := now.Add(session.RetryAfter(err)); asked.After(due) {
			due = asked
		}
		n.log.WarnContext(ctx, "fail to join again with expired certificate", "error", err, "hint", fault.HintOf(err),
			"retry_in", due.Sub(now).Round(time.Millisecond).String())
		n.disconnected(err)
		if err := n.waitUntil(ctx, due); err != nil {
			return err
		}
	}
}

// rejoinOnce sends one request and takes its answer. The identity changes when all of it holds.
func (n *node) rejoinOnce(ctx context.Context, renewal *identity.Renewal, proof *x509pop) (*identity.Identity, error) {
	if err := renewal.Reserve(); err != nil {
		return nil, err
	}
	claims, err := n.claimsFor(ctx, AttestorX509PoP)
	if err != nil {
		return nil, err
	}
	client, err := n.dial(ctx, n.gateway(proof.id), nil)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	within := func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, callTimeout)
	}
	body := &daemonv1.JoinRequestBody{
		Csr: renewal.CSR(), Claims: claims, Role: x509popRole(proof.id), Site: n.cfg.Site, Protocol: session.Protocol, AgentVersion: n.version,
	}
	if err := proof.prove(ctx, try{client: client, key: renewal.Key(), body: body, within: within}); err != nil {
		return nil, err
	}
	request, err := signedJoin(renewal.Key(), body)
	if err != nil {
		return nil, err
	}
	callCtx, cancel := within(ctx)
	defer cancel()
	response, err := client.Join(callCtx, request)
	n.hintTime(client)
	if err != nil {
		return nil, err
	}
	answer, err := openJoin(response, n.signingPins(proof.id))
	if err != nil {
		return nil, err
	}
	want := identity.Expectation{CSR: renewal.CSR(), RequestSHA256: sha256.Sum256(request.GetBody()), Role: body.GetRole(), Site: n.cfg.Site}
	proof.expect(&want)
	next, err := identity.Check(admissionOf(answer.GetAdmission(), answer.GetRequestSha256(), answer.GetServerTimeUnixMs(), answer.GetNextPins()), want)
	if err != nil {
		return nil, err
	}
	n.clock.Signed(next.IssuedAt)
	if err := renewal.Accept(next); err != nil {
		return nil, fmt.Errorf("cannot keep the new identity: %w", err)
	}
	n.replace(next, renewal.Key())
	return next, nil
}

// x509popRole is the role that a node asks for when it joins again as what it is.
func x509popRole(id *identity.Identity) string {
	if id.Role == identity.RoleNodeTenant {
		return identity.RoleNode
	}
	return id.Role
}

// expired is why a node whose certificate expired parks.
func (n *node) expired(err error) error {
	id, _ := n.current()
	hint := fault.HintJoinAgain
	if namesAK(id.Leaf()) {
		hint = `as root run "bcd join --reset --yes --attestor tpm"`
	}
	return fault.New(fault.AccessDenied, hint, "%s: %w", textExpired(id), err)
}

// textExpired says that an identity's certificate expired, and what to do. The words are the guide's.
func textExpired(id *identity.Identity) string {
	return "the certificate expired at " + id.Leaf().NotAfter.UTC().Format(time.RFC3339) + "; join again as root: bcd join --reset --yes, then bcd join"
}

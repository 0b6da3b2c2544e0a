package agent

import (
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/tpmkey"
)

// callTimeout bounds one call to the gateway.
const callTimeout = 30 * time.Second

// clockWarning is the difference between the two clocks from which a person should know.
const clockWarning = 30 * time.Second

// attempt connects, makes the key and the request where there are none yet, sends the request and takes the answer. A
// verified deferral is a [deferredError].
func (j *joiner) attempt(ctx context.Context) (JoinResult, error) {
	dialCtx, dialed := j.within(ctx)
	defer dialed()
	client, err := j.dial(dialCtx, j.gateway(j.known), nil)
	if err != nil {
		return JoinResult{}, err
	}
	defer client.Close()
	if j.join == nil {
		if done, err := j.begin(ctx); err != nil || done.Already {
			return done, err
		}
	}
	request, err := j.request(ctx, client)
	if err != nil {
		return JoinResult{}, err
	}
	callCtx, called := j.within(ctx)
	defer called()
	response, err := client.Join(callCtx, request)
	j.hintTime(client)
	if err != nil {
		// A refusal is an answer. Anything else may have lost one.
		j.sent = j.sent || !fault.Is(err, fault.AccessDenied)
		return JoinResult{}, err
	}
	return j.take(ctx, request, response)
}

// within bounds one step of an attempt. A peer that accepts and stays silent must not outlast patience by much.
func (j *joiner) within(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, min(callTimeout, j.patience(j.clock.Local())))
}

// begin takes the lock and makes the key and the request, or finds those of an earlier try, with room for the answer.
func (j *joiner) begin(ctx context.Context) (JoinResult, error) {
	begin := j.store.BeginJoin
	if j.options.Reset {
		begin = j.store.BeginReset
		if err := j.hold(ctx); err != nil {
			return JoinResult{}, err
		}
	} else if done, err := j.lock(); err != nil || done.Already {
		return done, err
	}
	join, err := begin(ctx, identity.JoinParams{Attestor: j.options.Attestor, Role: j.options.Role, TokenID: j.attestor.tokenID()})
	if err != nil {
		return JoinResult{}, err
	}
	j.join, j.sent = join, join.Resumed()
	if j.options.Attestor == AttestorTPM && tpmkey.KindOf(join.Key()) != tpmkey.KindTPM {
		// No TPM will ever vouch for it. A version that fell back to a file could have left it.
		if err := join.Restart(ctx); err != nil {
			return JoinResult{}, err
		}
		j.sent = false
	}
	if err := join.Reserve(); err != nil {
		if !join.Resumed() {
			join.Abandon() // nothing was sent
			j.join = nil
		}
		return JoinResult{}, err
	}
	j.sayResumed(ctx)
	return JoinResult{}, nil
}

// request builds and signs the request around the join's CSR. What a TPM has to do with it is not in the time of a call: slow
// chips need longer, and each of their commands has a deadline of its own.
func (j *joiner) request(ctx context.Context, client *session.Client) (*daemonv1.JoinRequest, error) {
	body := &daemonv1.JoinRequestBody{
		Csr:          j.join.CSR(),
		Claims:       j.claims,
		Role:         j.options.Role,
		Site:         j.cfg.Site,
		NodeId:       j.options.NodeID,
		Protocol:     session.Protocol,
		AgentVersion: j.version,
	}
	if err := j.attestor.prove(ctx, try{client: client, key: j.join.Key(), body: body, within: j.within}); err != nil {
		return nil, err
	}
	return signedJoin(j.join.Key(), body)
}

// signedJoin signs a request with the key that it asks a certificate for.
func signedJoin(key crypto.Signer, body *daemonv1.JoinRequestBody) (*daemonv1.JoinRequest, error) {
	b, err := proto.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	sig, err := signing.Sign(key, signing.JoinRequest, b)
	if err != nil {
		return nil, err
	}
	return &daemonv1.JoinRequest{Body: b, Sig: sig}, nil
}

// openJoin verifies an answer's signature and only then reads it.
func openJoin(response *daemonv1.JoinResponse, pins pin.Set) (*daemonv1.JoinResponseBody, error) {
	if err := verifyAnswer(signing.JoinResponse, response.GetBody(), response.GetSig(), pins); err != nil {
		return nil, err
	}
	body := new(daemonv1.JoinResponseBody)
	if err := proto.Unmarshal(response.GetBody(), body); err != nil {
		return nil, unparsable(err)
	}
	return body, nil
}

// take verifies an answer, in the protocol's order, and commits the identity that it makes.
func (j *joiner) take(ctx context.Context, request *daemonv1.JoinRequest, response *daemonv1.JoinResponse) (JoinResult, error) {
	body, err := openJoin(response, j.signingPins(j.known))
	if err != nil {
		return JoinResult{}, err
	}
	want := identity.Expectation{
		CSR: j.join.CSR(), RequestSHA256: sha256.Sum256(request.GetBody()), Role: j.options.Role, Site: j.cfg.Site, NodeID: j.options.NodeID,
	}
	j.attestor.expect(&want)
	if d := body.GetDeferral(); d != nil {
		return JoinResult{}, j.deferred(ctx, d, body.GetRequestSha256(), want)
	}
	id, err := identity.Check(admissionOf(body.GetAdmission(), body.GetRequestSha256(), body.GetServerTimeUnixMs(), body.GetNextPins()), want)
	if err != nil {
		return JoinResult{}, err
	}
	j.clock.Signed(id.IssuedAt)
	if err := j.hold(ctx); err != nil {
		return JoinResult{}, fmt.Errorf("cannot keep the identity: %w", err)
	}
	if err := j.join.Accept(id); err != nil {
		return JoinResult{}, fmt.Errorf("cannot keep the identity: %w", err)
	}
	result := JoinResult{NodeID: id.NodeID, Key: keyKind(j.join.Key()), Moved: j.join.Moved()}
	if offset, known := j.clock.Offset(); known && offset.Abs() > clockWarning {
		result.ClockOffset = offset
	}
	return result, nil
}

// unparsable is a signed answer that this version cannot read.
func unparsable(err error) error {
	return fault.New(fault.Verification, "upgrade bcd or the control plane", "the signed answer does not parse: %w", err)
}

// keyKind is where a key lives.
func keyKind(key crypto.Signer) string { return string(tpmkey.KindOf(key)) }

// hintTime takes the gateway's clock, as its last response told it.
func (a *Agent) hintTime(client *session.Client) {
	if hint, ok := client.ServerTime(); ok {
		a.clock.Hint(hint)
	}
}

// dial connects within the time of one call.
func (a *Agent) dial(ctx context.Context, g session.Gateway, certificate *tls.Certificate) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return session.Dial(ctx, g, certificate)
}

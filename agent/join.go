package agent

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent/config"
	"github.com/better-compute/bcd/agent/credential"
	"github.com/better-compute/bcd/agent/session"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/bearer"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/signing"
	"github.com/better-compute/bcd/internal/statefile"
	"github.com/better-compute/bcd/seal"
	"github.com/better-compute/bcd/tpmkey"
)

// JoinOptions say how to join.
type JoinOptions struct {
	// Stdin gives the join token where TokenFile is empty. It is read once the machine is known not to have joined.
	Stdin io.Reader
	// TokenFile names the file with the join token. It is deleted after the join.
	TokenFile string
	// Server is the control plane's API, asked for the join key where the file of it is absent; empty asks nobody.
	Server string
	// Proxy says which proxy the request to Server goes through; nil is none.
	Proxy func(*http.Request) (*url.URL, error)
	// NodeID is the node that a provisioned token names; empty otherwise.
	NodeID string
	// Role is what the machine joins as, [identity.RoleNode] or [identity.RoleSite]; empty is RoleNode.
	Role string
	// Patience is how long to go on while the gateway cannot be reached; 0 is [DefaultPatience].
	Patience time.Duration
}

// DefaultPatience is how long a join goes on while the gateway cannot be reached.
const DefaultPatience = 2 * time.Minute

// attestorJoinToken is the attestor that a join token is for. On the wire it is the empty name.
const attestorJoinToken = "join-token"

const (
	// callTimeout bounds one call to the gateway.
	callTimeout = 30 * time.Second
	// leastTry is what a call gets even where patience is over.
	leastTry = 5 * time.Second
	// conflictPause is the wait before the one retry of a join that another one raced.
	conflictPause = 2 * time.Second
	// clockWarning is the difference between the two clocks from which a person should know.
	clockWarning = 30 * time.Second
)

// JoinResult is a machine that has joined.
type JoinResult struct {
	NodeID string
	// Already is a machine that had joined before: nothing was done.
	Already bool
	// Key is where the node's key lives: "tpm" or "file".
	Key string
	// ClockOffset is the control plane's clock minus this machine's, where they differ enough for a person to know; else 0.
	ClockOffset time.Duration
	// TokenLeft is why the token file could not be deleted. The join succeeded all the same.
	TokenLeft error
}

// Join joins the machine. A machine whose identity loads has joined, whatever the state of its certificate: then nothing
// is read, sent or changed. Nothing is written before the gateway is authenticated, and no use of the token is lost: the
// key and the request are on disk before the request is sent, and an answer that gets lost comes again to the same
// request.
func (a *Agent) Join(ctx context.Context, o JoinOptions) (JoinResult, error) {
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.Role == "" {
		o.Role = identity.RoleNode
	}
	dir, store, err := a.open()
	if err != nil {
		return JoinResult{}, err
	}
	defer dir.Close()
	j := &joiner{Agent: a, dir: dir, store: store, options: o}
	defer j.close()
	if done, err := j.already(); err != nil || done.Already {
		return done, err
	}
	// A join that stopped after its answer needs nothing from anybody.
	if _, _, begun, err := store.PendingJoin(); err != nil {
		return JoinResult{}, err
	} else if begun {
		if done, err := j.lock(); err != nil || done.Already {
			return done, err
		}
	}
	fetch := config.Fetcher{Proxy: o.Proxy, Now: a.clock.Local}
	if j.key, err = a.cfg.JoinKey(ctx, o.Server, fetch); err != nil {
		return JoinResult{}, err
	}
	file, err := credentialOf(ctx, o)
	if err != nil {
		return JoinResult{}, err
	}
	j.token = file.Token
	defer j.token.Wipe()
	if j.claims, err = a.joinClaims(ctx); err != nil {
		return JoinResult{}, err
	}
	result, err := j.run(ctx)
	if err == nil && !result.Already {
		result.TokenLeft = file.Delete()
	}
	return result, err
}

// credentialOf reads the token from where the options say. One from standard input is a file that nobody deletes. Whoever
// waits for an input that never ends can still be told to stop.
func credentialOf(ctx context.Context, o JoinOptions) (credential.File, error) {
	if o.TokenFile != "" {
		return credential.FromFile(o.TokenFile)
	}
	type result struct {
		token bearer.Token
		err   error
	}
	read := make(chan result, 1)
	go func() {
		token, err := credential.FromReader(o.Stdin)
		read <- result{token, err}
	}()
	select {
	case r := <-read:
		return credential.File{Token: r.token}, r.err
	case <-ctx.Done():
		return credential.File{}, context.Cause(ctx)
	}
}

// joiner is one join.
type joiner struct {
	*Agent
	dir     *statefile.Dir
	store   *identity.Store
	options JoinOptions
	key     seal.Key
	token   bearer.Token
	claims  *daemonv1.HardwareClaims

	until  time.Time // when patience ends
	unlock func()
	join   *identity.Join // nil before the gateway was authenticated once
	sent   bool           // the join's request may have reached the control plane
}

func (j *joiner) close() {
	if j.join != nil {
		j.join.Close()
	}
	if j.unlock != nil {
		j.unlock()
	}
}

// already looks for an identity. One that does not load is an error: it is never overwritten.
func (j *joiner) already() (JoinResult, error) {
	id, _, err := j.store.Load()
	switch {
	case err == nil:
		return JoinResult{NodeID: id.NodeID, Already: true}, nil
	case isNoIdentity(err):
		return JoinResult{}, nil
	default:
		return JoinResult{}, err
	}
}

// lock takes the data directory's lock, where it is not taken yet, and finishes what a stopped process left. The machine
// may have joined by then.
func (j *joiner) lock() (JoinResult, error) {
	if j.unlock != nil {
		return JoinResult{}, nil
	}
	unlock, err := j.dir.Lock()
	if err != nil {
		return JoinResult{}, err
	}
	j.unlock = unlock
	if err := j.store.Recover(); err != nil {
		return JoinResult{}, err
	}
	return j.already()
}

// run sends the request until it is answered: again while the gateway cannot be reached, once more after a conflict, and
// once more with a new key where a request that may have been answered before is refused for good.
func (j *joiner) run(ctx context.Context) (JoinResult, error) {
	j.until = j.clock.Local().Add(j.options.Patience)
	var retry backoff
	var conflicted, restarted bool
	for {
		result, err := j.attempt(ctx)
		if err == nil {
			return result, nil
		}
		var wait time.Duration
		switch {
		case ctx.Err() != nil:
			return JoinResult{}, context.Cause(ctx)
		case fault.Is(err, fault.Conflict) && !conflicted:
			conflicted, wait = true, conflictPause
		case fault.Is(err, fault.AccessDenied) && j.sent && !restarted:
			// The request was sent before, and may have been answered then. That admission is gone by now, and its key
			// can never join again.
			j.log.InfoContext(ctx, "try join with new key")
			if err := j.join.Restart(ctx); err != nil {
				return JoinResult{}, fmt.Errorf("cannot join: %w", err)
			}
			restarted, j.sent = true, false
			continue
		case fault.Is(err, fault.AccessDenied) && restarted:
			// Refused with either key. A gateway can forge a refusal: the earlier request may have been admitted, and only
			// its key can collect that.
			return JoinResult{}, errors.Join(fmt.Errorf("cannot join: %w", err), j.join.Undo())
		case fault.Is(err, fault.Unreachable), fault.Is(err, fault.RateLimited):
			wait = max(retry.next(), session.RetryAfter(err))
			if wait > j.until.Sub(j.clock.Local()) {
				return JoinResult{}, fmt.Errorf("cannot join: %w", err)
			}
		default:
			return JoinResult{}, fmt.Errorf("cannot join: %w", err)
		}
		j.log.InfoContext(ctx, "retry join", "error", err, "retry_in", wait.Round(time.Millisecond).String())
		if err := sleep(ctx, wait); err != nil {
			return JoinResult{}, err
		}
	}
}

// attempt connects, makes the key and the request where there are none yet, sends the request and takes the answer.
func (j *joiner) attempt(ctx context.Context) (JoinResult, error) {
	dialCtx, dialed := j.withinPatience(ctx)
	defer dialed()
	client, err := j.dial(dialCtx, j.gateway(nil), nil)
	if err != nil {
		return JoinResult{}, err
	}
	defer client.Close()
	if j.join == nil {
		if done, err := j.begin(ctx); err != nil || done.Already {
			return done, err
		}
	}
	request, err := j.request()
	if err != nil {
		return JoinResult{}, err
	}
	callCtx, called := j.withinPatience(ctx)
	defer called()
	response, err := client.Join(callCtx, request)
	if err != nil {
		// A refusal is an answer. Anything else may have lost one.
		j.sent = j.sent || !fault.Is(err, fault.AccessDenied)
		return JoinResult{}, err
	}
	return j.take(request, response)
}

// withinPatience bounds one step of an attempt: a peer that accepts and stays silent must not outlast patience by much.
func (j *joiner) withinPatience(ctx context.Context) (context.Context, context.CancelFunc) {
	left := j.until.Sub(j.clock.Local())
	return context.WithTimeout(ctx, min(callTimeout, max(left, leastTry)))
}

// begin takes the lock and makes the key and the request, or finds those of an earlier try, with room for the answer.
func (j *joiner) begin(ctx context.Context) (JoinResult, error) {
	if done, err := j.lock(); err != nil || done.Already {
		return done, err
	}
	join, err := j.store.BeginJoin(ctx, identity.JoinParams{Attestor: attestorJoinToken, Role: j.options.Role})
	if err != nil {
		return JoinResult{}, err
	}
	j.join, j.sent = join, join.Resumed()
	if err := join.Reserve(); err != nil {
		if !join.Resumed() {
			join.Abandon() // nothing was sent
			j.join = nil
		}
		return JoinResult{}, err
	}
	return JoinResult{}, nil
}

// request builds and signs the request around the join's CSR.
func (j *joiner) request() (*daemonv1.JoinRequest, error) {
	sealed, err := seal.Seal(j.key, j.token.Bytes(), j.join.CSR(), j.clock.Local())
	if err != nil {
		return nil, fmt.Errorf("cannot seal the token: %w", err)
	}
	body, err := proto.Marshal(&daemonv1.JoinRequestBody{
		Csr:          j.join.CSR(),
		SealedToken:  sealed,
		Claims:       j.claims,
		Role:         j.options.Role,
		Site:         j.cfg.Site,
		NodeId:       j.options.NodeID,
		Protocol:     session.Protocol,
		AgentVersion: j.version,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot encode the request: %w", err)
	}
	sig, err := signing.Sign(j.join.Key(), signing.JoinRequest, body)
	if err != nil {
		return nil, err
	}
	return &daemonv1.JoinRequest{Body: body, Sig: sig}, nil
}

// take verifies an answer, in the protocol's order, and commits the identity that it makes.
func (j *joiner) take(request *daemonv1.JoinRequest, response *daemonv1.JoinResponse) (JoinResult, error) {
	if err := verifyAnswer(signing.JoinResponse, response.GetBody(), response.GetSig(), j.signingPins(nil)); err != nil {
		return JoinResult{}, err
	}
	var body daemonv1.JoinResponseBody
	if err := proto.Unmarshal(response.GetBody(), &body); err != nil {
		return JoinResult{}, unparsable(err)
	}
	want := identity.Expectation{
		CSR: j.join.CSR(), RequestSHA256: sha256.Sum256(request.GetBody()), Role: j.options.Role, Site: j.cfg.Site, NodeID: j.options.NodeID,
	}
	if d := body.GetDeferral(); d != nil {
		return JoinResult{}, j.deferred(d, body.GetRequestSha256(), want)
	}
	id, err := identity.Check(admissionOf(body.GetAdmission(), body.GetRequestSha256(), body.GetServerTimeUnixMs(), body.GetNextPins()), want)
	if err != nil {
		return JoinResult{}, err
	}
	j.clock.Signed(id.IssuedAt)
	if err := j.join.Accept(id); err != nil {
		return JoinResult{}, fmt.Errorf("cannot keep the identity: %w", err)
	}
	result := JoinResult{NodeID: id.NodeID, Key: string(tpmkey.KindOf(j.join.Key()))}
	if offset, known := j.clock.Offset(); known && offset.Abs() > clockWarning {
		result.ClockOffset = offset
	}
	return result, nil
}

// deferred records the join request that a person decides on.
func (j *joiner) deferred(d *daemonv1.Deferral, requestSHA256 []byte, want identity.Expectation) error {
	err := identity.CheckDeferral(identity.Deferral{CSRSHA256: d.GetCsrSha256(), RequestID: d.GetRequestId(), RequestSHA256: requestSHA256}, want)
	if err != nil {
		return err
	}
	if err := j.join.Defer(d.GetRequestId()); err != nil {
		return err
	}
	return fault.New(fault.Pending, "run the command again once the request is approved", "the join request %s waits for an operator's decision", d.GetRequestId())
}

// unparsable is a signed answer that this version cannot read.
func unparsable(err error) error {
	return fault.New(fault.Verification, "upgrade bcd or the control plane", "the signed answer does not parse: %w", err)
}

// dial connects within the time of one call.
func (a *Agent) dial(ctx context.Context, g session.Gateway, certificate *tls.Certificate) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return session.Dial(ctx, g, certificate)
}

// sleep waits, or ends with the context's cause.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

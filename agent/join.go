package agent

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"time"

	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
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
	// Attestor is how the machine shows that it may join, one of [Attestors]; empty is [AttestorJoinToken].
	Attestor string
	// Role is what the machine joins as, [identity.RoleNode] or [identity.RoleSite]; empty is RoleNode, and
	// [identity.RoleRamdisk] for the attestor discovery, which admits nothing else.
	Role string
	// BootMAC is the permanent hardware address that the machine was booted over, for the attestor discovery.
	BootMAC string
	// BootLeaseEpoch counts the boot leases of that address, from 1, for the attestor discovery; 0 is not known.
	BootLeaseEpoch uint64
	// Patience is how long to go on while the gateway cannot be reached; 0 is [DefaultPatience]. It begins again with each
	// answer, and a machine that waits for an approval waits for an absent gateway too.
	Patience time.Duration
	// NoWait ends a join that a person must approve with a [fault.Pending] error.
	NoWait bool
	// unattended is a reset by the daemon itself, as whatever user it runs. It asks no daemon for a hand-over.
	unattended bool
	// sameRequest ends a join whose request was refused, and never begins another one.
	sameRequest bool
	// Reset joins a machine again that has an identity, in whatever state: the join runs beside it, and once its answer is
	// verified the old files get other names. It is for root alone.
	Reset bool
	// NoJoin ends a reset after the old files were moved, also where their certificate is still good.
	NoJoin bool
	// OnWait is told once for each join request that the join begins to wait for; nil is nobody.
	OnWait func(JoinWait)

	roleOpen bool // nobody named a role
}

// JoinWait is a join that waits for an operator's decision.
type JoinWait struct {
	// RequestID is the join request that the operator decides on.
	RequestID string
	// Replaces is the request that the join waited for before, and that is over; empty where there was none.
	Replaces string
}

// DefaultPatience is how long a join goes on while the gateway cannot be reached.
const DefaultPatience = 2 * time.Minute

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
	// Moved is what a reset moved aside.
	Moved []identity.Move
	// NotJoined is a reset that ended after the move: there was no credential, or none was wanted.
	NotJoined bool
}

// Join joins the machine. A machine whose identity loads has joined, whatever the state of its certificate: then nothing
// is read, sent or changed. Nothing is written before the gateway is authenticated, and no use of the token is lost: the
// key and the request are on disk before the request is sent, and an answer that gets lost comes again to the same
// request.
//
// Where the control plane leaves the decision to a person, Join waits for it without a limit, and sends the same request
// from time to time. It ends with the admission, with a refusal, or with ctx.
func (a *Agent) Join(ctx context.Context, o JoinOptions) (JoinResult, error) {
	if err := o.Validate(); err != nil {
		return JoinResult{}, fault.New(fault.Usage, "", "cannot join: %w", err)
	}
	o.setDefaults()
	if o.Reset && !o.unattended {
		if err := a.needsRoot(); err != nil {
			return JoinResult{}, err
		}
	}
	dir, store, err := a.open()
	if err != nil {
		return JoinResult{}, err
	}
	defer dir.Close()
	if o.Attestor == AttestorTPM {
		store = identity.New(dir, a.keys.Require()) // the key that the TPM vouches for is one of its own
	}
	j := &joiner{Agent: a, dir: dir, store: store, options: o}
	defer j.close()
	if o.Reset {
		return j.given(j.reset(ctx))
	}
	if done, err := j.already(); err != nil || done.Already {
		return done, err
	}
	// A join that stopped after its answer needs nothing from anybody.
	pending, begun, err := store.PendingJoin()
	if err != nil {
		return JoinResult{}, err
	}
	if begun {
		if done, err := j.lock(); err != nil || done.Already {
			return j.given(done, err)
		}
	}
	if pending.Attestor != o.Attestor || pending.Role != o.Role {
		j.sayAbandoned(ctx, pending)
		pending = identity.PendingJoin{}
	}
	if j.attestor, err = a.newAttestor(ctx, o); err != nil {
		return JoinResult{}, whichToken(pending, err)
	}
	if j.claims, err = a.joinClaims(ctx); err != nil {
		return JoinResult{}, err
	}
	if err := j.attestor.check(ctx, j.claims); err != nil {
		return JoinResult{}, err
	}
	result, err := j.run(ctx)
	if err == nil && !result.Already {
		result.TokenLeft = j.attestor.admitted()
	}
	return j.given(result, err)
}

// setDefaults fills in what was left out of valid options.
func (o *JoinOptions) setDefaults() {
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	if o.Attestor == "" {
		o.Attestor = AttestorJoinToken
	}
	if o.roleOpen = o.Role == ""; o.roleOpen {
		o.Role = identity.RoleNode
		if o.Attestor == AttestorDiscovery {
			o.Role = identity.RoleRamdisk
		}
	}
	if o.OnWait == nil {
		o.OnWait = func(JoinWait) {}
	}
}

// joiner is one join.
type joiner struct {
	*Agent
	dir      *statefile.Dir
	store    *identity.Store
	options  JoinOptions
	attestor attestor // nil before it was made
	claims   *daemonv1.HardwareClaims
	known    *identity.Identity // whose announced pins hold too, and that the answer must succeed; nil is none

	unlock func()
	join   *identity.Join // nil before the gateway was authenticated once
	sent   bool           // the join's request may have reached the control plane

	retries
}

func (j *joiner) close() {
	if j.attestor != nil {
		j.attestor.close()
	}
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
// may have joined by then. The lock is held to the end, also while the join waits for an operator: a join that waits is
// one that is under way.
func (j *joiner) lock() (JoinResult, error) {
	if j.unlock != nil {
		return JoinResult{}, nil
	}
	unlock, err := j.dir.Lock()
	if err != nil {
		return JoinResult{}, whoWaits(j.store, err)
	}
	j.unlock = unlock
	if err := j.store.Recover(); err != nil {
		return JoinResult{}, err
	}
	return j.already()
}

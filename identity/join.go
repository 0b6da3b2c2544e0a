package identity

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"slices"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/pin"
	"github.com/better-compute/bcd/internal/statefile"
)

// JoinParams say what a join asks for. The same attestor and role make two tries the same join.
type JoinParams struct {
	// Attestor is the attestor's name, join-token and not "".
	Attestor string
	// Role is the role that is asked for: node, site or ramdisk.
	Role string
	// TokenID is the public id of the token that the join is made with, jt_…, never its secret; empty where there is
	// none. It is kept for people: who resumes the join must know which token that was. Another one does not make it
	// another join: an admission that the request already got is collected by its key alone.
	TokenID string
}

// Join is a join under way. Its key and its certificate request are on the disk.
type Join struct {
	s       *Store
	p       pending
	key     crypto.Signer
	token   string // the id of the token that this process has
	resumed bool
	done    bool
	before  *restarted // what the last Restart replaced
	moved   []Move     // by a reset

	pendingRoom, identityRoom *statefile.Reserved
}

// BeginJoin begins a join, or resumes the one that an earlier process began with the same attestor and role: the same
// key and the same certificate request, so that an admission which the control plane already recorded is given again.
// When it returns, both are on the disk and synced.
//
// A machine that has an identity is [fault.AlreadyExists], one whose identity does not load is refused as by
// [Store.Load]. The caller ends the join with [Join.Accept], and always with [Join.Close].
func (s *Store) BeginJoin(ctx context.Context, params JoinParams) (*Join, error) {
	if err := s.Recover(); err != nil {
		return nil, err
	}
	switch id, _, err := s.Load(); {
	case err == nil:
		return nil, fault.New(fault.AlreadyExists, "", "this machine has already joined as %s", id.NodeID)
	case !fault.Is(err, fault.NoIdentity):
		return nil, err
	}
	p, key, err := s.readPending()
	if err != nil {
		return nil, err
	}
	if key != nil && p.Attestor == params.Attestor && p.Role == params.Role {
		return &Join{s: s, p: *p, key: key, token: params.TokenID, resumed: true}, nil
	}
	j := &Join{s: s, p: pending{Version: joinVersion, Attestor: params.Attestor, Role: params.Role}, token: params.TokenID}
	if err := j.Restart(ctx); err != nil {
		j.Abandon()
		return nil, err
	}
	return j, nil
}

// PendingJoin is a join that was begun and waits to be resumed.
type PendingJoin struct {
	// JoinParams are those that it was begun with. TokenID is the token that the request on the disk was first sent, or
	// last deferred, with; empty where a version before the member wrote the file.
	JoinParams
	// RequestID is the id of the join request that an operator is to decide on; empty where the join was not deferred.
	RequestID string
	// Answered is a join whose verified answer is on the disk, or a reset that stopped while it moved files: [Store.Recover]
	// ends either without asking anybody.
	Answered bool
	// Reset is a join that replaces an identity, which is in use meanwhile.
	Reset bool

	refused bool
}

// PendingJoin says what join waits to be resumed. ok is false where none was begun. It needs no lock and changes nothing.
func (s *Store) PendingJoin() (join PendingJoin, ok bool, err error) {
	p, _, err := s.readPending()
	if p == nil {
		return PendingJoin{}, false, err
	}
	return PendingJoin{
		JoinParams: JoinParams{Attestor: p.Attestor, Role: p.Role, TokenID: p.TokenID}, RequestID: p.RequestID,
		Answered: p.Answer != nil || p.Suffix != "", Reset: p.Reset, refused: p.Refused,
	}, true, nil
}

// Waits reports whether the join waits for an operator, as far as this machine knows.
func (p PendingJoin) Waits() bool { return p.RequestID != "" && !p.Answered && !p.refused }

// CSR returns the certificate request, PKCS#10 DER.
func (j *Join) CSR() []byte { return slices.Clone(j.p.CSR) }

// Key returns the key that the request is for.
func (j *Join) Key() crypto.Signer { return j.key }

// Resumed reports whether an earlier process began the join, and so may have sent it.
func (j *Join) Resumed() bool { return j.resumed }

// RequestID returns the id of the join request that an operator is to decide on, or "".
func (j *Join) RequestID() string { return j.p.RequestID }

// TokenID returns the id of the token that the request on the disk was first sent, or last deferred, with, or "".
func (j *Join) TokenID() string { return j.p.TokenID }

// Restart begins the join again with a new key. It is for a certificate request that was sent and refused for good.
// The earlier request is remembered until the Join ends: a refusal is not signed, so it may be a lie, see [Join.Undo].
func (j *Join) Restart(ctx context.Context) error {
	var before *restarted
	if j.key != nil {
		record, err := j.s.dir.Read(JoinKeyFile, maxKey)
		if err != nil {
			return err
		}
		before = &restarted{p: j.p, key: j.key, record: record}
	}
	// The key first. Where the process stops before the second write, the request on the disk is not the key's and
	// counts no more.
	key, csr, err := j.s.newKey(ctx, JoinKeyFile)
	if err != nil {
		return err
	}
	p := pending{Version: j.p.Version, CSR: csr, Attestor: j.p.Attestor, Role: j.p.Role, TokenID: j.token, Reset: j.p.Reset}
	if err := j.s.writePending(&p); err != nil {
		return err
	}
	j.p, j.key, j.resumed, j.before = p, key, false, before
	return nil
}

// restarted is the request that a Restart replaced.
type restarted struct {
	p      pending
	key    crypto.Signer
	record []byte
}

// Undo puts back the request that [Join.Restart] replaced. It is for a new request that was refused too: if the earlier
// one was admitted and the refusals were a lie, only that one's key can still collect the admission. Without a Restart
// it does nothing.
func (j *Join) Undo() error {
	if j.before == nil {
		return nil
	}
	if err := j.s.dir.Replace(JoinKeyFile, j.before.record); err != nil {
		return err
	}
	if err := j.s.writePending(&j.before.p); err != nil {
		return err
	}
	j.p, j.key, j.resumed, j.before = j.before.p, j.before.key, true, nil
	return nil
}

// Defer records the join request that the control plane answered with, and the token that it was asked with. The answer
// is signed, so the request that a [Join.Restart] replaced is of no more use: the control plane has taken this one.
func (j *Join) Defer(requestID string) error {
	if p := j.p; p.RequestID != requestID || p.TokenID != j.token || p.Refused {
		p.RequestID, p.TokenID, p.Refused = requestID, j.token, false
		if err := j.s.writePending(&p); err != nil {
			return err
		}
		j.p = p
	}
	j.before = nil
	return nil
}

// Refuse records that the join request was refused, so that the next process need not tell it again. The refusal is not
// signed: key, CSR and id stay, and a [Join.Defer] takes it back.
func (j *Join) Refuse() error {
	p := j.p
	p.Refused = true
	if err := j.s.writePending(&p); err != nil {
		return err
	}
	j.p = p
	return nil
}

// Refused reports whether the join request was refused.
func (j *Join) Refused() bool { return j.p.Refused }

// Reserve takes room on the disk for everything that [Join.Accept] writes. It is called before the request is sent, so
// that a full disk fails before a token is spent. A second call does nothing.
func (j *Join) Reserve() (err error) {
	if j.pendingRoom == nil {
		if j.pendingRoom, err = j.s.dir.Reserve(PendingFile, maxFile); err != nil {
			return err
		}
	}
	if j.identityRoom == nil {
		if j.identityRoom, err = j.s.dir.Reserve(IdentityFile, maxFile); err != nil {
			return err
		}
	}
	return nil
}

// Accept makes id, which [Check] returned, this machine's identity: it records the answer, commits identity.json and
// gives the key its name. A reset moves the old files aside between the two. After an error it may be called again; so may [Store.Recover], in this process or a later
// one, which finishes from the recorded answer.
func (j *Join) Accept(id *Identity) error {
	if err := checkAccept(id, j.key, j.done); err != nil {
		return err
	}
	p := j.p
	p.Answer = id
	if p.Reset && p.Suffix == "" {
		// The lock may have been away: an answer must never meet another join's key, with the old identity moved.
		if err := j.stands(); err != nil {
			return err
		}
		suffix, err := j.s.freeSuffix(id.IssuedAt)
		if err != nil {
			return err
		}
		p.Suffix = suffix
	}
	data, err := encode(&p)
	if err != nil {
		return err
	}
	room := j.pendingRoom
	j.pendingRoom = nil
	if err := j.s.write(PendingFile, data, room); err != nil {
		return err
	}
	room = j.identityRoom
	j.identityRoom = nil
	if p.Reset {
		j.p.Suffix = p.Suffix // recorded: from here on there is no other
		moved, err := j.s.finishReset(&p, room)
		j.moved = append(j.moved, moved...)
		if err != nil {
			return err
		}
		j.done = true
		return nil
	}
	if err := j.s.commit(id, room); err != nil {
		return err
	}
	if err := j.s.settle(false); err != nil {
		return err
	}
	j.done = true
	return nil
}

// Abandon removes key and request. It is for a join whose request was never sent, in this process or an earlier one:
// nothing that was answered is lost. What cannot be removed stays, and is no harm.
func (j *Join) Abandon() {
	j.Close()
	_ = j.s.drop(PendingFile, JoinKeyFile)
}

// Close gives the reserved room back. Key and request stay on the disk, for the next try.
func (j *Join) Close() { j.release() }

func (j *Join) release() {
	j.pendingRoom.Discard()
	j.identityRoom.Discard()
	j.pendingRoom, j.identityRoom = nil, nil
}

// checkAccept keeps an answer from being committed beside a key that it is not for.
func checkAccept(id *Identity, key crypto.Signer, done bool) error {
	if done {
		return errors.New("the answer was already accepted")
	}
	if err := id.validate(); err != nil {
		return fmt.Errorf("cannot accept the answer: %w", err)
	}
	if !isKeyOf(key, pin.OfCertificate(id.Leaf())) {
		return errors.New("cannot accept the answer: its certificate is for another key")
	}
	return nil
}

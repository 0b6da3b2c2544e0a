package identity

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// JournalFile is the journal of commands. Its rows are of the identity beside it: a reset moves it along.
const JournalFile = "journal.db"

// resetFiles are what a reset moves aside, in its order. What SQLite keeps beside a database goes with it: committed rows may
// stand only there. The identity is the last, so that what is left of a stopped reset never looks like a whole identity.
var resetFiles = []string{
	JournalFile, JournalFile + "-wal", JournalFile + "-shm", JournalFile + "-journal", NextKeyFile, KeyFile, IdentityFile,
}

const (
	suffixTime = ".reset-20060102T150405Z" // ISO 8601, basic format, UTC
	// maxSameSecond bounds how many resets may have taken place in one second.
	maxSameSecond = 1000
)

var suffixForm = regexp.MustCompile(`^\.reset-[0-9]{8}T[0-9]{6}Z(-[0-9]{1,3})?$`)

// Move is a file of the old identity that a reset moved aside, by its names in the data directory.
type Move struct{ From, To string }

// MovedName is what a file is called after a reset whose suffix is known. A database and its sidecars keep belonging together.
func MovedName(name, suffix string) string {
	if rest, found := strings.CutPrefix(name, JournalFile); found {
		return JournalFile + suffix + rest
	}
	return name + suffix
}

// ResetPlan says what a reset would move aside, and what else stands in the data directory and stays. It needs no lock and
// changes nothing.
func (s *Store) ResetPlan() (moves, stays []string, err error) {
	names, err := s.dir.Names()
	if err != nil {
		return nil, nil, err
	}
	for _, name := range resetFiles {
		if slices.Contains(names, name) {
			moves = append(moves, name)
		}
	}
	own := []string{PendingFile, JoinKeyFile} // of a join under way
	stays = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(moves, name) || slices.Contains(own, name) })
	return moves, stays, nil
}

// BeginReset begins the join that replaces whatever identity there is, or resumes it, as [Store.BeginJoin] does. Nothing of
// the old identity changes before [Join.Accept], which moves it aside: the directory's lock may be given away in between,
// see [Join.Hold], and the old identity be used and renewed.
func (s *Store) BeginReset(ctx context.Context, params JoinParams) (*Join, error) {
	p, key, err := s.recoverForReset()
	if err != nil {
		return nil, err
	}
	if key != nil && p.Attestor == params.Attestor && p.Role == params.Role {
		if !p.Reset || p.Answer != nil {
			// A join that was begun before the reset: its request may have been admitted.
			p.Version, p.Reset, p.Answer = resetVersion, true, nil
			if err := s.writePending(p); err != nil {
				return nil, err
			}
		}
		return &Join{s: s, p: *p, key: key, token: params.TokenID, resumed: true}, nil
	}
	j := &Join{s: s, p: pending{Version: resetVersion, Attestor: params.Attestor, Role: params.Role, Reset: true}, token: params.TokenID}
	if err := j.Restart(ctx); err != nil {
		j.Abandon()
		return nil, err
	}
	return j, nil
}

// MoveIdentity moves the old identity aside without a new one. at is the time in the files' new names. A join that was begun
// stays, and can be resumed.
func (s *Store) MoveIdentity(at time.Time) ([]Move, error) {
	p, _, err := s.recoverForReset()
	if err != nil {
		return nil, err
	}
	moves, _, err := s.ResetPlan()
	if err != nil || len(moves) == 0 {
		return nil, err
	}
	if p == nil {
		p = new(pending)
	}
	p.Version, p.Reset = resetVersion, true
	if p.Suffix, err = s.freeSuffix(at); err != nil {
		return nil, err
	}
	if err := s.writePending(p); err != nil {
		return nil, err
	}
	return s.finishReset(p, nil)
}

// recoverForReset finishes a join or a reset whose outcome is on the disk, and returns the one that was begun. It drops nothing
// that a reset moves: neither an identity that does not load nor a renewal's key.
func (s *Store) recoverForReset() (*pending, crypto.Signer, error) {
	p, key, err := s.readPending()
	if err != nil {
		return nil, nil, err
	}
	_, k, err := s.load()
	loads := err == nil
	if p != nil && (p.Suffix != "" || p.Answer != nil && fault.Is(err, fault.NoIdentity)) {
		if err := s.Recover(); err != nil {
			return nil, nil, err
		}
		return s.recoverForReset()
	}
	if loads && k.name != KeyFile {
		if err := s.dir.Rename(k.name, KeyFile); err != nil {
			return nil, nil, err
		}
		return s.readPending()
	}
	if loads && p != nil && !p.Reset {
		return nil, nil, nil // it is done with: the identity is there
	}
	return p, key, nil
}

// freeSuffix returns what to add to the files' names so that none meets one that is there.
func (s *Store) freeSuffix(at time.Time) (string, error) {
	base := at.UTC().Format(suffixTime)
	suffix := base
	for n := 1; n < maxSameSecond; n++ {
		taken, err := s.taken(suffix)
		if err != nil {
			return "", err
		}
		if !taken && suffixForm.MatchString(suffix) {
			return suffix, nil
		}
		suffix = fmt.Sprintf("%s-%d", base, n)
	}
	return "", fmt.Errorf("cannot move the identity aside: too many files end in %q", base)
}

func (s *Store) taken(suffix string) (bool, error) {
	for _, name := range resetFiles {
		if there, err := s.dir.Exists(MovedName(name, suffix)); there || err != nil {
			return there, err
		}
	}
	return false, nil
}

// finishReset does what a recorded reset still has to do: move the old files aside, commit the answer where there is one, and
// drop the record. It can stop after any step and begin again.
func (s *Store) finishReset(p *pending, room *statefile.Reserved) (moved []Move, err error) {
	defer room.Discard()
	committed := p.Answer != nil && s.isCommitted(p.Answer)
	for _, name := range resetFiles {
		if committed {
			break // what has these names now is the new identity's
		}
		move := Move{name, MovedName(name, p.Suffix)}
		switch did, err := s.dir.MoveAside(move.From, move.To); {
		case err != nil:
			return moved, err
		case did:
			moved = append(moved, move)
		}
	}
	switch {
	case p.Answer != nil && !committed:
		if err := s.commit(p.Answer, room); err != nil {
			return moved, err
		}
		return moved, s.settle(false)
	case p.Answer != nil:
		return moved, s.settle(false)
	case p.movesOnly():
		return moved, s.drop(PendingFile)
	}
	rest := *p
	rest.Suffix = ""
	return moved, s.writePending(&rest)
}

// isCommitted reports whether the identity on the disk is id.
func (s *Store) isCommitted(id *Identity) bool {
	now, err := s.readIdentity()
	return err == nil && now.KeySPKISHA256 == id.KeySPKISHA256
}

// halfMoved is the error of an identity that a stopped reset moved in part: err, where it is another one.
func (s *Store) halfMoved(err error) error {
	if p, _, pendingErr := s.readPending(); pendingErr != nil || p == nil || p.Suffix == "" {
		return err
	}
	return fault.New(fault.NoIdentity, `run "bcd join" or start bcd: either ends the reset`, "a reset of the identity stopped on its way")
}

// errTaken is a request that is no longer the one on the disk.
var errTaken = errors.New("another join has taken its place")

// Hold takes the join up again after the directory's lock was given away: it checks that the request on the disk is still this
// join's. The room that was reserved is gone with the lock, and is to be reserved again.
func (j *Join) Hold() error {
	j.release()
	return j.stands()
}

// stands checks that the request on the disk is still this join's.
func (j *Join) stands() error {
	p, _, err := j.s.readPending()
	if err != nil {
		return err
	}
	if p == nil || !slices.Equal(p.CSR, j.p.CSR) {
		return fault.New(fault.Busy, "wait for the other one to end, then run the command again", "cannot go on with the join: %w", errTaken)
	}
	return nil
}

// Moved returns what the reset moved aside, once [Join.Accept] did.
func (j *Join) Moved() []Move { return j.moved }

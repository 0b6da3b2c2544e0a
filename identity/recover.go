package identity

import "github.com/better-compute/bcd/internal/fault"

// Recover finishes what a stopped process began and drops what it left: a recorded answer is committed, a committed
// identity's key gets its name, and keys and requests of no further use are removed. An identity that does not load is
// left exactly as it is, and so is everything beside it: that is an error. [Store.BeginJoin] and [Store.BeginRenewal]
// recover by themselves.
//
// The request of a reset that has no answer yet stays beside the identity that it is to replace.
func (s *Store) Recover() error {
	p, _, err := s.readPending()
	if err != nil {
		return err
	}
	if p != nil && p.Suffix != "" {
		_, err := s.finishReset(p, nil)
		return err
	}
	_, _, err = s.load()
	switch {
	case fault.Is(err, fault.NoIdentity):
		return s.recoverJoin(p)
	case err != nil:
		return err
	}
	return s.settle(p != nil && p.Reset)
}

// recoverJoin finishes a join whose answer was recorded. One without an answer stays: it can be resumed.
func (s *Store) recoverJoin(p *pending) error {
	if p != nil && p.Answer != nil {
		if err := s.commit(p.Answer, nil); err != nil {
			return err
		}
		return s.settle(false)
	}
	if p == nil {
		// The request first: without it the key alone means nothing, the other way round it would look damaged.
		if err := s.drop(PendingFile, JoinKeyFile); err != nil {
			return err
		}
	}
	return s.drop(NextKeyFile)
}

// settle gives the key of the committed identity the name node.key and drops what is left of the way there. What a reset has
// begun stays where keepReset says so: its key can't be the identity's.
func (s *Store) settle(keepReset bool) error {
	_, k, err := s.load()
	if err != nil {
		return err
	}
	if k.name != KeyFile {
		if err := s.dir.Rename(k.name, KeyFile); err != nil {
			return err
		}
	}
	if keepReset && k.name != JoinKeyFile {
		return s.drop(NextKeyFile)
	}
	return s.drop(PendingFile, JoinKeyFile, NextKeyFile)
}

// resetWaits reports whether a reset was begun whose request may still be answered. Where that can't be told, it may.
func (s *Store) resetWaits() bool {
	p, _, err := s.readPending()
	return err != nil || p != nil && p.Reset
}

func (s *Store) drop(names ...string) error {
	for _, name := range names {
		if err := s.dir.Remove(name); err != nil {
			return err
		}
	}
	return nil
}

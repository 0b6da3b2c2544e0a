package joinservice

import "sync"

// registry holds one session a node. Its zero value is ready.
type registry struct {
	mu    sync.Mutex
	nodes map[string]*presence
}

// presence is what is remembered of a node's sessions.
type presence struct {
	slot *slot // the open session's; nil is none
	// generation is the identity that the boot ids belong to.
	generation int64
	// boot is the last session's boot id, before the one that it replaced.
	boot, before string
	alternations int
}

// slot is a session's place in the registry.
type slot struct {
	ended  chan struct{} // closed when another session ends this one
	reason string        // set before ended is closed
}

// alternationsAllowed is how often the boot id may go back to the one before. Going back once can be an old connection
// that arrives late; a machine that boots never goes back.
const alternationsAllowed = 1

// enter gives the node's place to a new session and ends the one that had it. It reports whether two machines use the
// identity in turn: then the new session must end too.
func (r *registry) enter(nodeID string, generation int64, bootID string) (_ *slot, duplicate bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil {
		r.nodes = make(map[string]*presence)
	}
	p := r.nodes[nodeID]
	if p == nil || p.generation != generation {
		fresh := &presence{generation: generation}
		if p != nil {
			fresh.slot = p.slot
		}
		p = fresh
		r.nodes[nodeID] = p
	}
	duplicate = p.booted(bootID)
	if p.slot != nil {
		p.slot.reason = endSuperseded
		if duplicate {
			p.slot.reason = endDuplicate
		}
		close(p.slot.ended)
	}
	p.slot = &slot{ended: make(chan struct{})}
	return p.slot, duplicate
}

// booted takes note of a session's boot id and reports whether it alternates.
func (p *presence) booted(bootID string) bool {
	switch {
	case bootID == "" || bootID == p.boot:
		return false
	case bootID == p.before:
		p.alternations++
	default:
		p.alternations = 0
	}
	p.before, p.boot = p.boot, bootID
	return p.alternations > alternationsAllowed
}

// leave frees the place if it is still the session's. The boot ids are kept: the next session is compared with them.
func (r *registry) leave(nodeID string, s *slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p := r.nodes[nodeID]; p != nil && p.slot == s {
		p.slot = nil
	}
}

// connected reports whether a session of the node is open.
func (r *registry) connected(nodeID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.nodes[nodeID]
	return p != nil && p.slot != nil
}

// Connected reports whether a session of the node is open in this process.
func (s *Service) Connected(nodeID string) bool { return s.sessions.connected(nodeID) }

package agent

import (
	"slices"
	"sync"

	"github.com/better-compute/bcd/internal/fault"
)

// maxVouches is how many vouches a site agent keeps that the control plane has not recorded.
const maxVouches = 1024

// vouch is what a boot server told of one machine, until the control plane recorded it.
type vouch struct {
	mac   string
	epoch uint64
	// settled is closed when the control plane has answered, or the vouch was given up. err says why it is not recorded;
	// it is set before.
	settled chan struct{}
	err     error
}

func (v *vouch) settle(err error) {
	v.err = err
	close(v.settled)
}

// vouches are the vouches that are not recorded yet, the newest boot lease of each MAC, in the order in which they are sent.
// They are kept in memory: after a restart the boot server says them again.
type vouches struct {
	mu      sync.Mutex
	waiting []*vouch
	changed chan struct{} // closed, and replaced, when there is another first one
}

func newVouches() *vouches { return &vouches{changed: make(chan struct{})} }

// add keeps a vouch for later. The same one again is the one before. A later boot lease of the MAC takes the place of an
// earlier one, and an earlier one is an error. Where there is no room, the oldest is given up: the machines that boot now
// are those that somebody waits for.
func (q *vouches) add(mac string, epoch uint64) (*vouch, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	v := &vouch{mac: mac, epoch: epoch, settled: make(chan struct{})}
	i := slices.IndexFunc(q.waiting, func(w *vouch) bool { return w.mac == mac })
	switch {
	case i < 0:
		if len(q.waiting) == maxVouches {
			q.waiting[0].settle(fault.New(fault.Unreachable, `vouch for it again when fewer wait; see "bcd status"`,
				"more than %d vouches wait for the control plane", maxVouches))
			q.waiting = slices.Delete(q.waiting, 0, 1)
		}
		q.waiting = append(q.waiting, v)
	case q.waiting[i].epoch == epoch:
		return q.waiting[i], nil
	case q.waiting[i].epoch > epoch:
		return nil, olderLease(mac)
	default:
		q.waiting[i].settle(olderLease(mac))
		q.waiting[i] = v
	}
	close(q.changed)
	q.changed = make(chan struct{})
	return v, nil
}

func olderLease(mac string) error {
	return fault.New(fault.AccessDenied, "vouch for the machine's latest boot lease", "a later boot lease of %s is vouched for", mac)
}

// next returns the vouch to send, nil where none waits, and what is closed when there may be another one.
func (q *vouches) next() (*vouch, <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		return nil, q.changed
	}
	return q.waiting[0], q.changed
}

// settle ends the wait for a vouch, if it still waits: with nil it is recorded.
func (q *vouches) settle(v *vouch, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, v); i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
		v.settle(err)
	}
}

// putOff lets the others go first.
func (q *vouches) putOff(v *vouch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.waiting, v); i >= 0 {
		q.waiting = append(slices.Delete(q.waiting, i, i+1), v)
	}
}

// count returns how many wait.
func (q *vouches) count() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting)
}

package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/peercred"
	"github.com/better-compute/bcd/internal/statefile"
)

// A reset moves the identity of a machine whose daemon runs. It asks the daemon on the status socket for a hand-over: the
// daemon closes its session and gives up the data directory's lock for as long as the connection that asked stands. However
// that ends, the daemon goes on with the identity that is then on the disk: where who asked died, the old one.

const handoverPath = "/v1/handover"

// handoverWithin is how long a daemon takes at most to hand over.
var handoverWithin = 10 * time.Second

const (
	// lockLook is how often the lock is tried that another process is about to give back.
	lockLook = 20 * time.Millisecond
	// maxHandoverRequest bounds what the status socket reads of a request, in bytes.
	maxHandoverRequest = 8 << 10
)

// errHandOver ends a run of the node because the data directory is handed over.
var errHandOver = errors.New("the data directory is handed over to another bcd")

// handover is one process that wants the data directory for itself.
type handover struct {
	given chan struct{} // closed once the daemon holds neither session nor lock
	over  chan struct{} // closed once who asked is gone
}

// handoverRequest is the body of a request for a hand-over.
type handoverRequest struct {
	// DataDir is the directory that who asks wants. A daemon with another one refuses.
	DataDir string `json:"data_dir"`
}

// untilAsked runs f until it ends, or until somebody asks for a hand-over, which ends f's context.
func (b *board) untilAsked(ctx context.Context, f func(context.Context) error) (*handover, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	asked := make(chan *handover, 1)
	go func() {
		defer close(asked)
		select {
		case h := <-b.handovers:
			asked <- h
			cancel(errHandOver)
		case <-ctx.Done():
		}
	}()
	err := f(ctx)
	cancel(nil)
	return <-asked, err
}

// handOver leaves the data directory to who asked for it, and takes it back when that one is gone.
func (a *Agent) handOver(ctx context.Context, b *board, notify Notifier, h *handover) {
	a.log.InfoContext(ctx, "hand over data directory")
	b.update(func(s *Status) {
		s.State, s.Since, s.Session = HandedOver, a.clock.Local(), nil
		s.problem(nil)
	})
	notify.status("waits for another bcd that resets the identity")
	close(h.given)
	select {
	case <-h.over:
	case <-ctx.Done():
		return
	}
	a.awaitLock(ctx)
	a.log.InfoContext(ctx, "take back data directory")
	b.update(func(s *Status) { s.State, s.Since = Connecting, a.clock.Local() })
}

// awaitLock waits until nobody holds the lock, for as long as a process takes to end.
func (a *Agent) awaitLock(ctx context.Context) {
	dir, _, err := a.open()
	if err != nil {
		return // who needs the directory next says why
	}
	defer dir.Close()
	if unlock, err := lockSoon(ctx, dir); err == nil {
		unlock()
	}
}

// lockSoon takes a lock that another process is about to give back. It waits for it as long as a process takes to end.
func lockSoon(ctx context.Context, dir *statefile.Dir) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, handoverWithin)
	defer cancel()
	look := time.NewTicker(lockLook)
	defer look.Stop()
	for {
		if unlock, err = dir.Lock(); !fault.Is(err, fault.Busy) {
			return unlock, err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// takeHandover answers a request for a hand-over, once the daemon has handed over, and then lasts as long as the hand-over.
func (a *Agent) takeHandover(b *board) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		request, err := readHandover(http.MaxBytesReader(w, r.Body, maxHandoverRequest))
		// The server's time limits are for a request that is answered at once.
		control := http.NewResponseController(w)
		if errors.Join(control.SetReadDeadline(time.Time{}), control.SetWriteDeadline(time.Time{})) != nil {
			return
		}
		h := &handover{given: make(chan struct{}), over: make(chan struct{})}
		defer close(h.over)
		if err == nil {
			err = a.mayHandOver(r.Context(), request)
		}
		if err == nil {
			err = b.ask(r.Context(), h)
		}
		if err != nil {
			answerFailure(w, err)
			return
		}
		w.WriteHeader(http.StatusOK)
		if control.Flush() == nil {
			<-r.Context().Done() // who asked is gone, or the daemon ends
		}
	}
}

func readHandover(body io.Reader) (handoverRequest, error) {
	var request handoverRequest
	text, err := io.ReadAll(body) // to the end: only then is it noticed that who asked goes away
	if err == nil {
		err = json.Unmarshal(text, &request)
	}
	if err != nil {
		return request, fault.New(fault.InvalidArgument, "", "the request for a hand-over cannot be read: %w", err)
	}
	return request, nil
}

// mayHandOver checks who asks, and for what.
func (a *Agent) mayHandOver(ctx context.Context, request handoverRequest) error {
	if uid, known := peerOf(ctx); !known || uid != 0 {
		return fault.New(fault.NotRoot, "run the command as root", "only root may ask the daemon to hand over")
	}
	theirs, err := os.Stat(request.DataDir)
	if err != nil {
		return fault.New(fault.InvalidArgument, "", "the directory of the hand-over cannot be found: %w", err)
	}
	ours, err := os.Stat(a.cfg.DataDir)
	if err != nil || !os.SameFile(ours, theirs) {
		return fault.New(fault.Busy, "name the configuration of the daemon with --config", "the daemon's data directory is %q, not %q", a.cfg.DataDir, request.DataDir)
	}
	return nil
}

// ask has the daemon hand over, or gives up after a while.
func (b *board) ask(ctx context.Context, h *handover) error {
	late := time.NewTimer(handoverWithin)
	defer late.Stop()
	handovers := b.handovers
	for {
		select {
		case handovers <- h:
			handovers = nil // and now until it has
		case <-h.given:
			return nil
		case <-late.C:
			return fault.New(fault.Busy, hintStop, "the daemon did not hand over within %s", handoverWithin)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

const hintStop = `stop the daemon ("systemctl stop bcd"), then run the command again`

// askHandover asks the daemon for the data directory, and returns once nobody else uses it. back gives it back. The error is
// [fault.Busy], and temporary, whatever the reason.
func (a *Agent) askHandover(ctx context.Context) (back func(), err error) {
	path, err := json.Marshal(handoverRequest{DataDir: a.cfg.DataDir})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(handoverWithin+askedFor, cancel)
	resp, err := askDaemon(ctx, a.cfg.Status.Socket, hintStop, http.MethodPost, handoverPath, bytes.NewReader(path))
	if err != nil {
		cancel()
		return nil, fault.New(fault.Busy, hintStop, "%w", err)
	}
	late.Stop()
	end := func() {
		cancel()
		_ = resp.Body.Close()
	}
	switch resp.StatusCode {
	case http.StatusOK:
		return end, nil
	case http.StatusNotFound:
		err = fault.New(fault.Busy, hintStop, "the daemon at %q is of a version that does not hand over", a.cfg.Status.Socket)
	default:
		err = readFailure(resp)
		err = fault.New(fault.Busy, fault.HintOf(err), "%w", err)
	}
	end()
	return nil, err
}

// peerKey is the key of a connection's peer in its context.
type peerKey struct{}

// withPeer adds to a connection's context which user is at its other end, as the kernel knows it (SO_PEERCRED).
func withPeer(ctx context.Context, c net.Conn) context.Context {
	uid, err := peercred.UID(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, uid)
}

func peerOf(ctx context.Context) (uid uint32, known bool) {
	uid, known = ctx.Value(peerKey{}).(uint32)
	return uid, known
}

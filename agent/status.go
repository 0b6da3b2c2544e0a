package agent

import (
	"context"
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/tpmkey"
)

// State is what the running daemon is doing.
type State string

// The states.
const (
	// Connecting is a daemon without a session that is trying to open one.
	Connecting State = "connecting"
	// Connected is a daemon with a session.
	Connected State = "connected"
	// Parked is a daemon that was refused or whose certificate expired: it retries slowly and waits for an operator.
	Parked State = "parked"
	// HandedOver is a daemon that has left the data directory to a reset, and waits for it to end.
	HandedOver State = "handed-over"
	// Joining is a machine whose join waits for an operator: without a daemon, or with one that goes on with it.
	Joining State = "joining"
)

// Status is what a running daemon tells of itself.
type Status struct {
	Version string    `json:"version"`
	PID     int       `json:"pid,omitempty"` // absent where no daemon runs, and so is Since
	State   State     `json:"state"`
	Since   time.Time `json:"since,omitzero"`
	// Join is the join that waits, where the state is [Joining].
	Join *JoinStatus `json:"join,omitempty"`
	// Problem says what is wrong, Hint what to do, and ProblemCode the kind of failure; empty when nothing is wrong.
	Problem     string     `json:"problem,omitempty"`
	Hint        string     `json:"hint,omitempty"`
	ProblemCode fault.Code `json:"problem_code,omitempty"`

	Identity *IdentityStatus `json:"identity,omitempty"`
	Session  *SessionStatus  `json:"session,omitempty"`
	Renewal  *RenewalStatus  `json:"renewal,omitempty"`
	// ClockOffset is the control plane's clock minus this machine's, in milliseconds; absent while it is unknown.
	ClockOffset *int64 `json:"clock_offset_ms,omitempty"`
	// VouchesWaiting is how many vouches the control plane has not recorded yet; absent on a node.
	VouchesWaiting *int `json:"vouches_waiting,omitempty"`
}

// Err returns nil for a daemon that is connected, else what keeps it from it: a refusal where it is parked, and something
// temporary where it goes on trying.
func (s Status) Err() error {
	switch {
	case s.State == Connected:
		return nil
	case s.State == Parked:
		return fault.New(s.ProblemCode, s.Hint, "the node is parked: %s", s.Problem)
	case s.State == Joining && s.Join.RequestID == "":
		return fault.New(fault.Unreachable, s.Hint, "the machine is joining: %s", s.Problem)
	case s.State == Joining:
		return fault.New(fault.Pending, hintResume(s.Join.pending()), "the join request %s waits for an operator's decision", s.Join.RequestID)
	case s.State == HandedOver:
		return fault.New(fault.Unreachable, "ask again in a moment", "the node waits for a reset of its identity to end")
	case s.Problem == "":
		return fault.New(fault.Unreachable, "ask again in a moment", "the node is connecting")
	default:
		return fault.New(fault.Unreachable, s.Hint, "the node is not connected: %s", s.Problem)
	}
}

func (s *Status) problem(err error) {
	s.Problem, s.Hint, s.ProblemCode = "", "", ""
	if err != nil {
		s.Problem, s.Hint, s.ProblemCode = err.Error(), fault.HintOf(err), fault.CodeOf(err)
	}
}

// JoinStatus is a join that waits for an operator.
type JoinStatus struct {
	RequestID string `json:"request_id"`
	Attestor  string `json:"attestor"`
	Role      string `json:"role"`
	// TokenID is the public id of the token that "bcd join" goes on with; empty where it is not known.
	TokenID string `json:"token_id,omitempty"`
}

func joinStatus(p identity.PendingJoin) *JoinStatus {
	return &JoinStatus{RequestID: p.RequestID, Attestor: p.Attestor, Role: p.Role, TokenID: p.TokenID}
}

func (j *JoinStatus) pending() identity.PendingJoin {
	return identity.PendingJoin{JoinParams: identity.JoinParams{Attestor: j.Attestor, TokenID: j.TokenID}, RequestID: j.RequestID}
}

// IdentityStatus is the node's identity.
type IdentityStatus struct {
	NodeID      string    `json:"node_id"`
	Site        string    `json:"site"`
	TrustDomain string    `json:"trust_domain"`
	Role        string    `json:"role"`
	Generation  uint64    `json:"identity_generation"`
	Key         string    `json:"key"` // "tpm" or "file"
	Serial      string    `json:"certificate_serial"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	RenewAt     time.Time `json:"renew_at"`
}

// SessionStatus is the open session.
type SessionStatus struct {
	ID      string    `json:"id"`
	Gateway string    `json:"gateway"`
	Since   time.Time `json:"since"`
}

// RenewalStatus is the last attempt to renew in this process.
type RenewalStatus struct {
	At    time.Time `json:"at"`
	Error string    `json:"error,omitempty"`
}

func identityStatus(id *identity.Identity, key crypto.Signer) *IdentityStatus {
	leaf := id.Leaf()
	return &IdentityStatus{
		NodeID: id.NodeID, Site: id.Site, TrustDomain: id.TrustDomain, Role: id.Role, Generation: id.Generation, Key: string(tpmkey.KindOf(key)),
		Serial: serialText(leaf), NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter, RenewAt: identity.ScheduleOf(id).RenewAt,
	}
}

// board is what the status socket is about, for as long as the daemon runs: the daemon's status, and a site agent's vouches.
type board struct {
	vouches   *vouches // nil on a node
	handovers chan *handover

	mu sync.Mutex
	s  Status
}

func (b *board) update(change func(*Status)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(&b.s)
}

func (b *board) read() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.s
}

const statusPath = "/v1/status"

// newBoard returns a board. vouches is nil on a node.
func newBoard(vouches *vouches) *board {
	return &board{vouches: vouches, handovers: make(chan *handover)}
}

// serveStatus answers on the status socket until ctx ends. A socket that a dead daemon left is replaced.
func (a *Agent) serveStatus(ctx context.Context, b *board) error {
	path := a.cfg.Status.Socket
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // the socket's own mode guards it
		return fault.New(fault.Unwritable, "set [status] socket to a path that bcd may write", "cannot make the folder of the status socket: %w", err)
	}
	if c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path); err == nil {
		_ = c.Close()
		return fault.New(fault.Busy, "stop the other bcd, or give this one a [status] socket of its own", "another program answers on the status socket %q", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fault.New(fault.Config, "set [status] socket to a path of its own", "cannot open the status socket %q: something else than a socket is there", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unwritable, "set [status] socket to a path that bcd may write", "cannot replace the status socket: %w", err)
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", path)
	if err != nil {
		return fault.New(fault.Unwritable, "set [status] socket to a path that bcd may write", "cannot open the status socket: %w", err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = l.Close()
		return fmt.Errorf("cannot set the mode of the status socket: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+statusPath, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		s := b.read()
		if offset, known := a.clock.Offset(); known {
			ms := offset.Milliseconds()
			s.ClockOffset = &ms
		}
		if b.vouches != nil {
			waiting := b.vouches.count()
			s.VouchesWaiting = &waiting
		}
		_ = json.NewEncoder(w).Encode(s)
	})
	mux.HandleFunc("POST "+handoverPath, a.takeHandover(b))
	if b.vouches != nil {
		mux.HandleFunc("POST "+vouchPath, b.takeVouch)
	}
	server := &http.Server{Handler: mux, ConnContext: withPeer, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, IdleTimeout: 5 * time.Second, MaxHeaderBytes: 4 << 10, ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug)}
	go func() {
		<-ctx.Done()
		_ = server.Close()
	}()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve the status socket: %w", err)
	}
	return nil
}

// QueryStatus asks the daemon that listens on a status socket. A daemon that does not run is a [fault.Unreachable] error.
func QueryStatus(ctx context.Context, socket string) (Status, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	resp, err := askDaemon(ctx, socket, "start it: systemctl start bcd", http.MethodGet, statusPath, nil)
	if err != nil {
		return Status{}, err
	}
	defer resp.Body.Close()
	var s Status
	if err := json.NewDecoder(http.MaxBytesReader(nil, resp.Body, 1<<20)).Decode(&s); err != nil {
		return Status{}, fmt.Errorf("cannot read the daemon's status: %w", err)
	}
	return s, nil
}

// askDaemon asks the daemon that listens on a status socket. One that does not run is a [fault.Unreachable] error with the
// hint that starts it.
func askDaemon(ctx context.Context, socket, start, method, path string, body io.Reader) (*http.Response, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, method, "http://bcd"+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		hint := start
		if errors.Is(err, fs.ErrPermission) {
			hint = "run the command as root"
		}
		return nil, fault.New(fault.Unreachable, hint, "cannot ask the daemon at %q: %w", socket, errors.Unwrap(err))
	}
	return resp, nil
}

package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
)

const (
	firstRequest  = "jreq_01k5w0000000000000000000aa"
	secondRequest = "jreq_01k5w0000000000000000000bb"
)

// errRefused is a refusal as JoinService makes it. It is not signed: a gateway can make it too.
var errRefused = func() error {
	s, err := status.New(codes.PermissionDenied, "Join refused").WithDetails(&errdetails.ErrorInfo{Reason: string(fault.AccessDenied), Domain: "better-compute"})
	if err != nil {
		panic(err)
	}
	return s.Err()
}()

// An answer is what the desk does with one request.
type answer func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error)

// deferring is a deferral that JoinService signed, changed before that by change.
func deferring(id string, retryAfter uint32, change ...func(*daemonv1.JoinResponseBody)) answer {
	return func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, _ nextJoin) (*daemonv1.JoinResponse, error) {
		body := deferralOf(t, req, id, retryAfter)
		for _, c := range change {
			c(body)
		}
		return sign(t, cp, body), nil
	}
}

func deferralOf(t *testing.T, req *joinv1.JoinRequest, id string, retryAfter uint32) *daemonv1.JoinResponseBody {
	csr, request := sha256.Sum256(bodyOf(t, req).GetCsr()), sha256.Sum256(req.GetRequest().GetBody())
	return &daemonv1.JoinResponseBody{
		Result:        &daemonv1.JoinResponseBody_Deferral{Deferral: &daemonv1.Deferral{CsrSha256: csr[:], RequestId: id, RetryAfterSeconds: retryAfter}},
		RequestSha256: request[:], ServerTimeUnixMs: cp1970,
	}
}

// cp1970 is a server's time that is far off: no deferral's time may matter.
const cp1970 = 1

func bodyOf(t *testing.T, req *joinv1.JoinRequest) *daemonv1.JoinRequestBody {
	body := &daemonv1.JoinRequestBody{}
	if err := proto.Unmarshal(req.GetRequest().GetBody(), body); err != nil {
		t.Error(err)
	}
	return body
}

func failing(err error) answer {
	return func(*testing.T, *controlplanetest.ControlPlane, *joinv1.JoinRequest, nextJoin) (*daemonv1.JoinResponse, error) {
		return nil, err
	}
}

func admitting(_ *testing.T, _ *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
	return next(req)
}

// losing admits the machine and loses the answer.
func losing(t *testing.T, _ *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
	if _, err := next(req); err != nil {
		t.Error(err)
	}
	return nil, status.Error(codes.Unavailable, "dropped")
}

// desk answers a machine's requests, one after the other, with what it is told to; more requests get the last answer.
type desk struct {
	mu      sync.Mutex
	answers []answer
	csrs    [][]byte
	seals   []string
}

// newDesk puts a desk between the machine and the control plane.
func newDesk(m *machine, answers ...answer) *desk {
	m.t.Helper()
	d, relay := &desk{answers: answers}, m.cp.Relay(m.t)
	m.url = relay.URL
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		return d.next(m.t, req)(m.t, m.cp, req, next)
	})
	return d
}

func (d *desk) next(t *testing.T, req *joinv1.JoinRequest) answer {
	d.mu.Lock()
	defer d.mu.Unlock()
	body := bodyOf(t, req)
	d.csrs, d.seals = append(d.csrs, body.GetCsr()), append(d.seals, body.GetSealedToken())
	a := d.answers[0]
	if len(d.answers) > 1 {
		d.answers = d.answers[1:]
	}
	return a
}

// then sets what is answered from now on.
func (d *desk) then(answers ...answer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers = answers
}

// keys returns how many requests came, and how many different CSRs were in them.
func (d *desk) keys() (requests, csrs int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	seen := map[string]bool{}
	for _, c := range d.csrs {
		seen[string(c)] = true
	}
	return len(d.csrs), len(seen)
}

// waits are the waits of a join, which all pass at once.
type waits struct {
	mu  sync.Mutex
	all []time.Duration
}

func (w *waits) sleep(ctx context.Context, d time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, d)
	return context.Cause(ctx)
}

// waiting joins and returns what the join said that it waits for. None of its waits takes time.
func (m *machine) waiting(token string, change func(*agent.JoinOptions)) (result agent.JoinResult, said []agent.JoinWait, w *waits, err error) {
	m.t.Helper()
	w = &waits{}
	m.sleep = w.sleep
	defer func() { m.sleep = nil }()
	o := agent.JoinOptions{Stdin: strings.NewReader(token), Patience: time.Second, OnWait: func(j agent.JoinWait) { said = append(said, j) }}
	if change != nil {
		change(&o)
	}
	result, err = m.agent().Join(m.t.Context(), o)
	return result, said, w, err
}

func noWait(o *agent.JoinOptions) { o.NoWait = true }

func (m *machine) pendingFile() string {
	m.t.Helper()
	b, err := os.ReadFile(filepath.Join(m.data(), identity.PendingFile))
	if err != nil {
		m.t.Fatal(err)
	}
	return string(b)
}

// A deferred join asks again after the time that the control plane gave, with the same CSR and the token sealed afresh,
// and spends nothing until it is admitted.
// Req: AP-002 AP-004 AP-005
func TestDeferredJoinWaits(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	unspent := func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		if got := usesLeft(t, cp, token); got != 1 {
			t.Errorf("%d uses left while the join waits", got)
		}
		return deferring(firstRequest, 30)(t, cp, req, next)
	}
	d := newDesk(m, unspent, unspent, unspent, admitting)
	result, said, w, err := m.waiting(token, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	if got := m.log.count("level=INFO"); got != 0 {
		t.Errorf("%d lines in the log:\n%s", got, m.log)
	}
	m.mustHaveJoined(result.NodeID, token)
	if want := []agent.JoinWait{{RequestID: firstRequest}}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
	if len(w.all) != 3 {
		t.Errorf("waited %v", w.all)
	}
	for _, d := range w.all {
		if d < 30*time.Second || d > 33*time.Second {
			t.Errorf("waited %s, want 30 s and up to a tenth", d)
		}
	}
	if requests, csrs := d.keys(); requests != 4 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	slices.Sort(d.seals)
	if got := len(slices.Compact(d.seals)); got != 4 {
		t.Errorf("%d different seals", got)
	}
}

// The process may end while the join waits. The next one says which token it needs, and goes on with the same CSR.
// Req: AP-005
func TestDeferredJoinGoesOnInAnotherProcess(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	id, secret, _ := strings.Cut(strings.TrimPrefix(token, "bcjt_"), ".")
	d := newDesk(m, deferring(firstRequest, 30))
	_, said, _, err := m.waiting(token, noWait)
	if !fault.Is(err, fault.Pending) || !strings.Contains(err.Error(), firstRequest) || !strings.Contains(fault.HintOf(err), firstRequest) {
		t.Fatalf("error %v, hint %q", err, fault.HintOf(err))
	}
	if len(said) != 0 {
		t.Errorf("it says that it waits: %v", said)
	}
	if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := m.pendingFile(); !strings.Contains(got, `"tokenId": "`+id+`"`) || strings.Contains(got, secret) || strings.Contains(got, "bcjt_") {
		t.Errorf("join-pending.json: %s", got)
	}

	// What the other commands say of it.
	s, err := m.agent().StoppedStatus()
	if want := (agent.JoinStatus{RequestID: firstRequest, Attestor: "join-token", Role: "node", TokenID: id}); err != nil || s.State != agent.Joining || *s.Join != want {
		t.Errorf("status %+v, %v", s, err)
	}
	if err := s.Err(); !fault.Is(err, fault.Pending) || !strings.Contains(fault.HintOf(err), id) {
		t.Errorf("status: %v, hint %q", err, fault.HintOf(err))
	}
	err = m.agent().Run(t.Context(), agent.Notifier{})
	if !fault.Is(err, fault.NoIdentity) || !strings.Contains(err.Error(), firstRequest) || !strings.Contains(fault.HintOf(err), id) {
		t.Errorf("the daemon: %v, hint %q", err, fault.HintOf(err))
	}
	for name, in := range map[string]string{"nothing": "", "not a token": "hunter2"} {
		_, err = m.join(in)
		if !fault.Is(err, fault.Token) || !strings.Contains(err.Error(), firstRequest) || !strings.Contains(fault.HintOf(err), id) {
			t.Errorf("%s on standard input: %v, hint %q", name, err, fault.HintOf(err))
		}
	}

	d.then(deferring(firstRequest, 30), admitting)
	result, said, _, err := m.waiting(token, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.mustHaveJoined(result.NodeID, token)
	if want := []agent.JoinWait{{RequestID: firstRequest}}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
	if requests, csrs := d.keys(); requests != 3 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	if got := m.log.count(`level=INFO msg="resume join" request=` + firstRequest + " token=" + id); got != 1 {
		t.Errorf("the log says %d times which join is resumed:\n%s", got, m.log)
	}
}

// An operator who replaced the token gives the new one: the same CSR goes on with it, and that is said. The control plane
// decides what it is worth.
func TestDeferredJoinGoesOnWithAnotherToken(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	first, second := newToken(t, cp, 1), newToken(t, cp, 1)
	d := newDesk(m, deferring(firstRequest, 30))
	if _, _, _, err := m.waiting(first, noWait); !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	if _, _, _, err := m.waiting(second, noWait); !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	if got := m.log.count(`level=WARN msg="resume join with another token"`); got != 1 {
		t.Errorf("it is said %d times:\n%s", got, m.log)
	}
	if id, _, _ := strings.Cut(strings.TrimPrefix(second, "bcjt_"), "."); !strings.Contains(m.pendingFile(), id) {
		t.Errorf("the file names another token than the last deferral's: %s", m.pendingFile())
	}
	d.then(admitting)
	if _, _, _, err := m.waiting(second, nil); err != nil {
		t.Fatal(err)
	}
	if requests, csrs := d.keys(); requests != 3 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	if a, b := usesLeft(t, cp, first), usesLeft(t, cp, second); a != 1 || b != 0 {
		t.Errorf("%d and %d uses left", a, b)
	}
}

// The wait is what the control plane says, within bounds.
func TestHowLongADeferredJoinWaits(t *testing.T) {
	for said, want := range map[uint32]time.Duration{
		0: 30 * time.Second, 1: 5 * time.Second, 5: 5 * time.Second, 6: 6 * time.Second, 30: 30 * time.Second,
		600: 10 * time.Minute, 601: 10 * time.Minute, math.MaxUint32: 10 * time.Minute,
	} {
		if got := agent.AskAgain(said); got != want {
			t.Errorf("%d seconds: %s, want %s", said, got, want)
		}
	}
}

// While it waits, a gateway that is away is waited for without a limit; before that, for as long as patience lasts. It is
// told once and not again and again.
func TestDeferredJoinWaitsForTheGateway(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	away := failing(status.Error(codes.Unavailable, "away"))
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	answers := append([]answer{deferring(firstRequest, 30)}, slices.Repeat([]answer{away}, 30)...)
	answers = append(answers, deferring(firstRequest, 30), away, admitting)
	newDesk(m, answers...)
	result, said, _, err := m.waiting(token, func(o *agent.JoinOptions) { o.Patience = time.Nanosecond })
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	m.mustHaveJoined(result.NodeID, token)
	if len(said) != 1 {
		t.Errorf("said %v", said)
	}
	for text, want := range map[string]int{`level=WARN msg="retry join"`: 2, `level=INFO msg="retry join"`: 0, `msg="reach gateway again"`: 1} {
		if got := m.log.count(text); got != want {
			t.Errorf("%q is %d times in the log, want %d", text, got, want)
		}
	}

	other := newMachine(t, cp)
	other.host = anotherHost(t, "other")
	newDesk(other, away)
	if _, _, _, err := other.waiting(token, func(o *agent.JoinOptions) { o.Patience = time.Nanosecond }); !fault.Is(err, fault.Unreachable) {
		t.Errorf("without a deferral: %v", err)
	}
	// One that resumes has no answer yet: it ends too, and a script that runs it again is told that it is temporary.
	d := newDesk(other, deferring(secondRequest, 30))
	token = newToken(t, cp, 1)
	if _, _, _, err := other.waiting(token, noWait); !fault.Is(err, fault.Pending) {
		t.Fatal(err)
	}
	d.then(away)
	if _, _, _, err := other.waiting(token, func(o *agent.JoinOptions) { o.Patience = time.Nanosecond }); !fault.Is(err, fault.Unreachable) {
		t.Errorf("resumed: %v", err)
	}
}

// A refusal ends the wait with a clear word, and without a new request: that would ask again after an operator's no. The
// next run asks once more with the same CSR, and then files a new request.
func TestDeferredJoinIsRejected(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	d := newDesk(m, deferring(firstRequest, 30), deferring(firstRequest, 30), failing(errRefused))
	_, _, _, err := m.waiting(token, nil)
	want := "cannot join: the join request " + firstRequest + " was not approved (it was rejected, nobody decided in time, or its token is good no more): Join refused (ACCESS_DENIED)"
	if fault.CodeOf(err).Exit() != 77 || err.Error() != want || fault.HintOf(err) == "" {
		t.Errorf("error %v, want %s; hint %q", err, want, fault.HintOf(err))
	}
	if requests, csrs := d.keys(); requests != 3 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	d.then(failing(errRefused), deferring(secondRequest, 30), admitting)
	result, said, _, err := m.waiting(token, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.mustHaveJoined(result.NodeID, token)
	if want := []agent.JoinWait{{RequestID: secondRequest}}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
	if requests, csrs := d.keys(); requests != 6 || csrs != 2 || !bytes.Equal(d.csrs[0], d.csrs[3]) {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
}

// An operator's no is told also where nobody waited for it, as with --no-wait or after a restart: once, before another request
// is filed. From then on nothing says that the join still waits.
func TestDeferredJoinIsRejectedWhileNobodyWaits(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	d := newDesk(m, deferring(firstRequest, 30))
	run := func(want fault.Code, request string) {
		t.Helper()
		_, _, _, err := m.waiting(token, noWait)
		if !fault.Is(err, want) || !strings.Contains(err.Error(), "the join request "+request+" ") {
			t.Fatalf("error %v, want %s of %s", err, want, request)
		}
		s, err := m.agent().StoppedStatus()
		if waits := want == fault.Pending; waits != (s.State == agent.Joining) || !waits && !fault.Is(err, fault.NoIdentity) {
			t.Errorf("status %+v, %v", s, err)
		}
		if err := m.agent().Run(t.Context(), agent.Notifier{}); !fault.Is(err, fault.NoIdentity) || strings.Contains(err.Error(), request) != (want == fault.Pending) {
			t.Errorf("the daemon: %v", err)
		}
	}
	run(fault.Pending, firstRequest)
	d.then(failing(errRefused))
	run(fault.AccessDenied, firstRequest)
	// It was a lie.
	d.then(deferring(firstRequest, 30))
	run(fault.Pending, firstRequest)
	if requests, csrs := d.keys(); requests != 3 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	// It was none.
	d.then(failing(errRefused))
	run(fault.AccessDenied, firstRequest)
	d.then(failing(errRefused), deferring(secondRequest, 30))
	run(fault.Pending, secondRequest)
	if requests, csrs := d.keys(); requests != 6 || csrs != 2 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
}

// A gateway that loses the admission of an approved join and then forges refusals ends the wait, and costs nothing else.
func TestForgedRefusalLosesNoApprovedJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	d := newDesk(m, deferring(firstRequest, 30), losing, failing(errRefused))
	for range 3 {
		if _, _, _, err := m.waiting(token, nil); !fault.Is(err, fault.AccessDenied) {
			t.Fatalf("error %v", err)
		}
	}
	d.then(admitting)
	result, _, _, err := m.waiting(token, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.mustHaveJoined(result.NodeID, token)
	if got := joined(t, cp); !slices.Equal(got, []string{result.NodeID}) {
		t.Errorf("nodes %q joined, want %q once", got, result.NodeID)
	}
}

// A request that expired is followed by another one for the same CSR: that is said and recorded.
func TestDeferredJoinGetsAnotherRequest(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	recorded := func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		if got := m.pendingFile(); !strings.Contains(got, secondRequest) || strings.Contains(got, firstRequest) {
			t.Errorf("join-pending.json: %s", got)
		}
		return next(req)
	}
	newDesk(m, deferring(firstRequest, 30), deferring(secondRequest, 30), recorded)
	_, said, _, err := m.waiting(newToken(t, cp, 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := []agent.JoinWait{{RequestID: firstRequest}, {RequestID: secondRequest, Replaces: firstRequest}}; !slices.Equal(said, want) {
		t.Errorf("said %v, want %v", said, want)
	}
}

// Nothing but JoinService defers a join, and nothing but this request is deferred. Each forgery ends with status 76, and
// costs neither key nor token.
// Req: AP-002
func TestForgedDeferrals(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	foreign := controlplanetest.Start(t, controlplanetest.Options{})
	other := sha256.Sum256([]byte("another"))
	body := func(change func(*daemonv1.JoinResponseBody, *daemonv1.Deferral)) answer {
		return deferring(firstRequest, 30, func(b *daemonv1.JoinResponseBody) { change(b, b.GetDeferral()) })
	}
	var kept *daemonv1.JoinResponse
	for name, c := range map[string]struct {
		answers []answer
		check   identity.CheckName
	}{
		"unsigned": {[]answer{func(t *testing.T, _ *controlplanetest.ControlPlane, req *joinv1.JoinRequest, _ nextJoin) (*daemonv1.JoinResponse, error) {
			b, err := proto.Marshal(deferralOf(t, req, firstRequest, 30))
			return &daemonv1.JoinResponse{Body: b}, err
		}}, identity.CheckSignature},
		"signed by another control plane": {[]answer{func(t *testing.T, _ *controlplanetest.ControlPlane, req *joinv1.JoinRequest, _ nextJoin) (*daemonv1.JoinResponse, error) {
			return sign(t, foreign, deferralOf(t, req, firstRequest, 30)), nil
		}}, identity.CheckSignature},
		"a flipped bit": {[]answer{func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, _ nextJoin) (*daemonv1.JoinResponse, error) {
			r := sign(t, cp, deferralOf(t, req, firstRequest, 30))
			r.Body[len(r.Body)/2] ^= 1
			return r, nil
		}}, identity.CheckSignature},
		"for another CSR":     {[]answer{body(func(_ *daemonv1.JoinResponseBody, d *daemonv1.Deferral) { d.CsrSha256 = other[:] })}, identity.CheckCSR},
		"for no CSR":          {[]answer{body(func(_ *daemonv1.JoinResponseBody, d *daemonv1.Deferral) { d.CsrSha256 = nil })}, identity.CheckCSR},
		"for another request": {[]answer{body(func(b *daemonv1.JoinResponseBody, _ *daemonv1.Deferral) { b.RequestSha256 = other[:] })}, identity.CheckRequest},
		"without an id":       {[]answer{deferring("", 30)}, identity.CheckContent},
		"with an escape":      {[]answer{deferring("jreq_\x1b[2J\n", 30)}, identity.CheckContent},
		"with a huge id":      {[]answer{deferring("jreq_"+strings.Repeat("x", 100_000), 30)}, identity.CheckContent},
		"with an empty body": {[]answer{body(func(b *daemonv1.JoinResponseBody, _ *daemonv1.Deferral) {
			*b = daemonv1.JoinResponseBody{} //nolint:govet // nobody else has it
		})}, identity.CheckCSR},
		// An earlier deferral of the very join, which would make the machine wait for ever.
		"kept from the last try": {[]answer{func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (r *daemonv1.JoinResponse, err error) {
			kept, err = deferring(firstRequest, 30)(t, cp, req, next)
			return kept, err
		}, func(*testing.T, *controlplanetest.ControlPlane, *joinv1.JoinRequest, nextJoin) (*daemonv1.JoinResponse, error) {
			return kept, nil
		}}, identity.CheckRequest},
		"and then the admission of another key": {[]answer{deferring(firstRequest, 30), func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, _ nextJoin) (*daemonv1.JoinResponse, error) {
			csr := sha256.Sum256(bodyOf(t, req).GetCsr())
			request := sha256.Sum256(req.GetRequest().GetBody())
			return sign(t, cp, &daemonv1.JoinResponseBody{
				Result:        &daemonv1.JoinResponseBody_Admission{Admission: &daemonv1.Admission{CsrSha256: csr[:], Chain: [][]byte{cp.Bundle.Public().NodeCA().Raw}}},
				RequestSha256: request[:],
			}), nil
		}}, identity.CheckKey},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, cp)
			m.host = anotherHost(t, name)
			token := newToken(t, cp, 1)
			d := newDesk(m, c.answers...)
			_, _, _, err := m.waiting(token, nil)
			if fault.CodeOf(err).Exit() != 76 || identity.FailedCheck(err) != c.check {
				t.Fatalf("error %.300v, want the check %s and exit status 76", err, c.check)
			}
			if text := err.Error(); len(text) > 500 || strings.ContainsAny(text, "\x1b\n") {
				t.Errorf("the error is %.600q", text)
			}
			if len(c.answers) == 1 && strings.Contains(m.pendingFile(), "requestId") {
				t.Errorf("it is recorded: %s", m.pendingFile())
			}
			d.then(admitting)
			result, _, _, err := m.waiting(token, nil)
			if err != nil {
				t.Fatalf("afterwards: %v", err)
			}
			m.mustHaveJoined(result.NodeID, token)
			if requests, csrs := d.keys(); requests != len(c.answers)+1 || csrs != 1 {
				t.Errorf("%d requests with %d CSRs", requests, csrs)
			}
		})
	}
}

// A gateway that answers with everything in turn only delays.
func TestAlternatingAnswers(t *testing.T) {
	conflict, err := status.New(codes.Aborted, "This machine joined concurrently; retry").WithDetails(&errdetails.ErrorInfo{Reason: string(fault.Conflict), Domain: "better-compute"})
	if err != nil {
		t.Fatal(err)
	}
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	round := []answer{deferring(firstRequest, 30), failing(conflict.Err()), deferring(secondRequest, 1), failing(status.Error(codes.Unavailable, "")), failing(status.Error(codes.DeadlineExceeded, ""))}
	d := newDesk(m, append(slices.Repeat(round, 5), admitting)...)
	result, _, w, err := m.waiting(token, nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	m.mustHaveJoined(result.NodeID, token)
	if requests, csrs := d.keys(); requests != 26 || csrs != 1 || len(w.all) != 25 {
		t.Errorf("%d requests with %d CSRs after %d waits", requests, csrs, len(w.all))
	}
}

// One join waits at a time. Another one says who does; status asks nobody; and an order to stop ends the wait at once, with
// key and request kept.
func TestOneJoinWaits(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	d := newDesk(m, deferring(firstRequest, 600))
	token := newToken(t, cp, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	waits, ended := make(chan struct{}), make(chan error, 1)
	a := m.agent() // which waits by the wall clock
	go func() {
		_, err := a.Join(ctx, agent.JoinOptions{Stdin: strings.NewReader(token), OnWait: func(agent.JoinWait) { close(waits) }})
		ended <- err
	}()
	select {
	case <-waits:
	case err := <-ended:
		t.Fatal(err)
	}
	me := fmt.Sprintf("(process %d)", os.Getpid())
	_, joinErr := m.join(token)
	for what, err := range map[string]error{"join": joinErr, "node": m.agent().Run(t.Context(), agent.Notifier{})} {
		if !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), firstRequest) || !strings.Contains(err.Error(), me) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v, hint %q", what, err, fault.HintOf(err))
		}
	}
	if s, err := m.agent().StoppedStatus(); err != nil || s.State != agent.Joining {
		t.Errorf("status %+v, %v", s, err)
	}
	before := time.Now()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if took := time.Since(before); took > 2*time.Second {
		t.Errorf("it ended after %s", took)
	}
	if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	d.then(admitting)
	if _, err := m.join(token); err != nil {
		t.Fatal(err)
	}
	if _, csrs := d.keys(); csrs != 1 {
		t.Errorf("%d CSRs", csrs)
	}
}

// A machine that was suspended for the rest of the wait does not wait for it again, and a clock that is set back does not
// make it longer.
func TestWaitGoesByTheWallClock(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	var looks int
	m.now = func() time.Time {
		if looks++; looks > 1 {
			return time.Now().Add(time.Hour) // resumed
		}
		return time.Now()
	}
	before := time.Now()
	if err := m.agent().SleepWall(t.Context(), 30*time.Minute); err != nil || time.Since(before) > 5*time.Second {
		t.Errorf("suspended: %v after %s", err, time.Since(before))
	}
	m.now = func() time.Time {
		looks++
		return time.Now().Add(-time.Duration(looks) * time.Hour)
	}
	before = time.Now()
	if err := m.agent().SleepWall(t.Context(), 20*time.Millisecond); err != nil || time.Since(before) > 5*time.Second {
		t.Errorf("set back: %v after %s", err, time.Since(before))
	}
}

// deferTwice puts something between every machine and the control plane that defers each CSR twice and then lets it in.
func deferTwice(t *testing.T, cp *controlplanetest.ControlPlane) (url string) {
	relay := cp.Relay(t)
	var mu sync.Mutex
	seen := map[string]int{}
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next nextJoin) (*daemonv1.JoinResponse, error) {
		mu.Lock()
		csr := string(bodyOf(t, req).GetCsr())
		seen[csr]++
		n := seen[csr]
		mu.Unlock()
		switch n {
		case 1:
			return deferring(firstRequest, 30)(t, cp, req, next)
		case 2:
			return deferring(secondRequest, 30)(t, cp, req, next)
		default:
			return next(req)
		}
	})
	return relay.URL
}

// Wherever the process is killed in a join that an operator must approve, the next one ends with a working identity: one
// node, one use, and as many CSRs as it takes.
// Req: AP-005
func TestDeferredJoinIsKilledAfterEveryStep(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	url := deferTwice(t, cp)
	counted := newMachine(t, cp)
	counted.url = url
	steps := counted.stepsOf("deferred", newToken(t, cp, 1))
	if len(steps) < 30 {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	before := len(joined(t, cp))
	t.Run("after", func(t *testing.T) { // waits for the parallel ones
		for i, name := range steps {
			t.Run(fmt.Sprint(i+1, " ", strings.TrimSpace(name)), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, cp)
				m.url, m.host = url, anotherHost(t, t.Name())
				token := newToken(t, cp, 1)
				m.kill("deferred", token, i+1)
				result, _, _, err := m.waiting(token, nil)
				if err != nil {
					t.Fatalf("%v\n%s", err, m.log)
				}
				m.mustHaveJoined(result.NodeID, token)
			})
		}
	})
	if got := len(joined(t, cp)) - before; got != len(steps) {
		t.Errorf("%d nodes joined from %d machines", got, len(steps))
	}
}

// The same where it is killed while a request is under way: the one that is deferred, the one that is admitted, and after
// the admission.
func TestDeferredJoinIsKilledWhileItAsks(t *testing.T) {
	for name, at := range map[string]struct {
		request int
		after   bool // after JoinService has answered
	}{"first": {1, false}, "deferred": {1, true}, "again": {2, false}, "admitted": {2, true}} {
		t.Run(name, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{})
			m := newMachine(t, cp)
			token := newToken(t, cp, 1)
			v := m.newVictim("deferred", token)
			killing := func(a answer) answer {
				return func(t *testing.T, cp *controlplanetest.ControlPlane, req *joinv1.JoinRequest, next nextJoin) (r *daemonv1.JoinResponse, err error) {
					if at.after {
						r, err = a(t, cp, req, next)
					}
					v.kill()
					return r, err
				}
			}
			answers := []answer{deferring(firstRequest, 30), admitting}
			d := newDesk(m, slices.Concat(answers[:at.request-1], []answer{killing(answers[at.request-1])})...)
			v.cmd.Env = m.victim("deferred", token, 0).Env // it knows the desk's address now
			v.mustBeKilled()
			d.then(admitting)
			result, _, _, err := m.waiting(token, nil)
			if err != nil {
				t.Fatalf("%v\n%s", err, m.log)
			}
			m.mustHaveJoined(result.NodeID, token)
			if got := joined(t, cp); !slices.Equal(got, []string{result.NodeID}) {
				t.Errorf("nodes %q joined", got)
			}
			if _, csrs := d.keys(); csrs != 1 {
				t.Errorf("%d CSRs", csrs)
			}
		})
	}
}

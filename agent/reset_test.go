package agent_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// reclaimToken makes a token that lets a known machine join again.
func reclaimToken(t *testing.T, cp *controlplanetest.ControlPlane) string {
	t.Helper()
	return cp.NewToken(t, tokens.CreateRequest{AllowReclaim: true})
}

// reset joins the machine again with a token.
func (m *machine) reset(token string, more ...func(*agent.JoinOptions)) (agent.JoinResult, error) {
	m.t.Helper()
	o := agent.JoinOptions{Reset: true, Stdin: strings.NewReader(token), Patience: 3 * time.Second}
	for _, f := range more {
		f(&o)
	}
	return m.agent().Join(m.t.Context(), o)
}

func byX509PoP(o *agent.JoinOptions) { o.Attestor = agent.AttestorX509PoP }

// contents are the files of the data directory, without the lock.
func (m *machine) contents() map[string]string {
	m.t.Helper()
	all := map[string]string{}
	for _, name := range m.files() {
		b, err := os.ReadFile(filepath.Join(m.data(), name))
		if err != nil {
			m.t.Fatal(err)
		}
		all[name] = string(b)
	}
	return all
}

// keeps fails the test where a file is not what it was.
func (m *machine) keeps(before map[string]string) {
	m.t.Helper()
	now := m.contents()
	for name, content := range before {
		if now[name] != content {
			m.t.Errorf("%s is not what it was", name)
		}
	}
}

var movedName = regexp.MustCompile(`^(.+?)(\.reset-[0-9]{8}T[0-9]{6}Z)(-wal)?$`)

// movedAside checks that the old files stand under one suffix, byte for byte, and returns the other files.
func (m *machine) movedAside(old map[string]string) (others []string) {
	m.t.Helper()
	suffixes, found := map[string]bool{}, 0
	for name, content := range m.contents() {
		parts := movedName.FindStringSubmatch(name)
		if parts == nil {
			others = append(others, name)
			continue
		}
		suffixes[parts[2]] = true
		found++
		if old[parts[1]+parts[3]] != content {
			m.t.Errorf("%s does not have the old content", name)
		}
	}
	if len(suffixes) != 1 || found != len(old) {
		m.t.Errorf("%d of %d files moved, suffixes %v", found, len(old), slices.Collect(maps.Keys(suffixes)))
	}
	slices.Sort(others)
	return others
}

// A machine that the control plane knows joins again with a token that allows it: the same node, a generation later.
// Req: RS-003 RS-007 RS-008 RS-009 RS-015
func TestReset(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	for name, content := range map[string]string{"journal.db": "rows", "journal.db-wal": "more rows", "node.key.next": "a key"} {
		if err := os.WriteFile(filepath.Join(m.data(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	old := m.contents()
	result, err := m.reset(reclaimToken(t, cp), asRoot(m))
	if err != nil {
		t.Fatal(err)
	}
	if result.NodeID != node || result.NotJoined || len(result.Moved) != 5 {
		t.Errorf("result %+v", result)
	}
	if got, want := m.movedAside(old), []string{"identity.json", "node.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if id := m.connects(); id.NodeID != node || id.Generation != 2 {
		t.Errorf("connected as %+v", id)
	}
}

// asRoot makes the machine's commands root's, whoever runs the test.
func asRoot(m *machine) func(*agent.JoinOptions) {
	m.euid = func() int { return 0 }
	return func(*agent.JoinOptions) {}
}

// Req: RS-004
func TestResetNeedsRoot(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	old := m.contents()
	m.euid = func() int { return 1000 }
	token := reclaimToken(t, cp)
	for name, err := range map[string]error{
		"reset":   second(m.reset(token)),
		"no join": second(m.reset("", func(o *agent.JoinOptions) { o.NoJoin = true })),
		"plan":    second(m.agent().PlanReset()),
	} {
		if !fault.Is(err, fault.NotRoot) || fault.CodeOf(err).Exit() != 77 {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.keeps(old)
	if len(m.files()) != len(old) || usesLeft(t, cp, token) != 1 {
		t.Errorf("files %q", m.files())
	}
}

func second[T any](_ T, err error) error { return err }

// A reset that is refused has moved nothing, and says what the token must be. The daemon goes on.
func TestRefusedReset(t *testing.T) {
	needRoot(t)
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	old := m.contents()
	m.run()
	m.waitFor(agent.Connected)
	_, err := m.reset(newToken(t, cp, 1))
	if !fault.Is(err, fault.AccessDenied) || !strings.Contains(fault.HintOf(err), "--allow-reclaim") {
		t.Errorf("%v (hint %q)", err, fault.HintOf(err))
	}
	m.keeps(old)
	if s := m.waitFor(agent.Connected); s.Identity.NodeID != node || s.Identity.Generation != 1 {
		t.Errorf("status %+v", s.Identity)
	}
	// The next one goes on, with another request: the first is refused for good.
	if _, err := m.reset(reclaimToken(t, cp)); err != nil {
		t.Fatal(err)
	}
	m.movedAside(old)
	eventually(t, "connected in generation 2", 10*time.Second, func() bool {
		s := m.status()
		return s.State == agent.Connected && s.Identity.Generation == 2
	})
}

// needRoot skips a test of what only root may ask a daemon for.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may ask for a hand-over")
	}
}

// A running daemon hands over, and goes on as the new identity, in the same process.
// Req: RS-003
func TestDaemonHandsOver(t *testing.T) {
	needRoot(t)
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, node := joinedMachine(t, cp)
	m.run()
	m.waitFor(agent.Connected)
	old := m.contents()
	if result, err := m.reset(reclaimToken(t, cp)); err != nil || result.NodeID != node {
		t.Fatalf("%+v, %v", result, err)
	}
	m.movedAside(old)
	eventually(t, "connected in generation 2\n"+m.log.String(), 10*time.Second, func() bool {
		s := m.status()
		return s.State == agent.Connected && s.Identity.Generation == 2
	})
	if m.log.count(`msg="hand over data directory"`) != 1 {
		t.Errorf("log\n%s", m.log)
	}
}

// A parked daemon holds nothing: it finds the new identity.
func TestParkedDaemonFindsTheResetIdentity(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	defer agent.SetParkedLook(50 * time.Millisecond)()
	m, node := joinedMachine(t, cp)
	revokeIdentity(t, cp, node)
	m.run()
	m.waitFor(agent.Parked)
	if _, err := m.reset(reclaimToken(t, cp), asRoot(m)); err != nil {
		t.Fatal(err)
	}
	if s := m.waitFor(agent.Connected); s.Identity.NodeID != node || s.Identity.Generation < 2 {
		t.Errorf("status %+v", s.Identity)
	}
}

// Where nobody hands over, the reset is temporary, and nothing was sent.
func TestResetBesideAProcessThatDoesNotHandOver(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	asRoot(m)
	old := m.contents()
	release, err := openDir(t, m.data()).Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	token := reclaimToken(t, cp)
	for name, serve := range map[string]http.HandlerFunc{
		"nobody":      nil,
		"old version": http.NotFound,
		"a refusal": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_ = json.NewEncoder(w).Encode(map[string]string{"code": "BUSY", "message": "no", "hint": "wait"})
		},
		"nonsense": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
	} {
		t.Run(name, func(t *testing.T) {
			if serve != nil {
				l, err := net.Listen("unix", m.socket())
				if err != nil {
					t.Fatal(err)
				}
				server := &http.Server{Handler: serve}
				go func() { _ = server.Serve(l) }()
				defer server.Close()
			}
			_, err := m.reset(token)
			if code := fault.CodeOf(err); code.Exit() != 75 || fault.HintOf(err) == "" {
				t.Errorf("%v (hint %q)", err, fault.HintOf(err))
			}
			m.keeps(old)
			if len(m.files()) != len(old) || usesLeft(t, cp, token) != 1 {
				t.Errorf("files %q", m.files())
			}
		})
	}
}

// Only root gets a hand-over, and only of the daemon's own directory.
func TestHandoverIsForRoot(t *testing.T) {
	needRoot(t)
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	m.run()
	m.waitFor(agent.Connected)
	ask := func(body string) *http.Response {
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", m.socket())
		}}}
		resp, err := client.Post("http://bcd/v1/handover", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { resp.Body.Close() })
		return resp
	}
	for name, body := range map[string]string{
		"empty": "", "not JSON": "{", "no directory": `{}`, "huge": strings.Repeat(" ", 1<<20) + "{}",
		"another directory": `{"data_dir":` + strconv.Quote(t.TempDir()) + `}`, "missing directory": `{"data_dir":"/does/not/exist"}`,
	} {
		if resp := ask(body); resp.StatusCode < 400 {
			t.Errorf("%s: %s", name, resp.Status)
		}
	}
	// Another user, whom the socket's mode would let in.
	for _, path := range []string{m.socket(), m.dir, filepath.Dir(m.dir)} {
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	answer := askAs(t, 65534, m.socket(), `{"data_dir":`+strconv.Quote(m.data())+`}`)
	if !strings.Contains(answer, " 403 ") || !strings.Contains(answer, "NOT_ROOT") {
		t.Errorf("another user: %s", answer)
	}
	if s := m.status(); s.State != agent.Connected || m.log.count(`msg="hand over data directory"`) != 0 {
		t.Errorf("the daemon is %s", s.State)
	}
}

// askAs asks for a hand-over as another user: the kernel takes a connection's user from the thread that connects.
func askAs(t *testing.T, uid int, socket, body string) string {
	t.Helper()
	type result struct {
		answer string
		err    error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine
		ask := func() (string, error) {
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return "", e
			}
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return "", err
			}
			defer unix.Close(fd)
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: socket}); err != nil {
				return "", err
			}
			if _, err := unix.Write(fd, fmt.Appendf(nil, "POST /v1/handover HTTP/1.1\r\nHost: bcd\r\nContent-Length: %d\r\n\r\n%s", len(body), body)); err != nil {
				return "", err
			}
			b := make([]byte, 4096)
			n, err := unix.Read(fd, b)
			return string(b[:max(n, 0)]), err
		}
		answer, err := ask()
		done <- result{answer, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.answer
}

// A reset that must wait leaves the daemon connected; the answer ends it.
func TestResetWaitsBesideTheDaemon(t *testing.T) {
	needRoot(t)
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	d := newDesk(m, deferring("jreq_01", 5), deferring("jreq_01", 5), deferring("jreq_02", 5), admitting)
	m.run()
	m.waitFor(agent.Connected)
	old := m.contents()
	waits, handedOver := 0, 0
	m.sleep = func(ctx context.Context, _ time.Duration) error {
		waits++
		eventually(t, "the daemon is connected while the reset waits", 10*time.Second, func() bool {
			s := m.status()
			return s.State == agent.Connected && s.Identity.Generation == 1
		})
		if waits == 2 { // nothing was new: nobody was disturbed
			if got := m.log.count(`msg="hand over data directory"`); got != handedOver {
				t.Errorf("handed over %d times, then %d", handedOver, got)
			}
		}
		handedOver = m.log.count(`msg="hand over data directory"`)
		m.keeps(old)
		return ctx.Err()
	}
	var said []agent.JoinWait
	result, err := m.reset(reclaimToken(t, cp), func(o *agent.JoinOptions) { o.OnWait = func(w agent.JoinWait) { said = append(said, w) } })
	if err != nil || result.NodeID != node || waits != 3 || len(said) != 2 {
		t.Fatalf("%+v, %v after %d waits, %v\n%s", result, err, waits, said, m.log)
	}
	if requests, csrs := d.keys(); requests != 4 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	m.movedAside(old)
	eventually(t, "connected in generation 2", 10*time.Second, func() bool {
		s := m.status()
		return s.State == agent.Connected && s.Identity.Generation == 2
	})
}

// A reset that waits for an operator is stopped, the daemon started again in between, and the next one goes on with it.
func TestWaitingResetGoesOnInAnotherProcess(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	asRoot(m)
	d := newDesk(m, deferring("jreq_01", 5), admitting)
	old := m.contents()
	token := reclaimToken(t, cp)
	if _, err := m.reset(token, noWait); !fault.Is(err, fault.Pending) {
		t.Fatalf("%v", err)
	}
	m.connects()
	m.keeps(old)
	if result, err := m.reset(token); err != nil || result.NodeID != node {
		t.Fatalf("%+v, %v", result, err)
	}
	if requests, csrs := d.keys(); requests != 2 || csrs != 1 {
		t.Errorf("%d requests with %d CSRs", requests, csrs)
	}
	m.movedAside(old)
}

// Without a credential a reset ends after the move, unless the certificate is still good.
func TestResetWithoutCredential(t *testing.T) {
	clock := &controlplanetest.Clock{}
	cp := controlplanetest.Start(t, controlplanetest.Options{Clock: clock})
	m, node := joinedMachine(t, cp)
	asRoot(m)
	m.now = clock.Now
	old := m.contents()
	_, err := m.reset("")
	if !fault.Is(err, fault.Token) || !strings.Contains(fault.HintOf(err), "--no-join") {
		t.Errorf("%v (hint %q)", err, fault.HintOf(err))
	}
	m.keeps(old)
	if _, err := m.reset("not a token"); !fault.Is(err, fault.Token) {
		t.Errorf("a malformed token: %v", err)
	}
	m.keeps(old)
	clock.Advance(25 * time.Hour)
	cp.Gateway(t, nil)
	result, err := m.reset("")
	if err != nil || !result.NotJoined || len(result.Moved) != 2 || result.NodeID != "" {
		t.Fatalf("%+v, %v", result, err)
	}
	if got := m.movedAside(old); len(got) != 0 {
		t.Errorf("files %q", got)
	}
	if again, err := m.reset(""); err != nil || !again.NotJoined || len(again.Moved) != 0 {
		t.Errorf("nothing is left to move: %+v, %v", again, err)
	}
	m.url = cp.Gateway(t, nil)
	if back, err := m.join(reclaimToken(t, cp)); err != nil || back.NodeID != node {
		t.Errorf("the join afterwards: %+v, %v", back, err)
	}
}

func TestResetWithoutJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	asRoot(m)
	old := m.contents()
	result, err := m.reset("is not read", func(o *agent.JoinOptions) { o.NoJoin = true })
	if err != nil || !result.NotJoined {
		t.Fatalf("%+v, %v", result, err)
	}
	m.movedAside(old)
}

// A gateway that forges, bends or loses the answer of a reset moves nothing.
func TestLyingGatewayMovesNothing(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	relay := cp.Relay(t)
	m, node := joinedMachine(t, cp)
	asRoot(m)
	m.url = relay.URL
	old := m.contents()
	relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)) (*daemonv1.JoinResponse, error) {
		resp, err := next(req)
		if err == nil {
			resp = proto.Clone(resp).(*daemonv1.JoinResponse)
			resp.Body[len(resp.Body)-1] ^= 1
		}
		return resp, err
	})
	token := reclaimToken(t, cp)
	if _, err := m.reset(token); !fault.Is(err, fault.Verification) {
		t.Errorf("%v", err)
	}
	m.keeps(old)
	relay.OnJoin(nil)
	result, err := m.reset(token) // the same request again: its admission was recorded
	if err != nil || result.NodeID != node || usesLeft(t, cp, token) != 0 {
		t.Errorf("%+v, %v", result, err)
	}
	m.movedAside(old)
}

// An identity that does not load is moved by a reset, and by nothing else.
func TestResetOfADamagedIdentity(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	asRoot(m)
	if err := os.WriteFile(filepath.Join(m.data(), "identity.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	old := m.contents()
	if _, err := m.join(reclaimToken(t, cp)); !fault.Is(err, fault.IdentityInvalid) || !strings.Contains(fault.HintOf(err), "bcd join --reset --yes") {
		t.Errorf("a join: %v (hint %q)", err, fault.HintOf(err))
	}
	if _, err := m.reset("", byX509PoP); !fault.Is(err, fault.IdentityInvalid) {
		t.Errorf("by its certificate: %v", err)
	}
	m.keeps(old)
	if result, err := m.reset(reclaimToken(t, cp)); err != nil || result.NodeID != node {
		t.Fatalf("%+v, %v", result, err)
	}
	m.movedAside(old)
}

// Wherever the process is killed in a reset, the machine connects, in the old generation or the new one, and the next reset
// with the same token ends it; the old files keep every byte.
func TestResetIsKilledAfterEveryStep(t *testing.T) {
	needRoot(t)
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	counted, _ := resetMachine(t, cp, "counted")
	steps := counted.stepsOf("reset", reclaimToken(t, cp))
	if len(steps) < 25 {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	for i, name := range steps {
		t.Run(strconv.Itoa(i+1)+" "+strings.TrimSpace(name), func(t *testing.T) {
			t.Parallel()
			m, node := resetMachine(t, cp, t.Name())
			old := m.contents()
			token := reclaimToken(t, cp)
			m.kill("reset", token, i+1)
			if i%2 == 0 { // the daemon comes first
				if id := m.connectsAnyhow(); id != nil && id.NodeID != node {
					t.Errorf("connected as %+v", id)
				}
			}
			result, err := m.reset(token)
			if err != nil && usesLeft(t, cp, token) == 0 {
				// The killed one had ended in all but name: this one was another.
				result.NodeID, err = m.connects().NodeID, nil
			}
			if err != nil || result.NodeID != node {
				t.Fatalf("%+v, %v\n%s", result, err, m.log)
			}
			m.movedAside(old)
			if id := m.connects(); id.Generation != 2 {
				t.Errorf("generation %d", id.Generation)
			}
		})
	}
}

// resetMachine is a machine of its own that has joined and has a journal.
func resetMachine(t *testing.T, cp *controlplanetest.ControlPlane, name string) (m *machine, node string) {
	t.Helper()
	m = newMachine(t, cp)
	m.host = anotherHost(t, name)
	result, err := m.join(newToken(t, cp, 1))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"journal.db": "rows", "journal.db-wal": "more rows"} {
		if err := os.WriteFile(filepath.Join(m.data(), name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return m, result.NodeID
}

// connectsAnyhow starts the daemon and returns the node that it connects as; nil where it is refused, as the old identity is
// once the control plane has admitted the new one.
func (m *machine) connectsAnyhow() *agent.IdentityStatus {
	m.t.Helper()
	stop := m.run()
	defer func() { _ = stop() }()
	var s agent.Status
	eventually(m.t, "connected or parked\n"+m.log.String(), 10*time.Second, func() bool {
		s = m.status()
		return s.State == agent.Connected || s.State == agent.Parked
	})
	if s.State == agent.Parked {
		return nil
	}
	return s.Identity
}

// Two resets of one machine: the one whose place the other took ends, temporary, and nothing of the other's is lost.
func TestTwoResets(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m, node := joinedMachine(t, cp)
	asRoot(m)
	old := m.contents()
	newDesk(m, deferring("jreq_01", 5), admitting)
	other := *m
	other.url = cp.GatewayURL
	m.sleep = func(ctx context.Context, _ time.Duration) error { // while it waits
		if _, err := other.reset(reclaimToken(t, cp), func(o *agent.JoinOptions) { o.Role = "node" }); err != nil {
			t.Errorf("the other: %v", err)
		}
		return ctx.Err()
	}
	if _, err := m.reset(reclaimToken(t, cp)); fault.CodeOf(err).Exit() != 75 && !fault.Is(err, fault.AccessDenied) {
		t.Errorf("the first: %v", err)
	}
	m.movedAside(old)
	if id := other.connects(); id.NodeID != node {
		t.Errorf("connected as %+v", id)
	}
}

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/agent/config"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/internal/statefile"
)

// The crash tests run this test binary as the daemon that is killed. It says each step that it takes in its data
// directory on standard output, and kills itself after one of them.
const (
	crashScenario = "AGENT_TEST_SCENARIO" // join, deferred (a join whose waits pass at once), tpm (a join by it), reset, or renew
	crashConfig   = "AGENT_TEST_CONFIG"
	crashHost     = "AGENT_TEST_HOST"
	crashData     = "AGENT_TEST_DATA"
	crashToken    = "AGENT_TEST_TOKEN"
	crashClock    = "AGENT_TEST_CLOCK" // how far the clock is ahead
	crashStep     = "AGENT_TEST_STEP"  // 0 is never
)

func TestMain(m *testing.M) {
	if os.Getenv(crashScenario) == "" {
		os.Exit(m.Run())
	}
	if err := victim(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// victim joins, or runs until it has renewed.
func victim() error {
	ahead, err := time.ParseDuration(os.Getenv(crashClock))
	if err != nil {
		return err
	}
	last, err := strconv.Atoi(os.Getenv(crashStep))
	if err != nil {
		return err
	}
	c, err := config.Load(config.Options{
		Path: os.Getenv(crashConfig), Flags: config.Flags{DataDir: os.Getenv(crashData), HostRoot: os.Getenv(crashHost)},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var sleep func(context.Context, time.Duration) error
	if os.Getenv(crashScenario) == "deferred" {
		sleep = func(ctx context.Context, _ time.Duration) error { return context.Cause(ctx) }
	}
	a, err := agent.New(agent.Options{
		Config: c, Version: "test", Now: func() time.Time { return time.Now().Add(ahead) }, Sleep: sleep,
		Log:   slog.New(slog.NewTextHandler(&untilLine{w: os.Stderr, text: "msg=renewed", call: cancel}, nil)),
		State: []statefile.Option{statefile.WithStep(killAfter(last))},
	})
	if err != nil {
		return err
	}
	if os.Getenv(crashScenario) == "renew" {
		return a.Run(ctx, agent.Notifier{})
	}
	attestor := ""
	if os.Getenv(crashScenario) == "tpm" {
		attestor = agent.AttestorTPM
	}
	_, err = a.Join(ctx, agent.JoinOptions{
		Attestor: attestor,
		Stdin:    strings.NewReader(os.Getenv(crashToken)), Patience: 5 * time.Second, Reset: os.Getenv(crashScenario) == "reset",
	})
	return err
}

// killAfter ends this process after a number of steps, as kill -9 does.
func killAfter(last int) func(op, name string) {
	var mu sync.Mutex
	step := 0
	return func(op, name string) {
		mu.Lock()
		defer mu.Unlock()
		step++
		fmt.Println(op, name)
		if step == last {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
}

// untilLine passes a log on and calls call when a text appears in it.
type untilLine struct {
	w    io.Writer
	text string
	call func()
}

func (u *untilLine) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(u.text)) {
		u.call()
	}
	return u.w.Write(b)
}

// victim is the machine's daemon as a process of its own.
func (m *machine) victim(scenario, token string, step int) *exec.Cmd {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), time.Minute)
	m.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^$")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGQUIT) } // one that hangs says where
	cmd.Env = append(os.Environ(), crashScenario+"="+scenario, crashConfig+"="+m.config().Path, crashHost+"="+m.host,
		crashData+"="+m.data(), crashToken+"="+token, crashStep+"="+strconv.Itoa(step), crashClock+"="+time.Until(m.now()).String())
	cmd.Stderr = m.log
	return cmd
}

// stepsOf runs a scenario to its end and returns the steps that it takes.
func (m *machine) stepsOf(scenario, token string) []string {
	m.t.Helper()
	out, err := m.victim(scenario, token, 0).Output()
	if err != nil {
		m.t.Fatalf("%v\n%s", err, m.log)
	}
	return slices.Collect(strings.Lines(string(out)))
}

// kill runs a scenario until it kills itself after a step.
func (m *machine) kill(scenario, token string, step int) {
	m.t.Helper()
	out, err := m.victim(scenario, token, step).Output()
	if status, ok := asExit(err); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		m.t.Fatalf("%v after %q\n%s", err, out, m.log)
	}
}

// soonKilled is a victim that the test kills.
type soonKilled struct {
	m       *machine
	cmd     *exec.Cmd
	started chan struct{}
}

// newVictim prepares a victim, which mustBeKilled starts.
func (m *machine) newVictim(scenario, token string) *soonKilled {
	m.t.Helper()
	return &soonKilled{m: m, cmd: m.victim(scenario, token, 0), started: make(chan struct{})}
}

// kill kills it, as soon as it runs.
func (v *soonKilled) kill() {
	<-v.started
	_ = v.cmd.Process.Kill() // that it died of it is checked
}

// mustBeKilled starts it and waits until somebody killed it.
func (v *soonKilled) mustBeKilled() {
	v.m.t.Helper()
	if err := v.cmd.Start(); err != nil {
		v.m.t.Fatal(err)
	}
	close(v.started)
	if err := v.cmd.Wait(); err == nil || err.Error() != "signal: killed" {
		v.m.t.Fatalf("%v\n%s", err, v.m.log)
	}
}

func asExit(err error) (syscall.WaitStatus, bool) {
	exit, ok := err.(*exec.ExitError)
	if !ok {
		return 0, false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return status, ok
}

// connects starts the daemon and returns the node that it connects as.
func (m *machine) connects() *agent.IdentityStatus {
	m.t.Helper()
	stop := m.run()
	s := m.waitFor(agent.Connected)
	if err := stop(); err != nil {
		m.t.Fatal(err)
	}
	return s.Identity
}

// Wherever the process is killed in a join, the next one ends with a working identity, and the token lost one use.
func TestJoinIsKilledAfterEveryStep(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	counted := newMachine(t, cp)
	steps := counted.stepsOf("join", newToken(t, cp, 1))
	if len(steps) < 20 {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	before := len(joined(t, cp))
	t.Run("after", func(t *testing.T) { // waits for the parallel ones
		for i, name := range steps {
			t.Run(fmt.Sprint(i+1, " ", strings.TrimSpace(name)), func(t *testing.T) {
				t.Parallel()
				m := newMachine(t, cp)
				m.host = anotherHost(t, t.Name())
				token := newToken(t, cp, 1)
				m.kill("join", token, i+1)
				result, err := m.join(token)
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

// mustHaveJoined checks that the machine connects as the node, that only the identity is left, and that the token's one
// use is spent.
func (m *machine) mustHaveJoined(node, token string) {
	m.t.Helper()
	if got := m.connects().NodeID; got != node {
		m.t.Errorf("connected as %s, joined as %s", got, node)
	}
	if got, want := m.files(), []string{"identity.json", "node.key"}; !slices.Equal(got, want) {
		m.t.Errorf("files %q, want %q", got, want)
	}
	if got := usesLeft(m.t, m.cp, token); got != 0 {
		m.t.Errorf("%d uses left", got)
	}
}

// The same where the process is killed while its request is under way: before JoinService has it, and after it has
// admitted the machine.
func TestJoinIsKilledWhileItWaits(t *testing.T) {
	for name, admitted := range map[string]bool{"request on its way": false, "answer on its way": true} {
		t.Run(name, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{})
			relay := cp.Relay(t)
			m := newMachine(t, cp)
			m.url = relay.URL
			token := newToken(t, cp, 1)
			v := m.newVictim("join", token)
			relay.OnJoin(func(_ context.Context, req *joinv1.JoinRequest, next func(*joinv1.JoinRequest) (*daemonv1.JoinResponse, error)) (*daemonv1.JoinResponse, error) {
				var answer *daemonv1.JoinResponse
				var err error
				if admitted {
					answer, err = next(req)
				}
				v.kill()
				return answer, err
			})
			v.mustBeKilled()
			relay.OnJoin(nil)
			if got, want := usesLeft(t, cp, token), int64(1); (got == want) == admitted {
				t.Errorf("%d uses left before the next start", got)
			}
			result, err := m.join(token)
			if err != nil {
				t.Fatalf("%v\n%s", err, m.log)
			}
			m.mustHaveJoined(result.NodeID, token)
			if got := joined(t, cp); !slices.Equal(got, []string{result.NodeID}) {
				t.Errorf("nodes %q joined", got)
			}
		})
	}
}

// dueMachine is a machine that has joined, with a certificate that is due for renewal at once. It moves the control
// plane's clock.
func dueMachine(t *testing.T, cp *controlplanetest.ControlPlane) (m *machine, node string) {
	t.Helper()
	m = newMachine(t, cp)
	m.host, m.now = anotherHost(t, t.Name()), cp.Clock.Now
	result, err := m.join(newToken(t, cp, 1))
	if err != nil {
		t.Fatal(err)
	}
	cp.Clock.Advance(dueAfter)
	return m, result.NodeID
}

// Less than an hour is left of a certificate of certLife after dueAfter: its renewal waits for nothing.
const (
	certLife = 2 * time.Hour
	dueAfter = 90 * time.Minute
)

// mustRenew starts the daemon and checks that it has, or gets, a certificate after the one with the serial, and connects
// with it.
func (m *machine) mustRenew(node, serial string) {
	m.t.Helper()
	stop := m.run()
	eventually(m.t, "renewed\n"+m.log.String(), 10*time.Second, func() bool {
		id := m.status().Identity
		return id != nil && id.Serial != serial
	})
	if err := stop(); err != nil {
		m.t.Fatal(err)
	}
	if id := m.connects(); id.NodeID != node || id.Serial == serial {
		m.t.Errorf("connected as %s with certificate %s", id.NodeID, id.Serial)
	}
	if got, want := m.files(), []string{"identity.json", "node.key"}; !slices.Equal(got, want) {
		m.t.Errorf("files %q, want %q", got, want)
	}
}

// storedSerial is the serial of the certificate on the machine's disk.
func (m *machine) storedSerial() string {
	m.t.Helper()
	s, err := m.agent().StoppedStatus()
	if err != nil {
		m.t.Fatal(err)
	}
	return s.Identity.Serial
}

// Wherever the daemon is killed in a renewal, its identity loads, old or new, and the next start ends with a new
// certificate.
// Req: RN-044
func TestRenewalIsKilledAfterEveryStep(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: certLife})
	counted, _ := dueMachine(t, cp)
	steps := counted.stepsOf("renew", "")
	if len(steps) < 10 {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	for i, name := range steps {
		t.Run(fmt.Sprint(i+1, " ", strings.TrimSpace(name)), func(t *testing.T) {
			m, node := dueMachine(t, cp)
			serial := m.storedSerial()
			m.kill("renew", "", i+1)
			m.storedSerial() // it loads as it was left
			m.mustRenew(node, serial)
		})
	}
	if got := cp.Refusals(t); len(got) != 0 {
		t.Errorf("refusals %q", got)
	}
}

// The same where the daemon is killed while its request is under way.
// Req: RN-044
func TestRenewalIsKilledWhileItWaits(t *testing.T) {
	for name, renewed := range map[string]bool{"request on its way": false, "answer on its way": true} {
		t.Run(name, func(t *testing.T) {
			cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: certLife})
			m, node := dueMachine(t, cp)
			serial := m.storedSerial()
			relay := cp.Relay(t)
			m.url = relay.URL
			v := m.newVictim("renew", "")
			relay.OnRenew(func(_ context.Context, req *joinv1.RenewRequest, next func(*joinv1.RenewRequest) (*daemonv1.RenewResponse, error)) (*daemonv1.RenewResponse, error) {
				var answer *daemonv1.RenewResponse
				var err error
				if renewed {
					answer, err = next(req)
				}
				v.kill()
				return answer, err
			})
			v.mustBeKilled()
			relay.OnRenew(nil)
			if got := m.storedSerial(); got != serial {
				t.Errorf("the certificate is %s before the answer came", got)
			}
			m.mustRenew(node, serial)
		})
	}
}

package agent_test

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	daemonv1 "github.com/better-compute/bcd/api/daemon/v1"
	joinv1 "github.com/better-compute/bcd/api/join/v1"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/internal/fault"
)

// A gateway whose clock is wrong, or that lies, neither breaks renewals nor makes the node renew for ever: the time of a
// signed answer counts.
func TestGatewayWithAWrongClock(t *testing.T) {
	t.Parallel() // it waits for certificates to age
	cp := controlplanetest.Start(t, controlplanetest.Options{CertTTL: 5 * time.Second, AnswerAtOnce: true})
	relay := cp.Relay(t)
	m, _ := joinedMachine(t, cp)
	m.url = relay.URL
	m.run()
	eventually(t, "renewed\n"+m.log.String(), 20*time.Second, func() bool { return m.log.count("msg=renewed") >= 1 })
	lies := []time.Duration{20 * time.Hour, -20 * time.Hour}
	told := 0
	relay.OnSession(nil, func(e *joinv1.SessionEvent) *joinv1.SessionEvent {
		if w := e.GetOpened().GetWelcome(); w != nil {
			w.ServerTimeUnixMs += lies[told%2].Milliseconds()
			told++
		}
		return e
	})
	eventually(t, "renewed after both lies\n"+m.log.String(), 30*time.Second, func() bool { return m.log.count("msg=renewed") >= 4 })
	if got := m.log.count("renewal failed"); got != 0 {
		t.Errorf("%d renewals failed:\n%s", got, m.log)
	}
	if got := cp.Refusals(t); len(got) != 0 {
		t.Errorf("refusals %q", got)
	}
}

// Frames that this version does not know are no reason to fill a disk.
func TestUnknownFramesAreNamedOnce(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	take := m.agent().Ignoring()
	for range 1000 {
		for _, f := range []*daemonv1.GatewayFrame{{Frame: &daemonv1.GatewayFrame_Command{}}, {Frame: &daemonv1.GatewayFrame_Welcome{}}, {}} {
			if err := take(f); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got := m.log.count("ignore frames"); got != 3 {
		t.Errorf("%d lines in the log, want one for each kind", got)
	}
}

// What waits for a token that never comes can be told to stop.
func TestJoinThatWaitsForATokenStops(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := m.agent().Join(ctx, agent.JoinOptions{Stdin: in})
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it still waits")
	}
}

// The status of a service is one line: a text of the gateway adds no variable to the notification.
func TestNotificationIsOneLine(t *testing.T) {
	var said string
	agent.StatusOf(agent.Notifier{Send: func(s string) { said = s }}, "not connected: no\nMAINPID=1")
	if want := `STATUS=not connected: no\nMAINPID=1`; said != want {
		t.Errorf("said %q, want %q", said, want)
	}
}

// A configuration that names a file as the status socket does not cost the file.
func TestStatusSocketReplacesNoFile(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	if err := os.WriteFile(m.socket(), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err := m.agent().Run(ctx, agent.Notifier{})
	if !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
	if b, err := os.ReadFile(m.socket()); string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

// A daemon that cannot use its identity changes nothing, the lock included.
func TestRunWithABrokenIdentityChangesNothing(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m, _ := joinedMachine(t, cp)
	if err := os.Truncate(m.data()+"/identity.json", 100); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.data() + "/lock"); err != nil {
		t.Fatal(err)
	}
	before := strings.Join(m.files(), " ")
	if err := m.agent().Run(t.Context(), agent.Notifier{}); !fault.Is(err, fault.IdentityInvalid) {
		t.Errorf("error %v", err)
	}
	if got := strings.Join(m.files(), " "); got != before {
		t.Errorf("files %s, before %s", got, before)
	}
	if _, err := os.Stat(m.data() + "/lock"); !os.IsNotExist(err) {
		t.Error("the lock was made")
	}
}

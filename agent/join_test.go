package agent_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/controlplane/events"
	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
	"github.com/better-compute/bcd/internal/fault"
)

// Req: JF-001 JF-012 JF-016 DV-003 RS-001
func TestJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	result, err := m.join(token)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(result.NodeID, "node_") || result.Already || result.Key != "file" || result.ClockOffset != 0 {
		t.Errorf("result %+v", result)
	}
	if got, want := m.files(), []string{"identity.json", "node.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	if got := usesLeft(t, cp, token); got != 0 {
		t.Errorf("%d uses left", got)
	}
	if got := cp.WaitForEvent(t, events.TypeNodeJoined, 1); got.Type != events.TypeNodeJoined {
		t.Errorf("event %v", got)
	}

	again, err := m.join("not even looked at")
	if err != nil || !again.Already || again.NodeID != result.NodeID {
		t.Errorf("the second join: %+v, %v", again, err)
	}
}

// A join whose answer is lost gets the same certificate again, and the token lost one use.
func TestLostAnswer(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 2)
	cp.DropAnswer(controlplanetest.Join, 1)
	result, err := m.join(token)
	if err != nil {
		t.Fatal(err)
	}
	if got := cp.Dropped(controlplanetest.Join); got != 1 {
		t.Fatalf("%d answers were dropped", got)
	}
	if got := usesLeft(t, cp, token); got != 1 {
		t.Errorf("%d uses left, want 1", got)
	}
	if got := joined(t, cp); !slices.Equal(got, []string{result.NodeID}) {
		t.Errorf("nodes %q joined, want %q once", got, result.NodeID)
	}
}

// joined returns the node ids of the node.joined events.
func joined(t *testing.T, cp *controlplanetest.ControlPlane) (ids []string) {
	t.Helper()
	for _, e := range cp.Events(t) {
		if e.Type == events.TypeNodeJoined {
			var data struct {
				NodeID string `json:"nodeId"`
			}
			if err := json.Unmarshal(e.Data, &data); err != nil {
				t.Fatal(err)
			}
			ids = append(ids, data.NodeID)
		}
	}
	return ids
}

// The same holds over two runs of the program: the second one sends the first one's request.
func TestLostAnswerAndAnotherProcess(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	token := newToken(t, cp, 1)
	cp.DropAnswer(controlplanetest.Join, 100)
	_, err := m.joinWithin(token, time.Millisecond)
	if !fault.Is(err, fault.Unreachable) {
		t.Fatalf("error %v", err)
	}
	if got, want := m.files(), []string{"join-pending.json", "join.key"}; !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	cp.DropAnswer(controlplanetest.Join, 0)
	if _, err := m.join(token); err != nil {
		t.Fatal(err)
	}
	if got := usesLeft(t, cp, token); got != 0 {
		t.Errorf("%d uses left", got)
	}
}

// The machine learns nothing of a refusal's reason; the operator does.
// Req: RF-003 RF-030
func TestRefusedJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	token := newToken(t, cp, 1)
	if _, err := newMachine(t, cp).join(token); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, cp)
	m.host = anotherHost(t, "2")
	_, err := m.join(token)
	if fault.CodeOf(err).Exit() != 77 || err.Error() != "cannot join: Join refused (ACCESS_DENIED)" {
		t.Errorf("error %q", err)
	}
	if slices.Contains(m.files(), "identity.json") {
		t.Errorf("files %q", m.files())
	}
	if got := cp.Refusals(t); !slices.Equal(got, []string{"join-token:exhausted"}) {
		t.Errorf("refusals %q", got)
	}
}

// A request that may have been answered before and is refused now gets one more try with a new key.
func TestRefusedResumedJoinTriesANewKey(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{AnswerAtOnce: true})
	m := newMachine(t, cp)
	first := newToken(t, cp, 1)
	cp.DropAnswer(controlplanetest.Join, 100)
	if _, err := m.joinWithin(first, time.Millisecond); !fault.Is(err, fault.Unreachable) {
		t.Fatalf("error %v", err)
	}
	cp.DropAnswer(controlplanetest.Join, 0)
	// The operator revokes what the lost answer admitted, and gives a token that may reclaim.
	revokeIdentity(t, cp, joined(t, cp)[0])
	token := cp.NewToken(t, tokens.CreateRequest{AllowReclaim: true})
	result, err := m.join(token)
	if err != nil {
		t.Fatalf("%v\n%s", err, m.log)
	}
	if result.NodeID != joined(t, cp)[0] {
		t.Errorf("joined as %s, want the same node", result.NodeID)
	}
	if got := cp.Refusals(t); !slices.Equal(got, []string{"join:replayed"}) {
		t.Errorf("refusals %q", got)
	}
}

// Each of these ends before anything is written.
// Req: SE-004 CF-012 CF-027
func TestNothingIsWrittenBeforeTheGatewayIsKnown(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	token := newToken(t, cp, 1)
	other := controlplanetest.Start(t, controlplanetest.Options{})
	for name, c := range map[string]struct {
		spoil func(*testing.T, *machine)
		code  fault.Code
	}{
		"gateway down":    {func(_ *testing.T, m *machine) { m.url = "https://127.0.0.1:1" }, fault.Unreachable},
		"foreign gateway": {func(_ *testing.T, m *machine) { m.url = other.GatewayURL }, fault.Verification},
		"wrong name":      {func(_ *testing.T, m *machine) { m.more = "gateway_server_name = \"other.test\"\n" }, fault.Verification},
		"clock 50 years off": {func(_ *testing.T, m *machine) {
			m.now = func() time.Time { return time.Now().AddDate(-50, 0, 0) }
		}, fault.Verification},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, cp)
			c.spoil(t, m)
			_, err := m.joinWithin(token, time.Millisecond)
			if fault.CodeOf(err) != c.code || fault.HintOf(err) == "" {
				t.Errorf("error %v with code %s and hint %q, want %s", err, fault.CodeOf(err), fault.HintOf(err), c.code)
			}
			if _, err := os.Stat(m.data()); !os.IsNotExist(err) {
				t.Errorf("the data directory exists: %q", m.files())
			}
		})
	}
	if got := usesLeft(t, cp, token); got != 1 {
		t.Errorf("%d uses left", got)
	}
}

// A clock that is 10 minutes off does not keep the machine from joining, and is told.
func TestClockOff(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	for _, off := range []time.Duration{10 * time.Minute, -10 * time.Minute} {
		m := newMachine(t, cp)
		m.host = anotherHost(t, off.String())
		m.now = func() time.Time { return time.Now().Add(off) }
		result, err := m.join(newToken(t, cp, 1))
		if err != nil {
			t.Fatal(err)
		}
		if d := (result.ClockOffset + off).Abs(); d > 10*time.Second {
			t.Errorf("clock %s off: told %s", off, result.ClockOffset)
		}
	}
}

// A second bcd on the same directory is told so.
func TestSecondBcd(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	if _, err := m.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	m.run()
	cp.WaitForEvent(t, events.TypeNodeConnected, 1)
	if err := m.agent().Run(t.Context(), agent.Notifier{}); !fault.Is(err, fault.Busy) {
		t.Errorf("error %v", err)
	}
}

// An identity that does not load is an error of every command, and is never overwritten.
// Req: RS-014
func TestDamagedIdentityIsLeftAlone(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	if _, err := m.join(newToken(t, cp, 1)); err != nil {
		t.Fatal(err)
	}
	good := map[string][]byte{}
	for _, name := range m.files() {
		b, err := os.ReadFile(filepath.Join(m.data(), name))
		if err != nil {
			t.Fatal(err)
		}
		good[name] = b
	}
	for name, bad := range map[string][]byte{"identity.json": good["identity.json"][:100], "node.key": good["node.key"][:50]} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(m.data(), name)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile(path, good[name], 0o600) //nolint:errcheck // the next case would fail
			_, joinErr := m.join(newToken(t, cp, 1))
			runErr := m.agent().Run(t.Context(), agent.Notifier{})
			for _, err := range []error{joinErr, runErr} {
				if !fault.Is(err, fault.IdentityInvalid) || fault.HintOf(err) == "" {
					t.Errorf("error %v with code %s", err, fault.CodeOf(err))
				}
			}
			if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, bad) {
				t.Errorf("%s was changed", name)
			}
		})
	}
}

// revokeIdentity revokes every certificate of a node.
func revokeIdentity(t *testing.T, cp *controlplanetest.ControlPlane, nodeID string) {
	t.Helper()
	cp.Write(t, func(tx *store.Tx) error {
		_, err := tx.RevokeCerts(nodeID, 1<<40, "revoked")
		return err
	})
}

// A hosted token gives the role node-tenant to a machine that asked for node, and the machine accepts it.
// Req: K8-004 K8-017
func TestHostedJoin(t *testing.T) {
	cp := controlplanetest.Start(t, controlplanetest.Options{})
	m := newMachine(t, cp)
	if _, err := m.join(cp.NewToken(t, tokens.CreateRequest{Hosted: tokens.HostedKubernetes})); err != nil {
		t.Fatal(err)
	}
	s, err := m.agent().StoppedStatus()
	if err != nil || s.Identity.Role != "node-tenant" {
		t.Errorf("status %+v, %v", s, err)
	}
}

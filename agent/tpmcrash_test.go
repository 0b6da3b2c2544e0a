package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/better-compute/bcd/agent"
	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/controlplanetest"
	"github.com/better-compute/bcd/identity"
)

// Wherever the process is killed in a join by TPM, the next one ends with a working identity, whether an operator runs it or
// the daemon goes on by itself, and nothing is left in the TPM.
func TestJoinByTPMIsKilledAfterEveryStep(t *testing.T) {
	cp := startTPM(t, controlplane.TPMConfig{}, controlplanetest.Options{})
	counted, _ := newTPMMachine(t, cp)
	counted.allow()
	steps := counted.stepsOf("tpm", "")
	if len(steps) < 20 {
		t.Fatalf("only %d steps: %q", len(steps), steps)
	}
	for i, name := range steps {
		t.Run(fmt.Sprint(i+1, " ", strings.TrimSpace(name)), func(t *testing.T) {
			m, tpm := newTPMMachine(t, cp)
			m.host = anotherHost(t, t.Name())
			m.allow()
			m.kill("tpm", "", i+1)
			_, err := m.agent().StoppedStatus()
			if err != nil && slices.Contains(m.files(), identity.PendingFile) {
				m.run() // the daemon goes on with it
				m.waitFor(agent.Connected)
			} else if _, err := m.joinByTPM(nil); err != nil {
				t.Fatalf("%v\n%s", err, m.log)
			}
			m.namesItsAK()
			empty(t, tpm)
		})
	}
	if got := len(joined(t, cp)); got != 1+len(steps) {
		t.Errorf("%d nodes joined from %d machines", got, 1+len(steps))
	}
}

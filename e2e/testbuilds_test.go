package e2e_test

import (
	"path/filepath"
	"strings"
	"testing"
)

// The release says which version it is, and nothing that would mark it as a test's.
func TestVersions(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]string{
		build(t, "./cmd/bcd"):            "bcd 1.2.3 (",
		build(t, "./cmd/better-compute"): "better-compute 1.2.3 ",
	} {
		if out, _ := run(t, 0, environment(), program, "version"); !strings.HasPrefix(out, want) {
			t.Errorf("%s: %q", filepath.Base(program), out)
		}
	}
}

// A machine whose clock is 10 minutes off joins and is told; one that is 50 years off learns what is wrong. The clock of
// the process is moved, not the control plane's.
func TestClockOff(t *testing.T) {
	t.Parallel()
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	bcd := build(t, "./cmd/bcd", "testclock")
	if out, _ := run(t, 0, environment(), bcd, "version"); !strings.HasPrefix(out, "bcd 1.2.3+testclock (") {
		t.Errorf("version: %q", out)
	}
	for offset, told := range map[string]string{"10m": "10m", "-10m": "10m", "0s": ""} {
		m := newMachine(t, p, bcd, keyInFile)
		m.write("offset", offset+"\n")
		m.env = append(m.env, "BC_CLOCK_OFFSET="+filepath.Join(m.dir, "offset"))
		out, stderr := m.run(0, "join", "--token-file", p.token("token"+offset))
		warned := strings.Contains(stderr, "warning: this machine's clock is "+told) && strings.Contains(stderr, "\nhint: set the clock")
		if !strings.HasPrefix(out, "joined: ") || warned != (told != "") {
			t.Errorf("%s off: %s%s", offset, out, stderr)
		}
	}
	token := p.token("token")
	for _, offset := range []string{"438000h", "-438000h"} {
		m := newMachine(t, p, bcd, keyInFile)
		m.write("offset", offset)
		m.env = append(m.env, "BC_CLOCK_OFFSET="+filepath.Join(m.dir, "offset"))
		_, stderr := m.run(76, "join", "--token-file", token)
		if !strings.Contains(stderr, "the gateway's certificate is outside its dates") || !strings.Contains(stderr, "\nhint: compare this machine's clock (") {
			t.Errorf("%s off: %s", offset, stderr)
		}
	}
}

// A control plane whose clock is moved is the same control plane: the node's certificate is judged by it.
func TestClockOfTheControlPlane(t *testing.T) {
	t.Parallel()
	offset := filepath.Join(shortDir(t), "offset")
	m := &machine{t: t, dir: filepath.Dir(offset)}
	m.write("offset", "-10m")
	p := startPlane(t, build(t, "./cmd/better-compute", "testclock"), environment("BC_CLOCK_OFFSET="+offset))
	if out := p.run("version"); !strings.HasPrefix(out, "better-compute 1.2.3+testclock ") {
		t.Errorf("version: %q", out)
	}
	n := newMachine(t, p, build(t, "./cmd/bcd"), keyInFile)
	_, stderr := n.run(0, "join", "--token-file", p.token("token"))
	if !strings.Contains(stderr, "warning: this machine's clock is 10m") {
		t.Errorf("the join says nothing of the clock: %s", stderr)
	}
}

// The development build joins with a recorded machine's hardware, and says what it is.
// Req: DV-005
func TestFakeHardware(t *testing.T) {
	t.Parallel()
	bcd := build(t, "./cmd/bcd", "fakehw")
	if out, _ := run(t, 0, environment(), bcd, "version"); !strings.HasPrefix(out, "bcd 1.2.3+fakehw (") {
		t.Errorf("version: %q", out)
	}
	p := startPlane(t, build(t, "./cmd/better-compute"), environment())
	m := newMachine(t, p, bcd, keyInFile)
	profile, err := filepath.Abs("../testdata/machines/hpe-dl360-g7-padding.json")
	if err != nil {
		t.Fatal(err)
	}
	m.env = append(m.env, "BCD_FAKEHW="+profile)
	m.join(p.token("token"))
	if list := p.run("nodes", "list"); strings.Contains(list, "r750") {
		t.Errorf("it joined with the hardware below host_root:\n%s", list)
	}
}

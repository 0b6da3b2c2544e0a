package identity_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// The crash tests run this test binary as the process that is killed. It says what it does on standard output.
const (
	crashScenario = "IDENTITY_TEST_SCENARIO"
	crashDir      = "IDENTITY_TEST_DIR"
	crashStep     = "IDENTITY_TEST_STEP"
)

func TestMain(m *testing.M) {
	if scenario := os.Getenv(crashScenario); scenario != "" {
		if err := crash(os.Stdout, scenario, os.Getenv(crashDir), must(strconv.Atoi(os.Getenv(crashStep))), kill); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// crash runs a scenario and ends it with die after a number of file-system steps.
func crash(out io.Writer, scenario, path string, stop int, die func()) error {
	step := 0
	dir, err := statefile.Open(path, statefile.WithStep(func(op, name string) {
		if step++; step == stop {
			fmt.Fprintln(out, "killed after", op, name)
			die()
		}
	}))
	if err != nil {
		return err
	}
	defer dir.Close()
	release, err := dir.Lock()
	if err != nil {
		return err
	}
	defer release()
	return scenarios[scenario](out, identity.New(dir, fileKeys{}))
}

func kill() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// ctx is the killed process's.
var ctx = context.Background()

type attempt interface {
	CSR() []byte
	Reserve() error
	Accept(*identity.Identity) error
}

// scenarios are what a process does between two starts. "sent" comes after everything that must be on the disk before a
// request leaves the machine, "accepted" after everything that must be there for the identity to last.
var scenarios = map[string]func(io.Writer, *identity.Store) error{
	"join": func(out io.Writer, s *identity.Store) error {
		j, err := s.BeginJoin(ctx, tokenJoin)
		if err != nil {
			return err
		}
		return finish(out, j, nil)
	},
	// A join that is deferred, then admitted.
	"deferral": func(out io.Writer, s *identity.Store) error {
		j, err := s.BeginJoin(ctx, tokenJoin)
		if err != nil {
			return err
		}
		fmt.Fprintln(out, "sent", hex.EncodeToString(j.CSR()))
		if err := j.Defer("jreq_01"); err != nil {
			return err
		}
		fmt.Fprintln(out, "deferred")
		return finish(out, j, nil)
	},
	// A join whose request was refused for good.
	"restart": func(out io.Writer, s *identity.Store) error {
		j, err := s.BeginJoin(ctx, tokenJoin)
		if err != nil {
			return err
		}
		if err := j.Restart(ctx); err != nil {
			return err
		}
		return finish(out, j, nil)
	},
	"renewal": func(out io.Writer, s *identity.Store) error {
		r, err := s.BeginRenewal(ctx)
		if err != nil {
			return err
		}
		current, _ := r.Current()
		return finish(out, r, current)
	},
}

func finish(out io.Writer, a attempt, current *identity.Identity) error {
	if err := a.Reserve(); err != nil {
		return err
	}
	fmt.Fprintln(out, "sent", hex.EncodeToString(a.CSR()))
	if err := a.Accept(admit(a.CSR(), current)); err != nil {
		return err
	}
	fmt.Fprintln(out, "accepted")
	return nil
}

// story is what a killed process said.
type story struct {
	sent               []byte // the CSR
	deferred, accepted bool
	killed             string
}

// runner runs a scenario in a directory and stops it after the given step.
type runner func(t *testing.T, scenario, path string, step int) story

// inProcess runs a scenario in a process of its own, which is killed.
func inProcess(t *testing.T, scenario, path string, step int) story {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), crashScenario+"="+scenario, crashDir+"="+path, crashStep+"="+strconv.Itoa(step))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	s := listen(out)
	if (err == nil) == (s.killed != "") {
		t.Fatalf("step %d: %v, %+v\n%s", step, err, s, stderr.String())
	}
	return s
}

// inPlace runs a scenario here and stops it by a panic, which is much faster: nothing in the way of it cleans up.
func inPlace(t *testing.T, scenario, path string, step int) story {
	t.Helper()
	var out bytes.Buffer
	if err := stopping(func(die func()) error { return crash(&out, scenario, path, step, die) }); err != nil {
		t.Fatal(err)
	}
	return listen(out.Bytes())
}

// stopping runs f until it ends or dies.
func stopping(f func(die func()) error) error {
	type stopped struct{}
	defer func() {
		if r := recover(); r != nil && r != (stopped{}) {
			panic(r)
		}
	}()
	return f(func() { panic(stopped{}) })
}

func listen(out []byte) (s story) {
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		switch verb, rest, _ := strings.Cut(lines.Text(), " "); verb {
		case "sent":
			s.sent = must(hex.DecodeString(rest))
		case "deferred":
			s.deferred = true
		case "accepted":
			s.accepted = true
		case "killed":
			s.killed = rest
		}
	}
	return s
}

// everyStop runs a scenario once for every step that it can be killed after, each time in a copy of base ("" for an
// empty directory), and then judges what was left.
func everyStop(t *testing.T, run runner, scenario, base string, atLeast int, judge func(t *testing.T, path string, s story)) {
	for step := 1; ; step++ {
		path := stateDir(t)
		if base != "" {
			path = copyDir(t, base)
		}
		s := run(t, scenario, path, step)
		if s.killed == "" {
			if step <= atLeast {
				t.Fatalf("only %d steps", step-1)
			}
			if !s.accepted {
				t.Fatal("the scenario does not end")
			}
			return
		}
		t.Run(fmt.Sprintf("%d %s", step, s.killed), func(t *testing.T) { judge(t, path, s) })
	}
}

// Wherever a join is stopped, the next start ends with a working identity, by the same request once it was sent.
func TestAJoinIsStoppedAfterEveryStep(t *testing.T) {
	t.Parallel()
	for scenario, tc := range map[string]struct {
		run     runner
		atLeast int
	}{"join": {inProcess, 28}, "deferral": {inPlace, 33}, "restart": {inPlace, 38}} {
		t.Run(scenario, func(t *testing.T) {
			t.Parallel()
			everyStop(t, tc.run, scenario, "", tc.atLeast, func(t *testing.T, path string, s story) {
				if scenario == "join" { // the others leave nothing else behind
					stopRecovery(t, path)
				}
				endJoin(t, path, s)
			})
		})
	}
}

// endJoin starts again after a stop.
func endJoin(t *testing.T, path string, s story) {
	t.Helper()
	untouched(t, path)
	store := openStore(t, path)
	if err := store.Recover(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := store.Load(); fault.Is(err, fault.NoIdentity) {
		if s.accepted {
			t.Fatal("an accepted identity is lost")
		}
		j, err := store.BeginJoin(t.Context(), tokenJoin)
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		if s.sent != nil && !(j.Resumed() && bytes.Equal(j.CSR(), s.sent)) {
			t.Fatal("the request that was sent is lost, and with it a use of the token")
		}
		if s.deferred && j.RequestID() != "jreq_01" {
			t.Error("the join request is forgotten")
		}
		if err := j.Accept(admit(j.CSR(), nil)); err != nil {
			t.Fatal(err)
		}
	}
	id := wantWorking(t, store.Store)
	if s.sent != nil && !bytes.Equal(id.Leaf().RawSubjectPublicKeyInfo, publicKey(s.sent)) {
		t.Error("the identity is not of the request that was sent")
	}
	wantFiles(t, path, "identity.json", "node.key", "lock")
}

// Req: RN-044
func TestARenewalIsStoppedAfterEveryStep(t *testing.T) {
	t.Parallel()
	base, before := joined(t)
	everyStop(t, inProcess, "renewal", base, 13, func(t *testing.T, path string, s story) {
		stopRecovery(t, path)
		untouched(t, path)
		store := openStore(t, path)
		first := wantWorking(t, store.Store) // before anything recovers
		if err := store.Recover(); err != nil {
			t.Fatal(err)
		}
		id := wantWorking(t, store.Store)
		if !cmp.Equal(first, id) {
			t.Error("recovery changed the identity")
		}
		isOld := cmp.Equal(id, before)
		isNew := s.sent != nil && bytes.Equal(id.Leaf().RawSubjectPublicKeyInfo, publicKey(s.sent))
		if isOld == isNew || s.accepted && !isNew {
			t.Errorf("old %v, new %v, accepted %v", isOld, isNew, s.accepted)
		}
		wantFiles(t, path, "identity.json", "node.key", "lock")
		r := must(store.BeginRenewal(t.Context()))
		defer r.Close()
		if err := r.Accept(admit(r.CSR(), id)); err != nil {
			t.Fatal(err)
		}
		wantWorking(t, store.Store)
	})
}

func publicKey(csr []byte) []byte {
	return must(x509.ParseCertificateRequest(csr)).RawSubjectPublicKeyInfo
}

// stopRecovery stops the recovery of what a killed process left after each of its own steps, and then lets it end: the
// result is the one of a recovery that nothing stopped.
func stopRecovery(t *testing.T, path string) {
	t.Helper()
	recovery := func(path string, stop int) (ended bool) {
		err := stopping(func(die func()) error {
			step := 0
			dir := must(statefile.Open(path, statefile.WithStep(func(string, string) {
				if step++; step == stop {
					die()
				}
			})))
			defer dir.Close()
			release, err := dir.Lock()
			if err != nil {
				return err
			}
			defer release()
			err = identity.New(dir, fileKeys{}).Recover()
			ended = err == nil
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	whole := copyDir(t, path)
	recovery(whole, 0)
	want := snapshot(t, whole)
	for stop := 1; ; stop++ {
		try := copyDir(t, path)
		if recovery(try, stop) {
			return
		}
		untouched(t, try)
		recovery(try, 0)
		if diff := cmp.Diff(want, snapshot(t, try)); diff != "" {
			t.Fatalf("recovery stopped after step %d ends differently:\n%s", stop, diff)
		}
	}
}

// untouched looks at the directory as doctor does, without the lock: the identity loads or there is none, and looking
// changes nothing.
func untouched(t *testing.T, path string) {
	t.Helper()
	before := snapshot(t, path)
	dir := must(statefile.Open(path))
	defer dir.Close()
	s := identity.New(dir, fileKeys{})
	if _, _, err := s.Load(); err != nil && !fault.Is(err, fault.NoIdentity) {
		t.Fatalf("without recovery: %v", err)
	}
	if _, _, err := s.PendingJoin(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
		t.Fatalf("looking changed:\n%s", diff)
	}
}

package identity_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/identity"
	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

// resetSuffix is what the files of a reset that was answered at now end in.
const resetSuffix = ".reset-20210304T050607Z"

// oldFiles are what a reset finds, beside the identity and its key: a renewal that was begun, and a journal with all that
// SQLite may keep beside it.
var oldFiles = map[string]string{
	"node.key.next": "a next key", "journal.db": "rows", "journal.db-wal": "more rows", "journal.db-shm": "an index", "journal.db-journal": "a rollback",
}

// toReset returns a directory with an identity and all that a reset moves.
func toReset(t *testing.T) (path string, old map[string]string) {
	t.Helper()
	path, _ = joined(t)
	for name, content := range oldFiles {
		write(t, path, name, content)
	}
	old = snapshot(t, path)
	delete(old, "lock")
	return path, old
}

func write(t *testing.T, path, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(path, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// movedTo is where a file of the old identity must be.
func movedTo(name, suffix string) string {
	if rest, found := strings.CutPrefix(name, "journal.db"); found {
		return "journal.db" + suffix + rest
	}
	return name + suffix
}

// wantMoved checks that the old files are under their new names, byte for byte, and that nothing else is there but more.
func wantMoved(t *testing.T, path string, old map[string]string, suffix string, more ...string) {
	t.Helper()
	files := snapshot(t, path)
	want := append([]string{"lock"}, more...)
	for name, content := range old {
		to := movedTo(name, suffix)
		want = append(want, to)
		if files[to] != content {
			t.Errorf("%s does not have the content of %s", to, name)
		}
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
}

// reclaim returns the identity that a reclaim makes.
func reclaim(csr []byte) *identity.Identity {
	a := honest(csr)
	a.admission.Generation = 2
	return must(a.check())
}

// Req: RS-003 RS-007 RS-008
func TestReset(t *testing.T) {
	path, old := toReset(t)
	s := openStore(t, path)
	moves, stays, err := s.ResetPlan()
	if want := []string{"journal.db", "journal.db-wal", "journal.db-shm", "journal.db-journal", "node.key.next", "node.key", "identity.json"}; err != nil || !slices.Equal(moves, want) || len(stays) != 0 {
		t.Errorf("the plan moves %q and keeps %q, %v", moves, stays, err)
	}
	j := must(s.BeginReset(t.Context(), tokenJoin))
	defer j.Close()
	if err := j.Reserve(); err != nil {
		t.Fatal(err)
	}
	for name, content := range old {
		if snapshot(t, path)[name] != content {
			t.Errorf("%s changed before the answer", name)
		}
	}
	if err := j.Accept(reclaim(j.CSR())); err != nil {
		t.Fatal(err)
	}
	wantMoved(t, path, old, resetSuffix, "identity.json", "node.key")
	if id := wantWorking(t, s.Store); id.Generation != 2 {
		t.Errorf("generation %d", id.Generation)
	}
	if got := len(j.Moved()); got != len(old) {
		t.Errorf("it says that it moved %d files, and there were %d", got, len(old))
	}
	if err := j.Accept(reclaim(j.CSR())); err == nil {
		t.Error("an answer is accepted twice")
	}
}

// Two resets of one second do not meet, and neither do they meet a file that somebody else called so.
func TestResetSuffixIsFree(t *testing.T) {
	path, old := toReset(t)
	write(t, path, "journal.db"+resetSuffix+"-shm", "somebody's")
	s := openStore(t, path)
	first := must(s.BeginReset(t.Context(), tokenJoin))
	if err := first.Accept(reclaim(first.CSR())); err != nil {
		t.Fatal(err)
	}
	if got := snapshot(t, path)["journal.db"+resetSuffix+"-shm"]; got != "somebody's" {
		t.Errorf("a file that was there is %q", got)
	}
	if err := os.Remove(filepath.Join(path, "journal.db"+resetSuffix+"-shm")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(path, "node.key"+resetSuffix), 0o700); err != nil {
		t.Fatal(err)
	}
	second := must(s.BeginReset(t.Context(), tokenJoin))
	if err := second.Accept(reclaim(second.CSR())); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(path, "node.key"+resetSuffix)); err != nil {
		t.Fatal(err)
	}
	wantMoved(t, path, old, resetSuffix+"-1", "identity.json", "node.key", "identity.json"+resetSuffix+"-2", "node.key"+resetSuffix+"-2")
	wantWorking(t, s.Store)
}

// The request of a reset waits beside the identity, which is loaded, recovered and renewed meanwhile.
func TestResetWaitsBesideTheIdentity(t *testing.T) {
	path, _ := toReset(t)
	s := openStore(t, path)
	j := must(s.BeginReset(t.Context(), tokenJoin))
	if err := j.Defer("jreq_01"); err != nil {
		t.Fatal(err)
	}
	j.Close()

	daemon := identity.New(s.dir, fileKeys{})
	r := must(daemon.BeginRenewal(t.Context()))
	current, _ := r.Current()
	if err := r.Accept(admit(r.CSR(), current)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := daemon.Recover(); err != nil {
		t.Fatal(err)
	}
	renewed := wantWorking(t, daemon)
	if cmp.Equal(renewed, current) {
		t.Fatal("not renewed")
	}
	if p, ok, err := daemon.PendingJoin(); err != nil || !ok || !p.Reset || p.Answered || p.RequestID != "jreq_01" {
		t.Errorf("the reset that waits: %+v, %v, %v", p, ok, err)
	}
	if _, err := daemon.BeginJoin(t.Context(), tokenJoin); !fault.Is(err, fault.AlreadyExists) {
		t.Errorf("a join without reset: %v", err)
	}

	if err := j.Hold(); err != nil {
		t.Fatal(err)
	}
	if err := j.Reserve(); err != nil {
		t.Fatal(err)
	}
	old := snapshot(t, path)
	if err := j.Accept(reclaim(j.CSR())); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"identity.json", "node.key", "journal.db-wal"} {
		if snapshot(t, path)[movedTo(name, resetSuffix)] != old[name] {
			t.Errorf("%s was not moved as the renewal left it", name)
		}
	}
	wantWorking(t, s.Store)
}

// A join whose place another one took gives up; the other one is not hurt.
func TestResetThatLostItsPlace(t *testing.T) {
	path, _ := toReset(t)
	s := openStore(t, path)
	j := must(s.BeginReset(t.Context(), tokenJoin))
	j.Close()
	other := must(s.BeginReset(t.Context(), identity.JoinParams{Attestor: "tpm", Role: "node"}))
	before := snapshot(t, path)
	if err := j.Hold(); !fault.Is(err, fault.Busy) {
		t.Errorf("%v", err)
	}
	if err := j.Accept(reclaim(j.CSR())); !fault.Is(err, fault.Busy) {
		t.Errorf("its answer: %v", err)
	}
	if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
		t.Errorf("the files changed:\n%s", diff)
	}
	if err := other.Accept(reclaim(other.CSR())); err != nil {
		t.Fatal(err)
	}
	wantWorking(t, s.Store)
}

// What does not load is moved too, whatever it is, and only by a reset.
func TestResetOfAnIdentityThatDoesNotLoad(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"damaged":  func(t *testing.T, path string) { write(t, path, "identity.json", "{") },
		"newer":    func(t *testing.T, path string) { write(t, path, "identity.json", `{"version":99}`) },
		"lost key": func(t *testing.T, path string) { write(t, path, "node.key", "not a key") },
		"symbolic link": func(t *testing.T, path string) {
			swap(t, path, func(to string) error { return os.Symlink("elsewhere", to) })
		},
		"a directory": func(t *testing.T, path string) { swap(t, path, func(to string) error { return os.Mkdir(to, 0o700) }) },
		"no identity": func(t *testing.T, path string) {
			if err := os.Remove(filepath.Join(path, "identity.json")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, _ := toReset(t)
			damage(t, path)
			s := openStore(t, path)
			j := must(s.BeginReset(t.Context(), tokenJoin))
			again := must(s.BeginReset(t.Context(), tokenJoin))
			if !again.Resumed() || !bytes.Equal(again.CSR(), j.CSR()) {
				t.Error("the request is lost")
			}
			if err := again.Accept(reclaim(again.CSR())); err != nil {
				t.Fatal(err)
			}
			wantWorking(t, s.Store)
			for _, file := range []string{"identity.json", "node.key", "journal.db"} {
				if _, err := os.Lstat(filepath.Join(path, movedTo(file, resetSuffix))); (err == nil) == (name == "no identity" && file == "identity.json") {
					t.Errorf("%s: %v", file, err)
				}
			}
		})
	}
}

func swap(t *testing.T, path string, put func(to string) error) {
	t.Helper()
	name := filepath.Join(path, "identity.json")
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	if err := put(name); err != nil {
		t.Fatal(err)
	}
}

// A join that was begun before, whose answer may be lost, is resumed by the reset with the same request.
func TestResetResumesAJoin(t *testing.T) {
	path := stateDir(t)
	s := openStore(t, path)
	j := must(s.BeginJoin(t.Context(), tokenJoin))
	write(t, path, "node.key", "left behind")
	r := must(s.BeginReset(t.Context(), tokenJoin))
	if !r.Resumed() || !bytes.Equal(r.CSR(), j.CSR()) {
		t.Error("the request is lost")
	}
	// And a join goes on with what a reset began.
	last := must(s.BeginJoin(t.Context(), tokenJoin))
	if err := last.Accept(admit(last.CSR(), nil)); err != nil {
		t.Fatal(err)
	}
	wantMoved(t, path, map[string]string{"node.key": "left behind"}, resetSuffix, "identity.json", "node.key")
}

// Req: RS-007 RS-008
func TestMoveIdentity(t *testing.T) {
	path, old := toReset(t)
	s := openStore(t, path)
	waiting := must(s.BeginReset(t.Context(), tokenJoin))
	waiting.Close()
	moves, err := s.MoveIdentity(now)
	if err != nil || len(moves) != len(old) {
		t.Fatalf("%v, %v", moves, err)
	}
	wantMoved(t, path, old, resetSuffix, "join-pending.json", "join.key")
	if _, _, err := s.Load(); !fault.Is(err, fault.NoIdentity) {
		t.Errorf("it still loads: %v", err)
	}
	if j := must(s.BeginJoin(t.Context(), tokenJoin)); !bytes.Equal(j.CSR(), waiting.CSR()) {
		t.Error("the join that waited is lost")
	}
	if moves, err := s.MoveIdentity(now); err != nil || len(moves) != 0 {
		t.Errorf("nothing is left to move: %v, %v", moves, err)
	}
}

// A newer program's record is refused, also beside an identity that loads: what it says is to be done first.
func TestNewerPendingBesideAnIdentity(t *testing.T) {
	path, _ := toReset(t)
	write(t, path, "join-pending.json", `{"version":3}`)
	before := snapshot(t, path)
	s := openStore(t, path)
	if err := s.Recover(); !fault.Is(err, fault.Newer) && !strings.Contains(fmt.Sprint(err), "newer") {
		t.Errorf("recover: %v", err)
	}
	if _, err := s.BeginReset(t.Context(), tokenJoin); err == nil {
		t.Error("a reset begins")
	}
	if _, err := s.MoveIdentity(now); err == nil {
		t.Error("the identity is moved")
	}
	before["lock"] = snapshot(t, path)["lock"]
	if diff := cmp.Diff(before, snapshot(t, path)); diff != "" {
		t.Errorf("the files changed:\n%s", diff)
	}
}

// A suffix is a part of a path: one that is no reset's moves nothing.
func TestForeignSuffix(t *testing.T) {
	for _, suffix := range []string{"/../x", ".reset-", ".old", ".reset-20210304T050607Z/..", ".reset-20210304T050607Z-0001"} {
		path, _ := toReset(t)
		write(t, path, "join-pending.json", fmt.Sprintf(`{"version":2,"reset":true,"resetSuffix":%q}`, suffix))
		s := openStore(t, path)
		if err := s.Recover(); err != nil {
			t.Fatal(err)
		}
		wantWorking(t, s.Store)
		wantFiles(t, path, "identity.json", "journal.db", "journal.db-journal", "journal.db-shm", "journal.db-wal", "lock", "node.key")
	}
}

func init() {
	scenarios["reset"] = func(out io.Writer, s *identity.Store) error {
		j, err := s.BeginReset(ctx, tokenJoin)
		if err != nil {
			return err
		}
		if err := j.Reserve(); err != nil {
			return err
		}
		fmt.Fprintf(out, "sent %x\n", j.CSR())
		if err := j.Accept(reclaim(j.CSR())); err != nil {
			return err
		}
		fmt.Fprintln(out, "accepted")
		return nil
	}
	scenarios["move"] = func(out io.Writer, s *identity.Store) error {
		_, err := s.MoveIdentity(now)
		if err == nil {
			fmt.Fprintln(out, "accepted")
		}
		return err
	}
}

// Wherever a reset is stopped, the machine has the old identity, whole, or the next start gives it the new one, and the old
// files are under one suffix with every byte.
// Req: RS-003 RS-007 RS-008
func TestAResetIsStoppedAfterEveryStep(t *testing.T) {
	t.Parallel()
	for name, damaged := range map[string]bool{"of an identity": false, "of one that does not load": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			base, old := toReset(t)
			run := inProcess
			if damaged {
				write(t, base, "identity.json", "{")
				old["identity.json"] = "{"
				run = inPlace
			}
			everyStop(t, run, "reset", base, 36, func(t *testing.T, path string, s story) {
				if !damaged {
					stopRecovery(t, path)
					untouched(t, path)
				}
				endReset(t, path, old, s)
			})
		})
	}
}

func endReset(t *testing.T, path string, old map[string]string, s story) {
	t.Helper()
	store := openStore(t, path)
	var recovered bool
	if p, ok, err := store.PendingJoin(); err == nil && ok && p.Answered {
		recovered = store.Recover() == nil // as every start does; a reset alone keeps a renewal's key
	}
	id, _, err := store.Load()
	if err != nil || id.Generation == 1 {
		if s.accepted {
			t.Fatal("an accepted identity is lost")
		}
		files := snapshot(t, path)
		for name, content := range old {
			if files[name] != content {
				t.Errorf("%s is not what it was, and there is no new identity", name)
			}
		}
		j := must(store.BeginReset(t.Context(), tokenJoin))
		defer j.Close()
		if s.sent != nil && !(j.Resumed() && bytes.Equal(j.CSR(), s.sent)) {
			t.Fatal("the request that was sent is lost, and with it a use of the token")
		}
		if err := j.Accept(reclaim(j.CSR())); err != nil {
			t.Fatal(err)
		}
	} else if !recovered && store.Recover() != nil {
		t.Error("there is a new identity, and recovery failed")
	}
	if id := wantWorking(t, store.Store); id.Generation != 2 {
		t.Errorf("generation %d", id.Generation)
	}
	wantMoved(t, path, old, resetSuffix, "identity.json", "node.key")
}

func TestAMoveIsStoppedAfterEveryStep(t *testing.T) {
	t.Parallel()
	base, old := toReset(t)
	everyStop(t, inPlace, "move", base, 15, func(t *testing.T, path string, _ story) {
		stopRecovery(t, path)
		store := openStore(t, path)
		must(store.MoveIdentity(now))
		wantMoved(t, path, old, resetSuffix)
	})
}

// A reset on a disk that fills up after the room was taken ends well; one that finds no room begins nothing.
func TestResetOnAFullDisk(t *testing.T) {
	path := mountSmall(t)
	dir := must(statefile.Open(path))
	defer dir.Close()
	release := must(dir.Lock())
	defer release()
	s := identity.New(dir, fileKeys{})
	first := must(s.BeginJoin(t.Context(), tokenJoin))
	if err := first.Accept(admit(first.CSR(), nil)); err != nil {
		t.Fatal(err)
	}
	write(t, path, "journal.db", "rows")
	old := snapshot(t, path)
	delete(old, "lock")

	free := fillDisk(t, path)
	if _, err := s.MoveIdentity(now); !fault.Is(err, fault.NoSpace) {
		t.Errorf("move: %v", err)
	}
	if _, err := s.BeginReset(t.Context(), tokenJoin); !fault.Is(err, fault.NoSpace) {
		t.Errorf("begin: %v", err)
	}
	for name, content := range old {
		if snapshot(t, path)[name] != content {
			t.Errorf("%s changed", name)
		}
	}
	free()
	j := must(s.BeginReset(t.Context(), tokenJoin))
	defer j.Close()
	if err := j.Reserve(); err != nil {
		t.Fatal(err)
	}
	free = fillDisk(t, path)
	if err := j.Accept(reclaim(j.CSR())); err != nil {
		t.Fatal(err)
	}
	free()
	wantMoved(t, path, old, resetSuffix, "identity.json", "node.key")
	wantWorking(t, s)
}

func TestResetPlanOfNothing(t *testing.T) {
	s := openStore(t, stateDir(t))
	moves, stays, err := s.ResetPlan()
	if len(moves)+len(stays) != 0 || err != nil {
		t.Errorf("%q, %q, %v", moves, stays, err)
	}
	if got, err := s.MoveIdentity(time.Time{}); got != nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

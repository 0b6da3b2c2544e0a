package statefile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/statefile"
)

func TestOneLockHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state") // the lock makes the directory
	release, err := open(t, path).Lock()
	if err != nil {
		t.Fatal(err)
	}
	other := open(t, path)
	_, err = other.Lock()
	if fault.CodeOf(err) != fault.Busy || fault.CodeOf(err).Exit() != fault.ExitTemporary {
		t.Fatalf("second lock: %v", err)
	}
	if want := fmt.Sprintf("process %d", os.Getpid()); !strings.Contains(err.Error(), want) || fault.HintOf(err) == "" {
		t.Errorf("%v (hint %q) does not name %s", err, fault.HintOf(err), want)
	}
	if err := other.Replace("a", nil); err != nil { // the lock is advisory
		t.Error(err)
	}
	release()
	release()
	again, err := other.Lock()
	if err != nil {
		t.Fatalf("after release: %v", err)
	}
	defer again()
	if got := mode(t, filepath.Join(path, statefile.LockName)); got != 0o600 {
		t.Errorf("lock has mode %v", got)
	}
}

func TestOnlyTheLockHolderSweeps(t *testing.T) {
	path := private(t)
	stopped := open(t, path)
	if _, err := stopped.Reserve("identity.json", 10); err != nil { // as a killed process leaves it
		t.Fatal(err)
	}
	keep := []string{".hidden", "journal.db", "name.tmp-x"}
	for _, name := range keep {
		if err := os.WriteFile(filepath.Join(path, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, path)
	if err := d.Replace("a", nil); err != nil {
		t.Fatal(err)
	}
	if got := len(list(t, path)); got != 5 {
		t.Fatalf("%d files before the lock, want 5", got)
	}
	release, err := d.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	got := strings.Join(list(t, path), " ")
	if want := ".hidden a journal.db lock name.tmp-x"; got != want {
		t.Errorf("files %q, want %q", got, want)
	}
}

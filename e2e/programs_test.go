package e2e_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// programs is the folder of the built programs. TestMain makes and removes it.
var programs string

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); runtime.GOMAXPROCS(0) < 4 {
		_ = f.Value.Set("4") // the tests wait for certificates to age, not for a processor
	}
	dir, err := os.MkdirTemp("", "bcd-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	programs = dir
	status := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// builds are the programs that were asked for, by package and tags.
var builds sync.Map

// build builds a program as the Makefile does, once, and returns its path. tags come beside the usual ones.
func build(t *testing.T, pkg string, tags ...string) string {
	t.Helper()
	name := filepath.Base(pkg)
	all := "grpcnotrace"
	for _, tag := range tags {
		name += "+" + tag
		all += "," + tag
	}
	once, _ := builds.LoadOrStore(name, sync.OnceValues(func() (string, error) {
		path := filepath.Join(programs, name, filepath.Base(pkg))
		cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.release=1.2.3", "-tags", all, "-o", path, pkg)
		cmd.Dir = ".."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot build %s: %w\n%s", name, err, out)
		}
		return path, nil
	}))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

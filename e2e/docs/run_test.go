package docs_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// programs is the folder of the built programs. TestMain fills it.
var programs string

func TestMain(m *testing.M) {
	status, err := withPrograms(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	os.Exit(status)
}

// wrapper stands for better-compute on a page. It gives a server free ports where the page leaves it the usual ones, so
// that pages run beside each other and beside a server of the machine's.
const wrapper = `#!/bin/sh
program='%s'
[ "$1" = serve ] || exec "$program" "$@"
case " $* " in *" --listen"*) ;; *) set -- "$@" --listen 127.0.0.1:0 ;; esac
case " $* " in *" --gateway-listen"*) ;; *) set -- "$@" --gateway-listen 127.0.0.1:0 ;; esac
exec "$program" "$@"
`

// withPrograms builds the programs as "make build" does and runs the tests.
func withPrograms(run func() int) (status int, err error) {
	dir, err := os.MkdirTemp("", "bcd-docs-")
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := os.RemoveAll(dir); err == nil {
			err = e
		}
	}()
	programs = filepath.Join(dir, "bin")
	real := filepath.Join(dir, "real")
	for _, b := range []struct{ pkg, out string }{{"./cmd/bcd", filepath.Join(programs, "bcd")}, {"./cmd/better-compute", filepath.Join(real, "better-compute")}} {
		cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-o", b.out, b.pkg)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("cannot build %s: %w\n%s", b.pkg, err, out)
		}
	}
	script := fmt.Sprintf(wrapper, filepath.Join(real, "better-compute"))
	if err := os.WriteFile(filepath.Join(programs, "better-compute"), []byte(script), 0o755); err != nil {
		return 0, err
	}
	return run(), nil
}

// Every command of the documentation works as it stands there.
func TestCommandsOfTheDocumentation(t *testing.T) {
	for _, p := range pages(t) {
		if !slices.ContainsFunc(p.parts, part.runs) {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			runPage(t, p)
		})
	}
}

// Blocks that are not run are few: what a page shows is worth what its test is.
func TestMostBlocksAreRun(t *testing.T) {
	run, text := 0, 0
	for _, p := range pages(t) {
		for _, b := range p.parts {
			switch {
			case b.runs():
				run++
			case b.kind == "text":
				text++
			}
		}
	}
	if run < 30 || text > run/2 {
		t.Errorf("%d blocks are run and %d are not", run, text)
	}
}

func runPage(t *testing.T, p page) {
	// Short, because a socket's path is at most 107 bytes.
	folder, err := os.MkdirTemp("", "bcd-page-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	testdata, err := filepath.Abs(filepath.Join(root, "testdata"))
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"bin": programs, "testdata": testdata} {
		if err := os.Symlink(target, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	terminals := map[string]*terminal{}
	var opened []*terminal
	at := func(name string) *terminal {
		if terminals[name] == nil {
			terminals[name] = openTerminal(t, folder)
			opened = append(opened, terminals[name])
		}
		return terminals[name]
	}
	for _, b := range p.parts {
		switch {
		case b.order != nil && b.order[0] == "needs":
			needs(t, b.order[1])
		case b.order != nil:
			at(b.order[1]).interrupt()
		case b.runs():
			runBlock(t, p, b, at(b.attrs["terminal"]), folder)
		}
		if t.Failed() {
			return // what follows builds on it
		}
	}
	// What was started last needs what was started first.
	for _, term := range slices.Backward(opened) {
		if term.foreground != "" {
			term.interrupt()
		}
	}
}

// needs skips the page where the program is not installed. In continuous integration that is a failure.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if program == "swtpm" && os.Getenv("BCD_REQUIRE_TPM") == "1" {
		t.Fatalf("%s is not installed, and BCD_REQUIRE_TPM is 1", program)
	}
	t.Skipf("%s is not installed (apt-get install %s)", program, program)
}

func runBlock(t *testing.T, p page, b part, term *terminal, folder string) {
	t.Helper()
	commands := b.commands()
	if len(commands) == 0 {
		t.Fatalf("%s:%d: a block without a command", p.name, b.line)
	}
	until, file := b.attrs["until"], b.attrs["file"]
	for i, c := range commands {
		if (until != "" || file != "") && i == len(commands)-1 {
			term.start(c.text, func(log string) bool {
				if file != "" {
					_, err := os.Stat(filepath.Join(folder, file))
					return err == nil
				}
				return strings.Contains(log, until)
			})
			return
		}
		got, status := term.run(c.text)
		if status != 0 {
			t.Fatalf("%s:%d: %s\nended with status %d:\n%s", p.name, c.line, c.text, status, got)
		}
		if c.output != nil && !matches(c.output, got) {
			t.Fatalf("%s:%d: %s\nprinted\n%s\nwhere the page says\n%s", p.name, c.line, c.text, got, strings.Join(c.output, "\n"))
		}
	}
}

var (
	gap       = regexp.MustCompile(` {2,}`)
	usualPort = regexp.MustCompile(`:(8080|8443)\b`)
)

// matches compares what a command printed with what a page says. How many spaces align a column depends on values that
// are different each time, and the usual ports are free ones here.
func matches(want []string, got string) bool {
	even := func(s string) string { return strings.TrimRight(gap.ReplaceAllString(s, "  "), " ") }
	var expression strings.Builder
	for _, line := range want {
		line = even(line)
		if line == "…" {
			expression.WriteString(`(?:[^\n]*\n)*?`)
			continue
		}
		quoted := strings.ReplaceAll(regexp.QuoteMeta(line), "…", `[^\n]*`)
		expression.WriteString(usualPort.ReplaceAllString(quoted, `:[0-9]+`) + `\n`)
	}
	var lines strings.Builder
	for _, line := range strings.Split(strings.TrimRight(got, "\n"), "\n") {
		if line != "" || got != "" {
			lines.WriteString(even(line) + "\n")
		}
	}
	return regexp.MustCompile(`^` + expression.String() + `$`).MatchString(lines.String())
}

// The comparison itself can fail.
func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, got string
		ok        bool
	}{
		{"", "", true},
		{"a", "a\n", true},
		{"a", "b\n", false},
		{"a", "a\nb\n", false},
		{"a\n…", "a\nb\nc\n", true},
		{"…\nc", "a\nb\nc\n", true},
		{"…\nc", "c\n", true},
		{"…\nc", "a\n", false},
		{"node_…  adopted", "node_01ab        adopted\n", true},
		{"node_…  adopted", "node_01ab\nadopted\n", false},
		{"at 127.0.0.1:8443", "at 127.0.0.1:40123\n", true},
		{"a.b", "aXb\n", false},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		if got := matches(want, c.got); got != c.ok {
			t.Errorf("matches(%q, %q) is %t", c.want, c.got, got)
		}
	}
}

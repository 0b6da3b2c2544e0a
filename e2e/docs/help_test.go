package docs_test

import (
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// notBuilt are commands that pages name to say that they are not there yet. Once one is there, it leaves this list and the
// pages change.
var notBuilt = []string{"bcd doctor"}

// verb is a command of a program, as its --help tells.
type verb struct {
	commands map[string]*verb
	flags    map[string]bool
}

var (
	helpCommand = regexp.MustCompile(`^  ([a-z][a-z-]*) +\S`)
	helpFlag    = regexp.MustCompile(`^ {2,}(?:(-[a-z]), )?(?: +)?(--[a-z][a-z0-9-]*)\b`)
)

// tree asks both programs for all of their commands.
var tree = sync.OnceValues(func() (*verb, error) {
	all := &verb{commands: map[string]*verb{}}
	for _, name := range []string{"bcd", "better-compute"} {
		v, err := ask(filepath.Join(programs, name))
		if err != nil {
			return nil, err
		}
		all.commands[name] = v
	}
	return all, nil
})

func ask(program string, path ...string) (*verb, error) {
	out, err := exec.Command(program, append(slices.Clone(path), "--help")...).Output()
	if err != nil {
		return nil, err
	}
	v := &verb{commands: map[string]*verb{}, flags: map[string]bool{}}
	section := ""
	for _, line := range strings.Split(string(out), "\n") {
		if line != "" && line[0] != ' ' {
			section = line
		}
		if m := helpCommand.FindStringSubmatch(line); m != nil && section == "Available Commands:" && m[1] != "help" {
			if v.commands[m[1]], err = ask(program, append(slices.Clone(path), m[1])...); err != nil {
				return nil, err
			}
		}
		if m := helpFlag.FindStringSubmatch(line); m != nil && (section == "Flags:" || section == "Global Flags:") {
			for _, f := range m[1:] {
				v.flags[f] = true
			}
		}
	}
	return v, nil
}

func commandTree(t *testing.T) *verb {
	t.Helper()
	v, err := tree()
	if err != nil {
		t.Fatal(err)
	}
	if len(v.commands["bcd"].commands) < 5 || len(v.commands["better-compute"].commands["join-tokens"].commands) != 3 ||
		!v.commands["bcd"].commands["join"].flags["--token-file"] {
		t.Fatal("the help was not understood")
	}
	return v
}

// mention is a command line of a page, in words, the program first.
type mention struct {
	where string
	words []string
}

// separators end a simple command.
var separators = regexp.MustCompile(`[|<>;&#()]`)

// mentions returns the command lines of a page: of its blocks, run or not, and in backquotes in its prose.
func (p page) mentions() []mention {
	lines := p.spans()
	for _, b := range p.parts {
		switch {
		case b.runs():
			for _, c := range b.commands() {
				lines = append(lines, c.text)
			}
		case b.kind == "text":
			lines = append(lines, b.body...)
		}
	}
	var all []mention
	for _, line := range lines {
		for _, simple := range separators.Split(strings.ReplaceAll(line, "\\\n", " "), -1) {
			words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(simple), "$ "))
			for len(words) > 0 && (words[0] == "sudo" || strings.Contains(words[0], "=")) {
				words = words[1:]
			}
			if len(words) == 0 {
				continue
			}
			words[0] = strings.TrimPrefix(words[0], "bin/")
			if words[0] == "bcd" || words[0] == "better-compute" {
				all = append(all, mention{p.name, words})
			}
		}
	}
	return all
}

var commandWord = regexp.MustCompile(`^[a-z][a-z-]+$`)

// Every command and flag that a page names is there.
func TestCommandsAndFlagsOfThePagesExist(t *testing.T) {
	found := 0
	for _, p := range pages(t) {
		for _, m := range p.mentions() {
			found++
			for _, wrong := range commandTree(t).unknown(m.words) {
				if !slices.Contains(notBuilt, wrong) {
					t.Errorf("%s names %q, which is not there: %s", m.where, wrong, strings.Join(m.words, " "))
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d command lines found", found)
	}
}

// unknown returns what of a command line is not there: a command, or a command with a flag.
func (v *verb) unknown(words []string) (wrong []string) {
	path := ""
	for i, w := range words {
		w = strings.Trim(w, "`'\",.")
		flag, _, _ := strings.Cut(w, "=")
		switch next := v.commands[w]; {
		case next != nil:
			v, path = next, strings.TrimSpace(path+" "+w)
		case strings.HasPrefix(w, "-") && len(w) > 1:
			if !v.flags[flag] && flag != "--help" {
				wrong = append(wrong, path+" "+flag)
			}
		case len(v.commands) > 0 && i > 0 && commandWord.MatchString(w) && !strings.HasPrefix(words[i-1], "-"):
			return append(wrong, path+" "+w)
		}
	}
	return wrong
}

func TestUnknownIsFound(t *testing.T) {
	for line, want := range map[string]string{
		"bcd join --token-file x":                       "",
		"bcd join --tokenfile x":                        "bcd join --tokenfile",
		"bcd jion":                                      "bcd jion",
		"better-compute nodes ls":                       "better-compute nodes ls",
		"better-compute nodes revoke-identity ID --no":  "better-compute nodes revoke-identity --no",
		"better-compute join-tokens create --ttl=1h -o": "",
		"bcd": "",
	} {
		if got := strings.Join(commandTree(t).unknown(strings.Fields(line)), ", "); got != want {
			t.Errorf("%q: found %q, want %q", line, got, want)
		}
	}
}

// What is said to be missing is missing.
func TestWhatIsNotBuiltIsNotThere(t *testing.T) {
	for _, line := range notBuilt {
		if len(commandTree(t).unknown(strings.Fields(line))) == 0 {
			t.Errorf("%q is there: take it from the list, and change the pages that say it is not", line)
		}
	}
}

// Every command and every flag of the programs is on a page.
func TestEveryCommandAndFlagIsDocumented(t *testing.T) {
	said := map[string]bool{}
	for _, p := range pages(t) {
		for _, m := range p.mentions() {
			path := m.words[0]
			for _, w := range m.words[1:] {
				if !commandWord.MatchString(w) {
					break
				}
				path += " " + w
				said[path] = true
			}
		}
		for _, f := range regexp.MustCompile(`(?:^|[\s`+"`"+`"(])(--?[a-z][a-z0-9-]*)`).FindAllStringSubmatch(p.text, -1) {
			said[f[1]] = true
		}
	}
	missing := map[string]bool{}
	var walk func(path string, v *verb)
	walk = func(path string, v *verb) {
		if len(v.commands) == 0 && !said[path] && !strings.HasPrefix(path, "bcd completion ") && !strings.HasPrefix(path, "better-compute completion ") {
			missing[path] = true
		}
		for f := range v.flags {
			if f != "" && f != "-h" && f != "--help" && f != "--no-descriptions" && !said[f] {
				missing[path+" "+f] = true
			}
		}
		for name, next := range v.commands {
			walk(path+" "+name, next)
		}
	}
	for name, v := range commandTree(t).commands {
		walk(name, v)
	}
	for _, m := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("no page names %s", m)
	}
}

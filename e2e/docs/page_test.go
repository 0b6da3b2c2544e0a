// Package docs_test holds the documentation to the programs: every command of a page is run as it stands there, and what
// pages say about commands, flags, keys, codes and tests is compared with what there is.
//
// # How a page is run
//
// A page runs from top to bottom in one temporary folder that holds, like a clone after "make build", the folders bin
// and testdata. Its fenced blocks are
//
//   - sh: commands, pasted as they are. Each must end with status 0.
//   - console: commands after "$ " and what they print. Output is compared; "…" stands for the rest of a line, and a line
//     of "…" for any number of lines.
//   - anything else, text for instance: not run.
//
// The word after sh may be followed by attributes, which no renderer shows:
//
//   - terminal=NAME: the block is for a terminal of its own; without it, for the page's first one. Nothing is shared
//     between terminals but the folder.
//   - user=root: the block is for root, and is left out where the test's user is another.
//   - until=TEXT or file=PATH: the last command stays in the foreground. The page goes on when it has printed the text,
//     or made the file.
//
// Two comments are orders to the test: <!-- ctrl-c NAME --> ends what is in the foreground of a terminal, and
// <!-- needs PROGRAM --> skips the page where the program is not installed.
package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

// page is a Markdown file.
type page struct {
	name  string // relative to the repository
	text  string
	parts []part
}

// part is a fenced block, or an order to the test.
type part struct {
	line  int // of its first line in the page
	kind  string
	attrs map[string]string
	body  []string
	order []string // of a comment; the rest is empty then
}

// pages returns the README and all of docs but the requirements: those speak of the whole product, built or not.
func pages(t *testing.T) []page {
	t.Helper()
	names := []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "testdata/vectors/README.md"}
	for _, pattern := range []string{"docs/*.md", "docs/decisions/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			rel, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			if rel = filepath.ToSlash(rel); rel != "docs/requirements.md" {
				names = append(names, rel)
			}
		}
	}
	if len(names) < 20 {
		t.Fatalf("only %d pages found", len(names))
	}
	var all []page
	for _, name := range names {
		all = append(all, parsePage(t, name, read(t, name)))
	}
	return all
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var order = regexp.MustCompile(`^<!-- (ctrl-c|needs) (\S+) -->$`)

func parsePage(t *testing.T, name, text string) page {
	t.Helper()
	p := page{name: name, text: text}
	var open *part
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open == nil:
			words := strings.Fields(info)
			open = &part{line: i + 1, attrs: map[string]string{}}
			for j, w := range words {
				key, value, found := strings.Cut(w, "=")
				switch {
				case j == 0:
					open.kind = w
				case !found || !slices.Contains([]string{"terminal", "until", "file", "user"}, key):
					t.Errorf("%s:%d: unknown attribute %q", name, i+1, w)
				default:
					open.attrs[key] = value
				}
			}
			if open.kind == "" {
				t.Errorf("%s:%d: a block without a kind; write text where it is none", name, i+1)
			}
		case isFence:
			p.parts = append(p.parts, *open)
			open = nil
		case open != nil:
			open.body = append(open.body, line)
		case strings.HasPrefix(line, "<!--"):
			m := order.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("%s:%d: unknown order %q", name, i+1, line)
				continue
			}
			p.parts = append(p.parts, part{line: i + 1, order: m[1:]})
		}
	}
	if open != nil {
		t.Errorf("%s:%d: a block that does not end", name, open.line)
	}
	return p
}

func (p part) runs() bool {
	return (p.kind == "sh" || p.kind == "console") && (p.attrs["user"] != "root" || os.Geteuid() == 0)
}

// command is one command of a block, and what the page says that it prints.
type command struct {
	line   int
	text   string
	output []string // nil where the page does not say
}

// commands splits a block. A line that ends with a backslash goes on in the next.
func (p part) commands() []command {
	var all []command
	continued := false
	for i, line := range p.body {
		text, isCommand := line, true
		if p.kind == "console" && !continued {
			if text, isCommand = strings.CutPrefix(line, "$ "); !isCommand && len(all) > 0 {
				last := &all[len(all)-1]
				last.output = append(last.output, line)
			}
		}
		if !isCommand || !continued && (strings.TrimSpace(text) == "" || strings.HasPrefix(text, "#")) {
			continue
		}
		if continued {
			all[len(all)-1].text += "\n" + text
		} else {
			all = append(all, command{line: p.line + 1 + i, text: text})
			if p.kind == "console" {
				all[len(all)-1].output = []string{}
			}
		}
		continued = strings.HasSuffix(text, "\\")
	}
	return all
}

var codeSpan = regexp.MustCompile("`([^`\n]+)`")

// prose is the page without its fenced blocks.
func (p page) prose() string {
	var b strings.Builder
	inBlock := false
	for _, line := range strings.Split(p.text, "\n") {
		if strings.HasPrefix(line, "```") {
			inBlock = !inBlock
			line = ""
		}
		if !inBlock {
			b.WriteString(line)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// spans returns what stands in backquotes in the page's prose.
func (p page) spans() []string {
	var all []string
	for _, m := range codeSpan.FindAllStringSubmatch(p.prose(), -1) {
		all = append(all, m[1])
	}
	return all
}

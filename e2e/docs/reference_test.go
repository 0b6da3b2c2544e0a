package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/better-compute/bcd/controlplane"
	"github.com/better-compute/bcd/controlplane/httpapi"
	"github.com/better-compute/bcd/internal/fault"
)

// rows returns the cells of each row of the tables below a heading of a page, without the header.
func rows(t *testing.T, name, heading string) [][]string {
	t.Helper()
	_, text, found := strings.Cut(read(t, name), "\n"+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", name, heading)
	}
	level := heading[:strings.LastIndex(heading, "#")+1]
	var all [][]string
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, level+" ") {
			break
		}
		if cells, found := strings.CutPrefix(line, "| "); found {
			all = append(all, strings.Split(strings.TrimSuffix(cells, " |"), " | "))
		}
	}
	if len(all) < 3 || !strings.HasPrefix(all[1][0], "---") {
		t.Fatalf("%s has no table below %q", name, heading)
	}
	return all[2:]
}

// inBackquotes returns what stands in backquotes in each first cell.
func inBackquotes(rows [][]string) (all []string) {
	for _, r := range rows {
		for _, m := range codeSpan.FindAllStringSubmatch(r[0], -1) {
			all = append(all, m[1])
		}
	}
	return all
}

// constants returns the texts of the package-level string constants in a folder's files whose names start with prefix.
func constants(t *testing.T, folder, prefix string) (all []string) {
	t.Helper()
	for _, f := range parseFolder(t, folder) {
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, name := range v.Names {
					if i < len(v.Values) && strings.HasPrefix(name.Name, prefix) {
						all = append(all, literals(v.Values[i])...)
					}
				}
			}
		}
	}
	return all
}

func parseFolder(t *testing.T, folder string) []*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// literals returns the string literals of a node.
func literals(n ast.Node) (all []string) {
	ast.Inspect(n, func(n ast.Node) bool {
		if b, ok := n.(*ast.BasicLit); ok && b.Kind == token.STRING {
			if s, err := strconv.Unquote(b.Value); err == nil {
				all = append(all, s)
			}
		}
		return true
	})
	return all
}

func same(t *testing.T, what string, documented, known []string) {
	t.Helper()
	documented, known = slices.Clone(documented), slices.Clone(known)
	slices.Sort(documented)
	slices.Sort(known)
	if len(known) == 0 {
		t.Fatalf("no %s found in the code", what)
	}
	if diff := cmp.Diff(known, documented); diff != "" {
		t.Errorf("%s, - in the code, + on the page:\n%s", what, diff)
	}
}

// The keys of config.toml are the ones that the daemon knows.
func TestConfigurationKeys(t *testing.T) {
	var known []string
	for _, f := range parseFolder(t, "agent/config") {
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && v.Names[0].Name == "known" {
				known = literals(v)
			}
			return true
		})
	}
	same(t, "keys of config.toml", inBackquotes(rows(t, "docs/configuration.md", "## Keys")), known)
}

// The keys of server.toml are the ones that the server knows.
func TestServerKeys(t *testing.T) {
	var known []string
	var walk func(prefix string, typ reflect.Type)
	walk = func(prefix string, typ reflect.Type) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
			inner := f.Type
			if inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct && inner.NumField() > 0 {
				walk(prefix+name+".", inner)
				continue
			}
			known = append(known, prefix+name)
		}
	}
	walk("", reflect.TypeFor[controlplane.Config]())
	same(t, "keys of server.toml", inBackquotes(rows(t, "docs/run-a-control-plane.md", "## server.toml")), known)
}

// Each code is on the configuration's page, with its exit status, and in troubleshooting.
func TestCodes(t *testing.T) {
	var codes []string
	for _, f := range parseFolder(t, "internal/fault") {
		ast.Inspect(f, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok {
				if typ, ok := v.Type.(*ast.Ident); ok && typ.Name == "Code" {
					codes = append(codes, literals(v)...)
				}
			}
			return true
		})
	}
	table := rows(t, "docs/configuration.md", "## Codes and exit status")
	same(t, "codes", inBackquotes(table), codes)
	trouble := read(t, "docs/troubleshooting.md")
	for _, r := range table {
		code := fault.Code(strings.Trim(r[0], "`"))
		if r[1] != strconv.Itoa(code.Exit()) {
			t.Errorf("%s ends with %d, and the page says %s", code, code.Exit(), r[1])
		}
		if !strings.Contains(trouble, "`"+string(code)+"`") {
			t.Errorf("docs/troubleshooting.md does not say what to do about %s", code)
		}
	}
}

// Each reason of a refused join or renewal is explained.
func TestReasonsOfRefusals(t *testing.T) {
	const folder = "controlplane/joinservice"
	var reasons, attestors []string
	for _, f := range parseFolder(t, folder) {
		ast.Inspect(f, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			switch fun := c.Fun.(type) {
			case *ast.Ident:
				if fun.Name == "Refuse" {
					reasons = append(reasons, literals(c)...)
				}
			case *ast.SelectorExpr:
				if fun.Sel.Name == "refuse" { // by the attestor, whose name comes first
					attestors = append(attestors, literals(c)...)
				}
			}
			return true
		})
	}
	attested := constants(t, "tpmkey/attest", "Reason") // of a renewal bare, of an attestor with its name before it
	reasons = slices.Concat(reasons, attested, constants(t, folder, "reason"))
	slices.Sort(reasons)
	reasons = slices.Compact(reasons)
	if len(reasons) < 25 || len(attestors) < 7 {
		t.Fatalf("only %d reasons found, and %d of attestors", len(reasons), len(attestors))
	}
	_, section, _ := strings.Cut(read(t, "docs/tokens.md"), "\n## Why a join was refused\n")
	explained := func(r string) bool { return strings.Contains(section, "`"+r+"`") }
	for _, r := range reasons {
		bare := strings.TrimPrefix(r, ":")
		if bare != r && bare != "" && !explained("discovery:"+bare) || bare == r && !explained(r) {
			t.Errorf("docs/tokens.md does not explain the reason %q", r)
		}
	}
	for _, r := range attested {
		if !explained("tpm:"+r) || !explained("x509pop:"+r) {
			t.Errorf("docs/tokens.md does not explain the reason %q of a join", r)
		}
	}
	for _, r := range attestors {
		if !explained("join-token:"+r) && !explained("discovery:"+r) {
			t.Errorf("docs/tokens.md does not explain an attestor's reason %q", r)
		}
	}
	for _, r := range inBackquotes(rows(t, "docs/tokens.md", "## Why a join was refused")) {
		attestor, bare, _ := strings.Cut(r, ":")
		known := slices.Contains(reasons, r)
		switch attestor {
		case "join-token":
			known = slices.Contains(attestors, bare)
		case "discovery":
			known = slices.Contains(attestors, bare) || slices.Contains(reasons, ":"+bare)
		case "tpm":
			known = known || slices.Contains(attested, bare) || slices.Contains(reasons, ":"+bare)
		case "x509pop":
			known = slices.Contains(reasons, bare)
		}
		if !known {
			t.Errorf("docs/tokens.md explains the reason %q, which is none", r)
		}
	}
}

// Each action of the HTTP API is explained.
func TestActions(t *testing.T) {
	same(t, "actions", inBackquotes(firstCells(rows(t, "docs/api-keys.md", "## Make one"), "compute:")), httpapi.Actions)
}

// firstCells returns the rows whose first cell starts, in backquotes, with a text.
func firstCells(rows [][]string, start string) (some [][]string) {
	for _, r := range rows {
		if strings.HasPrefix(r[0], "`"+start) {
			some = append(some, r)
		}
	}
	return some
}

// Each event is explained.
func TestEvents(t *testing.T) {
	var documented []string
	for _, e := range inBackquotes(rows(t, "docs/run-a-control-plane.md", "## Talk to it")) {
		if strings.Contains(e, ".") && !strings.HasSuffix(e, ".toml") {
			documented = append(documented, e)
		}
	}
	same(t, "events", documented, constants(t, "controlplane/events", "Type"))
}

var testName = regexp.MustCompile(`^((?:[a-z0-9]+/)*[a-z0-9]+)\.((?:Test|Fuzz)[A-Za-z0-9_]+)$`)

// Each test that a page names is there.
func TestTestsThatPagesName(t *testing.T) {
	named := map[string]int{}
	for _, p := range pages(t) {
		for _, s := range p.spans() {
			m := testName.FindStringSubmatch(s)
			if m == nil {
				continue
			}
			named[p.name]++
			files, err := filepath.Glob(filepath.Join(root, m[1], "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(files, func(f string) bool {
				b, err := os.ReadFile(f)
				return err == nil && strings.Contains(string(b), "\nfunc "+m[2]+"(")
			}) {
				t.Errorf("%s names the test %s, which is not there", p.name, s)
			}
		}
	}
	if named["docs/THREATS.md"] < 40 {
		t.Errorf("docs/THREATS.md names only %d tests", named["docs/THREATS.md"])
	}
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors returns the names that a Markdown renderer gives to a page's headings.
func anchors(text string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(text, -1) {
		all = append(all, strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// Each link to a file of the repository leads there.
func TestLinks(t *testing.T) {
	followed := 0
	for _, p := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(p.prose(), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			followed++
			file := p.name
			if target != "" {
				file = path.Join(path.Dir(p.name), target)
			}
			b, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				t.Errorf("%s links to %s: %v", p.name, m[1], err)
				continue
			}
			if anchor != "" && !slices.Contains(anchors(string(b)), anchor) {
				t.Errorf("%s links to %s, and %s has no such heading", p.name, m[1], file)
			}
		}
	}
	if followed < 60 {
		t.Errorf("only %d links found", followed)
	}
}

// Each page of docs is on the index, and each decision on theirs, under its own title.
func TestIndexes(t *testing.T) {
	index, decisions := read(t, "docs/README.md"), read(t, "docs/decisions/README.md")
	numbers := map[string]string{}
	for _, p := range pages(t) {
		folder, name := path.Split(p.name)
		switch {
		case name == "README.md":
		case folder == "docs/":
			if !strings.Contains(index, "]("+name+")") {
				t.Errorf("docs/README.md does not link to %s", name)
			}
		case folder == "docs/decisions/":
			number, _, _ := strings.Cut(name, "-")
			n, err := strconv.Atoi(number)
			if err != nil || len(number) != 4 {
				t.Errorf("%s is not named NNNN-title.md", name)
				continue
			}
			if other, taken := numbers[number]; taken {
				t.Errorf("%s has the number of %s", name, other)
			}
			numbers[number] = name
			title, found := strings.CutPrefix(strings.SplitN(p.text, "\n", 2)[0], "# "+strconv.Itoa(n)+". ")
			if row := "| [" + number + "](" + name + ") | " + title + " |"; !found || !strings.Contains(decisions, "\n"+row+"\n") {
				t.Errorf("docs/decisions/README.md has no row %q", row)
			}
		}
	}
	if len(numbers) < 9 {
		t.Errorf("only the decisions %v found", slices.Sorted(maps.Keys(numbers)))
	}
}

var makeTarget = regexp.MustCompile(`(?m)(?:^|\x60)(?:[A-Z_]+=\S+ )*make ([a-z]+)(?:\x60|  |$)`)

// Each target of make that a page names is there, and CONTRIBUTING names each.
func TestMakeTargets(t *testing.T) {
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z]+):.*## `).FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	if len(targets) < 8 {
		t.Fatalf("only the targets %q found", targets)
	}
	for _, p := range pages(t) {
		for _, m := range makeTarget.FindAllStringSubmatch(p.text, -1) {
			if !slices.Contains(targets, m[1]) {
				t.Errorf("%s names make %s, which is not there", p.name, m[1])
			}
		}
	}
	for _, target := range targets {
		if !strings.Contains(read(t, "CONTRIBUTING.md"), "`make "+target+"`") && target != "help" {
			t.Errorf("CONTRIBUTING.md does not name make %s", target)
		}
	}
}

// Each package is in the tree of the architecture's page, by its own name or below a folder of one purpose.
func TestPackagesAreInTheArchitecture(t *testing.T) {
	named := inBackquotes(rows(t, "docs/ARCHITECTURE.md", "## The tree"))
	folders := map[string]bool{}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(name))
		folders[filepath.ToSlash(rel)] = true
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	many := []string{"agent", "controlplane", "internal", "cmd"} // hold packages of different purposes
	for folder := range folders {
		at := folder
		for !slices.Contains(named, at) && at != "." && !slices.Contains(many, path.Dir(at)) {
			at = path.Dir(at)
		}
		if !slices.Contains(named, at) {
			t.Errorf("docs/ARCHITECTURE.md does not say what %s answers", folder)
		}
	}
	for _, n := range named {
		if _, err := os.Stat(filepath.Join(root, n)); err != nil {
			t.Errorf("docs/ARCHITECTURE.md names %s: %v", n, err)
		}
	}
}

package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the repository.
const root = "../.."

// pkg is one package's code without its tests.
type pkg struct {
	dir     string
	name    string
	doc     string
	imports []string // sorted, without duplicates
}

// tree maps a folder, relative to the repository, to its package.
type tree map[string]*pkg

func (t tree) packages() []*pkg {
	var all []*pkg
	for _, dir := range slices.Sorted(maps.Keys(t)) {
		all = append(all, t[dir])
	}
	return all
}

// reach returns the packages of this module that a package links, itself included.
func (t tree) reach(dir string) []string {
	seen := map[string]bool{}
	var visit func(string)
	visit = func(dir string) {
		p := t[dir]
		if p == nil || seen[dir] {
			return
		}
		seen[dir] = true
		for _, imp := range p.imports {
			if own, found := strings.CutPrefix(imp, module); found {
				visit(own)
			}
		}
	}
	visit(dir)
	return slices.Sorted(maps.Keys(seen))
}

// parse reads every Go file of the repository that is not a test's, under any build tag.
func parse(t *testing.T) tree {
	t.Helper()
	all := tree{}
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "tools/") || strings.Contains(name, "testdata/") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, name), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		all.add(path.Dir(name), f)
	}
	if len(all) < 10 {
		t.Fatalf("only %d packages found", len(all))
	}
	return all
}

func (t tree) add(dir string, f *ast.File) {
	p := t[dir]
	if p == nil {
		p = &pkg{dir: dir, name: f.Name.Name}
		t[dir] = p
	}
	if f.Doc != nil {
		p.doc += f.Doc.Text()
	}
	for _, spec := range f.Imports {
		imp, err := strconv.Unquote(spec.Path.Value)
		if err == nil && !slices.Contains(p.imports, imp) {
			p.imports = append(p.imports, imp)
		}
	}
	slices.Sort(p.imports)
}

// files returns the paths of the repository's files, relative to it, without what git never tracks.
func files(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && (rel == ".git" || rel == "bin" || rel == "dist" || rel == ".build") {
			return fs.SkipDir
		}
		if d.Type().IsRegular() {
			names = append(names, rel)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

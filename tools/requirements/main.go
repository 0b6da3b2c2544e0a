// Command requirements prints the rows of docs/requirements.md that no test names, by group, and how many are named.
//
// A test names a row in a comment line `Req: XX-000 XX-001`, in a Go test file or in a script test (.txtar). A name that is
// no row fails the command: a mistyped id would hide a gap.
package main

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	root := ".."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	if err := report(os.Stdout, os.DirFS(root)); err != nil {
		fmt.Fprintln(os.Stderr, "requirements:", err)
		os.Exit(1)
	}
}

var (
	rowLine = regexp.MustCompile(`(?m)^\| ([A-Z][A-Z0-9]-\d{3}) \|`)
	reqLine = regexp.MustCompile(`(?m)^\s*(?://|#) Req: (.*)$`)
	rowID   = regexp.MustCompile(`^[A-Z][A-Z0-9]-\d{3}$`)
)

func report(w io.Writer, root fs.FS) error {
	doc, err := fs.ReadFile(root, "docs/requirements.md")
	if err != nil {
		return fmt.Errorf("cannot read the rows: %w", err)
	}
	var rows []string
	for _, m := range rowLine.FindAllStringSubmatch(string(doc), -1) {
		rows = append(rows, m[1])
	}
	named, err := namedRows(root)
	if err != nil {
		return err
	}
	missing := map[string][]string{}
	tested := 0
	for _, id := range rows {
		if len(named[id]) > 0 {
			tested++
		} else {
			group, _, _ := strings.Cut(id, "-")
			missing[group] = append(missing[group], id)
		}
		delete(named, id)
	}
	for _, id := range slices.Sorted(maps.Keys(named)) {
		err = fmt.Errorf("%s is named in %s and is no row", id, strings.Join(named[id], ", "))
	}
	if err != nil {
		return err
	}
	for _, group := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintf(w, "%s without a test (%d): %s\n", group, len(missing[group]), strings.Join(missing[group], " "))
	}
	fmt.Fprintf(w, "%d of %d rows have a test\n", tested, len(rows))
	return nil
}

// namedRows maps each id that a test names to the files that name it.
func namedRows(root fs.FS) (map[string][]string, error) {
	named := map[string][]string{}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (name == ".git" || name == "bin" || name == "dist" || name == "tools") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(name, "_test.go") && filepath.Ext(name) != ".txtar" {
			return nil
		}
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return fmt.Errorf("cannot read a test: %w", err)
		}
		for _, m := range reqLine.FindAllStringSubmatch(string(b), -1) {
			for _, id := range strings.FieldsFunc(m[1], func(r rune) bool { return r == ' ' || r == ',' }) {
				if !rowID.MatchString(id) {
					return fmt.Errorf("%s names %q, which is no row's id", name, id)
				}
				if !slices.Contains(named[id], name) {
					named[id] = append(named[id], name)
				}
			}
		}
		return nil
	})
	return named, err
}

package bearer_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// Secrets are compared by crypto/subtle and by nothing else: a comparison that ends at the first difference would tell
// how much of a guess is right. Time can't be measured well enough for a test, so this one reads the code.
// Req: JF-023
func TestSecretsAreComparedInConstantTime(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "bearer.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil || f.Name.Name != "Matches" && f.Name.Name != "Equal" {
			continue
		}
		found++
		constant := false
		ast.Inspect(f.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "subtle" && n.Sel.Name == "ConstantTimeCompare" {
					constant = true
				}
				if pkg, ok := n.X.(*ast.Ident); ok && (pkg.Name == "bytes" || pkg.Name == "slices") {
					t.Errorf("%s compares with %s.%s", f.Name.Name, pkg.Name, n.Sel.Name)
				}
			}
			return true
		})
		if !constant {
			t.Errorf("%s does not call subtle.ConstantTimeCompare", f.Name.Name)
		}
	}
	if found != 2 {
		t.Errorf("found %d of the two comparisons", found)
	}
}

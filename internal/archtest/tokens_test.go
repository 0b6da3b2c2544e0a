package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// The tokens of ramdisks and of installed systems are made by modules, in the control plane's process. Nothing that a caller
// reaches, neither the HTTP API nor a command, asks for one: whoever holds an API key could else join as any machine.
//
// Req: JT-063
func TestOnlyModulesIssueTheTokensOfMachines(t *testing.T) {
	const asks = "IssueRequest"
	may := []string{"controlplane/tokens", "controlplane/controlplanetest"}
	found := 0
	for _, name := range files(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, read(t, name), parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			id, ok := n.(*ast.Ident)
			if !ok || id.Name != asks {
				return true
			}
			found++
			if !slices.ContainsFunc(may, func(dir string) bool { return strings.HasPrefix(name, dir+"/") }) {
				t.Errorf("%s asks for a token that modules alone ask for", name)
			}
			return true
		})
	}
	if found == 0 {
		t.Errorf("nothing is called %s any more", asks)
	}
}

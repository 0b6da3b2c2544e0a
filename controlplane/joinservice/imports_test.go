package joinservice_test

import (
	"go/parser"
	gotoken "go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// No step of a join asks another service, better-iam least of all: nothing that a join runs through can open a connection
// or start a program.
//
// Req: JF-065
func TestJoinAsksNobody(t *testing.T) {
	for _, dir := range []string{".", "../store", "../events", "../../seal", "../../internal/bearer", "../../internal/signing"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no files, %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range f.Imports {
				path, err := strconv.Unquote(i.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				if slices.Contains([]string{"net", "net/http", "net/rpc", "os/exec", "crypto/tls", "google.golang.org/grpc/credentials"}, path) {
					t.Errorf("%s imports %s", name, path)
				}
			}
		}
	}
}

package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-tpm/tpm2"
)

// verbs are those of package fmt in a message.
var verbs = regexp.MustCompile(`%[-+#0]*[0-9]*[a-zA-Z]`)

// fragments returns all that the programs can say, one line each: what stands between the verbs of the code's string
// literals, and the texts of the system and the TPM that pages name.
func fragments(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	add := func(text string) {
		for _, fragment := range verbs.Split(text, -1) {
			all.WriteString(strings.ReplaceAll(fragment, "\n", " ") + "\n")
		}
	}
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(name, "/e2e/") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if b, ok := n.(*ast.BasicLit); ok && b.Kind == token.STRING {
				if s, err := strconv.Unquote(b.Value); err == nil {
					add(s)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EACCES, syscall.ENOENT} {
		add(e.Error())
	}
	for _, rc := range []tpm2.TPMRC{tpm2.TPMRCLockout, tpm2.TPMRCBadAuth, tpm2.TPMRCAuthFail, tpm2.TPMRCFailure} {
		name, _, _ := strings.Cut(rc.Error(), " ")
		add(strings.TrimSuffix(name, ":"))
	}
	return all.String()
}

// unsaid returns the first part of a message, between "…" and colons, that no program says.
func unsaid(all, message string) string {
	for _, part := range strings.FieldsFunc(strings.ReplaceAll(message, ": ", "…"), func(r rune) bool { return r == '…' }) {
		if part = strings.TrimSpace(part); !strings.Contains(all, part) {
			return part
		}
	}
	return ""
}

// What troubleshooting says that the programs print, they can print.
func TestMessages(t *testing.T) {
	all := fragments(t)
	const page = "docs/troubleshooting.md"
	checked := 0
	for _, h := range []string{"## The gateway", "## A join", "## Files", "## The daemon is not connected", "## The TPM", "## better-compute"} {
		for _, m := range inBackquotes(rows(t, page, h)) {
			checked++
			if part := unsaid(all, m); part != "" {
				t.Errorf("%s: no program says %q of %q", page, part, m)
			}
		}
	}
	if checked < 50 {
		t.Errorf("only %d messages checked", checked)
	}
}

func TestUnsaidIsFound(t *testing.T) {
	all := fragments(t)
	for message, want := range map[string]string{
		"cannot trust the token file":             "",
		"cannot reach the gateway at …":           "",
		"cannot open TPM …: permission denied":    "",
		"TPM_RC_LOCKOUT":                          "",
		"cannot trust the tokenfile":              "cannot trust the tokenfile",
		"cannot open TPM …: no such door":         "no such door",
		"the gateway's certificate is too late …": "the gateway's certificate is too late",
	} {
		if got := unsaid(all, message); got != want {
			t.Errorf("of %q no program says %q, want %q", message, got, want)
		}
	}
}

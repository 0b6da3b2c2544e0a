package main

import (
	"strings"
	"testing"
	"testing/fstest"
)

func repo(test string) fstest.MapFS {
	return fstest.MapFS{
		"docs/requirements.md": {Data: []byte("| id | side | requirement |\n|---|---|---|\n| AA-001 | bcd | x |\n| AA-002 | bcd | y |\n| B2-001 | both | z |\n")},
		"p/p_test.go":          {Data: []byte(test)},
		"p/s.txtar":            {Data: []byte("# Req: B2-001\n")},
		"p/p.go":               {Data: []byte("// Req: AA-002\n")}, // not a test
	}
}

func TestReport(t *testing.T) {
	var out strings.Builder
	if err := report(&out, repo("// Req: AA-001\nfunc TestX() {}\n")); err != nil {
		t.Fatal(err)
	}
	if want := "AA without a test (1): AA-002\n2 of 3 rows have a test\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

func TestUnknownRowsFail(t *testing.T) {
	for _, test := range []string{"// Req: AA-009\n", "// Req: AA-1\n", "// Req: see AA-001\n"} {
		if err := report(&strings.Builder{}, repo(test)); err == nil {
			t.Errorf("%q passes", test)
		}
	}
}

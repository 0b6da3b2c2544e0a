package archtest_test

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range parse(t).packages() {
		if strings.HasPrefix(p.dir, "api/") {
			continue // generated; the .proto files carry the words
		}
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command " + p.dir[strings.LastIndex(p.dir, "/")+1:] + " "
		}
		if !strings.HasPrefix(p.doc, want) {
			t.Errorf("the doc of %s does not start with %q", p.dir, want)
		}
	}
}

// The project builds and reads alone: no file names the folder that it happens to lie in, a home folder, or by "../" what
// lies beside the repository.
func TestNoPathsOutsideTheRepository(t *testing.T) {
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	private := []string{here + "/"}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 {
		private = append(private, home+"/")
	}
	up := regexp.MustCompile(`(?:\.\./)+[\w.-]+`)
	for _, name := range files(t) {
		if strings.HasPrefix(name, "bin/") {
			continue
		}
		for i, line := range strings.Split(read(t, name), "\n") {
			if slices.ContainsFunc(private, func(p string) bool { return strings.Contains(line, p) }) {
				t.Errorf("%s:%d names a path of this machine: %.120s", name, i+1, line)
			}
			for _, p := range up.FindAllString(line, -1) {
				if beside := path.Join(path.Dir(name), p); strings.HasPrefix(beside, "../") {
					t.Errorf("%s:%d names %s, which is outside the repository: %.120s", name, i+1, p, line)
				}
			}
		}
	}
}

// go.mod has no replace: what is built is what the module proxies have.
func TestNoReplace(t *testing.T) {
	for _, name := range []string{"go.mod", "tools/go.mod"} {
		if regexp.MustCompile(`(?m)^\s*replace\b`).MatchString(read(t, name)) {
			t.Errorf("%s has a replace directive", name)
		}
	}
}

package archtest_test

import (
	"regexp"
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

// The project builds and reads alone: no file names the folder that it happens to lie in, or one beside it.
func TestNoPathsOutsideTheRepository(t *testing.T) {
	outside := regexp.MustCompile(`\.\./shared\b|(^|[^\w.])/work/|/root/go/`)
	for _, name := range files(t) {
		if strings.HasPrefix(name, "internal/archtest/") {
			continue
		}
		for i, line := range strings.Split(read(t, name), "\n") {
			if outside.MatchString(line) {
				t.Errorf("%s:%d names a path outside the repository: %.120s", name, i+1, line)
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

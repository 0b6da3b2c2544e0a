package docs_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quoted finds command lines in what the programs print: in quotation marks, or after "run: ".
var quoted = regexp.MustCompile(`"((?:bcd|better-compute) [^"]+)"|run: ((?:bcd|better-compute) [^;,"]+)`)

// Every command and flag that a message or a hint of the programs names is there.
func TestCommandsAndFlagsOfHintsExist(t *testing.T) {
	found := 0
	for _, line := range strings.Split(fragments(t), "\n") {
		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			words := strings.Fields(separators.Split(m[1]+m[2], 2)[0])
			if slices.Contains(words, "%s") {
				continue
			}
			found++
			for _, wrong := range commandTree(t).unknown(words) {
				t.Errorf("a program prints %q, and %q is not there", m[0], wrong)
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d commands found in what the programs print", found)
	}
}

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
	"github.com/better-compute/bcd/internal/terminal"
)

// confirm asks on a terminal whether to do what cannot be undone; about says there what it would be done to. Where there is
// nobody to ask, it is wrong usage, and nothing is looked up.
func confirm(env Env, consequence string, about func() (string, error)) error {
	f, ok := env.Stdin.(*os.File)
	if !ok || !terminal.Is(f) {
		return fault.New(fault.Usage, "run it again with --yes", "nothing was done without --yes: %s", consequence)
	}
	subject, err := about()
	if err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "%s\n%s. Go on? [y/N] ", oneline.Text(subject), oneline.Text(consequence))
	if !saysYes(f) {
		return fault.New(fault.Failed, "", "nothing was done")
	}
	return nil
}

// saysYes reads one line and reports whether it is a yes. Anything else, the end of the input too, is none.
func saysYes(r io.Reader) bool {
	line, _ := bufio.NewReader(io.LimitReader(r, 100)).ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return true
	default:
		return false
	}
}

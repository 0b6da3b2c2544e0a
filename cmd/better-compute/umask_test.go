package main

import (
	"os/exec"

	"github.com/rogpeppe/go-internal/testscript"
)

// umask runs a command with a umask: umask 000 better-compute ….
func umask(ts *testscript.TestScript, neg bool, args []string) {
	sh, err := exec.LookPath("sh")
	ts.Check(err)
	err = ts.Exec(sh, append([]string{"-c", `umask "$0" && exec "$@"`}, args...)...)
	if (err != nil) != neg {
		ts.Fatalf("%v", err)
	}
}

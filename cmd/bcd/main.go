// Command bcd is the node daemon: it joins a machine to a control plane, holds its session and renews its certificate.
//
// The package holds flags, exit statuses and text. What the commands do is the agent's.
package main

import (
	"os"

	"github.com/better-compute/bcd/internal/wallclock"
)

func main() {
	os.Exit(run(os.Args[1:], Env{
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Getenv: os.Getenv,
		Now:    wallclock.New(os.Getenv),
	}))
}

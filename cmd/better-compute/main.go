// Command better-compute runs and operates the control plane: its PKI, its server, and through the HTTP API its join
// tokens, nodes and events. "better-compute help" lists the commands.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/better-compute/bcd/internal/wallclock"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once, whatever it waits for.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, Env{
		Stdin:  os.Stdin,
		Stdout: os.Stdout,
		Stderr: os.Stderr,
		Getenv: os.Getenv,
		Now:    wallclock.New(os.Getenv),
	}, os.Args[1:]))
}

// Command demo shows, on one machine and in under a minute, a machine that joins a control plane, holds its session and
// renews its certificate twice, and another one that is refused.
//
// With -attestor tpm there is no token anywhere: the machine is let in by its TPM.
//
// It drives the programs that "make build" made, as processes of their own, in a temporary folder, and prints each
// command that it runs. Nothing in between is faked: what stands in for something that the machine lacks (hardware that
// can be trusted, a TPM) is named. Every step checks its result, and the folder and the processes are gone at the end,
// however it ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// atMost bounds the whole demo. It takes half a minute.
const atMost = 3 * time.Minute

func main() { os.Exit(run()) }

func run() int {
	programs := flag.String("bin", "bin", "folder of the programs that make build made")
	life := flag.Duration("cert-ttl", 15*time.Second, "life of a node certificate; it is renewed after about 60 % of it")
	attestor := flag.String("attestor", byToken, "how the machine shows that it may join: "+byToken+" or "+byTPM)
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	bounded, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()

	s := newScreen(os.Stdout, os.Getenv)
	err := demonstrate(bounded, s, *programs, *attestor, *life)
	switch {
	case err == nil:
		return 0
	case ctx.Err() != nil:
		s.line("")
		s.line("stopped; nothing is left behind")
		return 130 // as a shell reports SIGINT
	default:
		if bounded.Err() != nil {
			err = fmt.Errorf("not done after %s: %w", atMost, err)
		}
		s.failed(err)
		return 1
	}
}

// demonstrate tells the story in a temporary folder and cleans up.
func demonstrate(ctx context.Context, s *screen, programs, attestor string, life time.Duration) (err error) {
	switch attestor {
	case byToken:
	case byTPM:
		if err := needsTPM(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("-attestor is %q, not %s or %s", attestor, byToken, byTPM)
	}
	w, err := newWorkshop(s, programs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	return (&story{workshop: w, life: life, attestor: attestor, begun: time.Now()}).tell(ctx)
}

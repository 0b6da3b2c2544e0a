// Command bench measures what the programs cost, from outside, as an operator would: the size of the daemon, what it
// takes while it idles, how long a machine takes to join, how many machines a control plane admits in a second, and how
// long refusals take. It prints each figure with its goal and beside a peer's.
//
// It drives the programs that "make build" made, as processes of their own, on loopback, in a folder that is gone at the
// end. The control plane commits as it always does: every admission is on the disk before it is answered. So the folder is
// below the working directory and not in a temporary one, which often is memory.
//
// A goal that is missed is marked and no failure: times depend on the machine, and on what else it does. The exit status
// is 1 only when something could not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"
)

// atMost bounds the whole bench. It takes about five minutes.
const atMost = 15 * time.Minute

// measurements are the parts of the bench, in the order in which they run: the daemons idle last, when nothing else of
// the bench takes the machine's time.
var measurements = []measurement{
	{"size", measureSizes},
	{"cold-join", measureColdJoins},
	{"rate", measureRates},
	{"refusals", measureRefusals},
	{"scale", measureScale},
	{"tpm", measureTPM},
	{"idle", measureIdle},
}

type measurement struct {
	name string
	run  func(context.Context, *bench) error
}

func main() { os.Exit(run()) }

func run() int {
	programs := flag.String("bin", "bin", "folder of the programs that make build made")
	only := flag.String("only", "", "what to measure, separated by commas: size, cold-join, rate, refusals, scale, tpm, idle (default all)")
	window := flag.Duration("idle-window", time.Minute, "how long idle daemons are watched")
	flag.Parse()

	// The clients stand for as many machines, none of which would collect garbage within one join.
	debug.SetGCPercent(400)

	// Whatever ends the bench, a closed terminal or pipe too, it cleans up.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	if err := measure(ctx, *programs, *only, *window); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 1
	}
	return 0
}

func measure(ctx context.Context, programs, only string, window time.Duration) (err error) {
	chosen := strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	for _, name := range chosen {
		if !slices.ContainsFunc(measurements, func(m measurement) bool { return m.name == name }) {
			return fmt.Errorf("there is no measurement %q", name)
		}
	}
	b, err := newBench(ctx, programs, window)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.conditions(); err != nil {
		return err
	}
	for _, m := range measurements {
		if len(chosen) > 0 && !slices.Contains(chosen, m.name) {
			continue
		}
		if err := m.run(ctx, b); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("cannot measure %s: %w", m.name, err)
		}
	}
	return nil
}

//go:build testclock

package wallclock

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// Tag marks the version: such a build is for tests and may not be installed on a server.
const Tag = "+testclock"

// envClockOffset names a file that holds how far the clock is off, in the form of [time.ParseDuration]. It is read each
// time that somebody asks for the time, so that a test moves the clock of a running process.
const envClockOffset = "BC_CLOCK_OFFSET"

// New returns the machine's clock, moved by what the file says. Without the variable the clock is right; a file that
// cannot be used ends the process, because a test that runs at the wrong time proves nothing.
func New(getenv func(string) string) func() time.Time {
	path := getenv(envClockOffset)
	if path == "" {
		return time.Now
	}
	return func() time.Time {
		text, err := os.ReadFile(path)
		if err != nil {
			panic(fmt.Errorf("cannot read the clock's offset: %w", err))
		}
		offset, err := time.ParseDuration(strings.TrimSpace(string(text)))
		if err != nil {
			panic(fmt.Errorf("cannot use the clock's offset in %q: %w", path, err))
		}
		return time.Now().Add(offset)
	}
}

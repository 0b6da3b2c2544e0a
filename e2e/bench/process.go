package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used since it began, and what it holds now, as /proc tells (proc(5)).
type usage struct {
	cpu       time.Duration // on a CPU, all threads
	switches  uint64        // context switches, all threads: how often something woke it, or took the CPU from it
	rss       float64       // MiB
	anonymous float64       // MiB of rss that no file backs
	threads   int
}

const mib = 1 << 20

// usageOf reads the usage of a process. CPU time comes from the scheduler, in nanoseconds: the ticks of /proc/PID/stat are
// too coarse for a process that idles. Threads that ended are not in it; those of a Go program end seldom.
func usageOf(pid int) (u usage, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return u, fmt.Errorf("cannot read a process's threads: %w", err)
	}
	for _, t := range tasks {
		task := filepath.Join(dir, "task", t.Name())
		ran, err := firstNumber(filepath.Join(task, "schedstat"))
		if errors.Is(err, fs.ErrNotExist) {
			if _, gone := os.Stat(task); errors.Is(gone, fs.ErrNotExist) {
				continue // the thread has just ended
			}
		}
		if err != nil {
			return u, fmt.Errorf("cannot read a thread's CPU time: %w", err)
		}
		u.cpu += time.Duration(ran) //nolint:gosec // nanoseconds of a process's life
		switches, err := keyed(filepath.Join(task, "status"), "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:")
		if err != nil {
			return u, err
		}
		u.switches += switches[0] + switches[1]
		u.threads++
	}
	memory, err := keyed(filepath.Join(dir, "smaps_rollup"), "Rss:", "Anonymous:")
	if err != nil {
		return u, err
	}
	u.rss, u.anonymous = float64(memory[0])/1024, float64(memory[1])/1024
	return u, nil
}

// firstNumber returns the first field of a file.
func firstNumber(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	field, _, _ := bytes.Cut(b, []byte{' '})
	return strconv.ParseUint(string(field), 10, 64)
}

// keyed returns the numbers that follow the keys in a file of lines.
func keyed(path string, keys ...string) ([]uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read a process's usage: %w", err)
	}
	values := make([]uint64, len(keys))
	found := 0
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		for i, key := range keys {
			if f[0] != key {
				continue
			}
			if values[i], err = strconv.ParseUint(f[1], 10, 64); err != nil {
				return nil, fmt.Errorf("cannot read %s of %q: %w", key, path, err)
			}
			found++
		}
	}
	if found != len(keys) {
		return nil, fmt.Errorf("%q has not all of %v", path, keys)
	}
	return values, nil
}

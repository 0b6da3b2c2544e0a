package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// conditions prints what the figures depend on.
func (b *bench) conditions() error {
	synced, err := syncCost(b.dir)
	if err != nil {
		return fmt.Errorf("cannot time a synced write: %w", err)
	}
	signature, err := signatureCost()
	if err != nil {
		return err
	}
	share, err := shareOfCPU()
	if err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	average, _, _ := strings.Cut(string(load), " ")
	fmt.Fprintf(b.out, "machine: %d CPUs, Linux %s, %s; a P-256 signature takes %s, a synced write of 4 KiB %s (%s)\n",
		runtime.NumCPU(), strings.TrimSpace(string(kernel)), runtime.Version(), signature.Round(time.Microsecond),
		synced.Round(10*time.Microsecond), fileSystem(b.dir))
	fmt.Fprintf(b.out, "load: %s at the start; a busy thread gets %.0f %% of a CPU", average, 100*share)
	if share < 0.9 {
		fmt.Fprint(b.out, ": the machine is busy with other work, and times and rates are worse than it can do")
	}
	fmt.Fprintf(b.out, "\npeer: %s\n", peerName)
	return nil
}

// syncCost is the median time of a small write with fdatasync, which bounds what durable commits allow.
func syncCost(dir string) (_ time.Duration, err error) {
	f, err := os.CreateTemp(dir, "sync-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	block := make([]byte, 4<<10)
	return median(31, func() error {
		if _, err := f.Write(block); err != nil {
			return err
		}
		return syscall.Fdatasync(int(f.Fd()))
	})
}

// signatureCost is the median time of a signature, as a measure of the CPU.
func signatureCost() (time.Duration, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return 0, err
	}
	digest := make([]byte, 32)
	return median(201, func() error {
		_, err := ecdsa.SignASN1(rand.Reader, key, digest)
		return err
	})
}

// median returns the median time of n calls.
func median(n int, call func() error) (time.Duration, error) {
	took := make([]float64, n)
	for i := range took {
		begun := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		took[i] = float64(time.Since(begun))
	}
	_, middle, _ := spread(took)
	return time.Duration(middle), nil
}

// shareOfCPU returns how much of one CPU a thread gets that does nothing but compute.
func shareOfCPU() (float64, error) {
	const watched = 500 * time.Millisecond
	before, err := ownCPU()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	for time.Since(begun) < watched { //nolint:revive // it is to be busy
	}
	took := time.Since(begun)
	after, err := ownCPU()
	return float64(after-before) / float64(took), err
}

// ownCPU is the CPU time that this process has used.
func ownCPU() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("cannot read our own CPU time: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}

// fileSystem says whether a synced write to a folder means something.
func fileSystem(dir string) string {
	const tmpfs, ramfs = 0x01021994, 0x858458f6
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "on an unknown file system"
	}
	switch int64(st.Type) { //nolint:unconvert // its type differs between architectures
	case tmpfs, ramfs:
		return "in MEMORY, where no commit is durable and rates say little"
	default:
		return "on a disk"
	}
}

package main

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/better-compute/bcd/tpmkey"
)

// tpmCalls is how often each operation is timed, after one that is not: the first makes the storage key.
const tpmCalls = 100

// measureTPM times what a node asks of its TPM, against a software TPM: what bcd and the transport cost. A chip takes
// longer, by its own time: tens to hundreds of milliseconds an operation.
func measureTPM(ctx context.Context, b *bench) (err error) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		fmt.Fprintln(b.out, "\nswtpm is not installed: no TPM figures")
		return nil
	}
	state := filepath.Join(b.dir, "tpm")
	if err := os.Mkdir(state, 0o700); err != nil {
		return err
	}
	socket := filepath.Join(b.sockets, "tpm")
	swtpm := exec.CommandContext(ctx, "swtpm", "socket", "--tpm2", "--tpmstate", "dir="+state,
		"--server", "type=unixio,path="+socket, "--flags", "not-need-init,startup-clear")
	if err := swtpm.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, swtpm.Process.Kill(), ignoreExit(swtpm.Wait())) }()
	for begun := time.Now(); ; {
		if _, err := os.Stat(socket); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) || time.Since(begun) > readyWithin {
			return fmt.Errorf("swtpm does not listen: %w", err)
		}
		if err := pause(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	store, err := tpmkey.New(tpmkey.Options{Mode: tpmkey.Required, Device: "unix:" + socket, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	_, key, err := store.New(ctx)
	if err != nil {
		return err
	}
	digest := sha256.Sum256([]byte("a message"))
	attester := store.Attester()
	t := newTable(b.out, fmt.Sprintf("Operations of a node's TPM key (swtpm, %d of each)", tpmCalls))
	for _, o := range []struct {
		name string
		call func() error
	}{
		{"make a key", func() error { _, _, err := store.New(ctx); return err }},
		{"sign", func() error { _, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); return err }},
		{"certify by the attestation key", func() error { _, err := attester.Certify(ctx, key, digest); return err }},
	} {
		var took []float64
		for i := range tpmCalls + 1 {
			begun := time.Now()
			if err := o.call(); err != nil {
				return err
			}
			if i > 0 {
				took = append(took, milliseconds(time.Since(begun)))
			}
		}
		t.add(figure{name: o.name, unit: "ms", samples: took})
	}
	return t.flush()
}

// ignoreExit is nil for a program that ended by the signal that it got.
func ignoreExit(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}

//go:build cgo && tpmsimulator

// Command simulator is the TPM reference implementation behind a Unix socket, for tests.
//
// It is a program of its own, behind a build tag, and no part of the test binaries: it needs a C compiler and OpenSSL's
// headers, and its state is global, so that a process holds only one. It starts as a TPM that was just made and
// started, takes raw TPM commands from one client at a time, and ends when its standard input does.
//
// usage: simulator SOCKET
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/google/go-tpm-tools/simulator"

	"github.com/better-compute/bcd/tpmkey/tpmkeytest/internal/wire"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "simulator:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: simulator SOCKET")
	}
	sim, err := simulator.Get()
	if err != nil {
		return err
	}
	listener, err := net.Listen("unix", args[0])
	if err != nil {
		return err
	}
	go func() {
		// The other end is the test's: it closes with the test, however that ends.
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		if err := serve(sim, conn); err != nil {
			return err
		}
		_ = conn.Close()
	}
}

// serve answers one client until it goes. Its errors are the simulator's, not the client's.
func serve(sim *simulator.Simulator, conn net.Conn) error {
	buf := make([]byte, wire.Max)
	for {
		command, err := wire.Read(conn)
		if err != nil {
			return nil
		}
		response := wire.Result(0)
		if wire.Code(command) == wire.PowerCycle {
			if err := sim.Reset(); err != nil {
				return err
			}
		} else {
			if _, err := sim.Write(command); err != nil {
				return err
			}
			n, err := sim.Read(buf)
			if err != nil {
				return err
			}
			response = buf[:n]
		}
		if _, err := conn.Write(response); err != nil {
			return nil
		}
	}
}

package main

import (
	"io"
	"path/filepath"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

// Env is what a command may use of the process that it runs in.
type Env struct {
	Stdin  io.Reader
	Stdout io.Writer // the answer
	Stderr io.Writer // all else
	Getenv func(string) string
	Now    func() time.Time
}

// The environment variables that the program reads.
const (
	envSecret  = "BETTER_COMPUTE_SECRET"
	envContext = "BETTER_COMPUTE_CONTEXT"
)

// secret returns the passphrase of the PKI's private keys. There is no flag for it: arguments are public on a machine.
func (e Env) secret() (string, error) {
	if s := e.Getenv(envSecret); s != "" {
		return s, nil
	}
	return "", fault.New(fault.Config,
		"set "+envSecret+` to a long random text that you keep, for instance from "openssl rand -base64 32"`,
		"%s is not set; it encrypts the private keys of the PKI", envSecret)
}

// contextFile returns the file that names the server, given the value of --context.
func (e Env) contextFile(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if file := e.Getenv(envContext); file != "" {
		return file, nil
	}
	if dir := e.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "better-compute", "context.toml"), nil
	}
	home := e.Getenv("HOME")
	if home == "" {
		return "", fault.New(fault.Config, "pass --context FILE or set "+envContext, "cannot find the context file: HOME is not set")
	}
	return filepath.Join(home, ".config", "better-compute", "context.toml"), nil
}

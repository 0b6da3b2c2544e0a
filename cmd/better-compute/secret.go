package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// secretThing is something whose secret the server shows once: a token or an API key.
type secretThing struct {
	thing string // "join token"
	short string // "token"
	out   string // the file of --out, or ""
	key   string // the idempotency key
	// create makes it.
	create func(*cobra.Command) (madeSecret, error)
	// revoke is the command line that ends it.
	revoke func(id string) string
}

// madeSecret is what was made.
type madeSecret struct {
	id     string
	secret string // "" in the answer to a repeated idempotency key
	file   string // what --out gets
	about  string // what it is, for people
	// record is the answer with the secret, or with none.
	record func(secret string) any
}

// run makes the thing and gives its secret to where it was asked for.
func (s secretThing) run(c *cobra.Command, env Env, format output) error {
	// The file is made before the secret: one that nobody can keep must not exist.
	var file *newFile
	if s.out != "" {
		var err error
		if file, err = createFile(s.out); err != nil {
			return fmt.Errorf("cannot create the %s: %w", s.thing, err)
		}
		defer file.discard()
	}
	made, err := s.create(c)
	if err != nil {
		return err
	}
	revoke := fmt.Sprintf("revoke it with %q and create a new one", s.revoke(made.id))
	if file != nil {
		if made.secret == "" {
			return fault.New(fault.InvalidState, revoke,
				"cannot write the %s to %q: --key %q was used before for %s, and a %s is shown once", s.thing, s.out, s.key, made.id, s.short)
		}
		if err := file.keep(made.file); err != nil {
			return fault.New(fault.Failed, revoke, "cannot keep the %s %s: %w", s.thing, made.id, err)
		}
		made.secret = ""
	}
	if format == outputJSON {
		err = printJSON(env.Stdout, made.record(made.secret))
	} else {
		err = s.print(env, made, revoke)
	}
	if err != nil && made.secret != "" {
		return fault.New(fault.Failed, revoke, "cannot print the %s %s: %w", s.thing, made.id, err)
	}
	return err
}

// print prints what was made: the secret, or without one the id, alone on standard output so that a script can take it, and
// what it is for people.
func (s secretThing) print(env Env, made madeSecret, revoke string) error {
	result, how := made.secret, "shown once"
	switch {
	case s.out != "":
		result, how = made.id, "written to "+s.out
	case made.secret == "":
		result, how = made.id, fmt.Sprintf("created before with this --key, and its %s is not shown again: use it, or %s", s.short, revoke)
	}
	if _, err := fmt.Fprintln(env.Stdout, result); err != nil {
		return err
	}
	fmt.Fprintf(env.Stderr, "%s %s %s: %s\n", s.thing, oneline.Text(made.id), oneline.Text(made.about), how)
	return nil
}

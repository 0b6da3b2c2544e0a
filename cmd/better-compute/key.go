package main

import (
	"fmt"

	"github.com/gofrs/uuid/v5"
	"github.com/spf13/cobra"
)

// keyFlag is the --key flag of commands that create something.
type keyFlag struct{ value string }

func (k *keyFlag) addTo(c *cobra.Command, thing string) {
	c.Flags().StringVar(&k.value, "key", "", "idempotency key: a repeated call with it makes no second "+thing)
}

// text returns the key that was given, or a random one, with which each call makes something new.
func (k *keyFlag) text() (string, error) {
	if k.value != "" {
		return k.value, nil
	}
	random, err := uuid.NewV4()
	if err != nil {
		return "", fmt.Errorf("cannot make an idempotency key: %w", err)
	}
	return random.String(), nil
}

// notEmpty refuses flags that were given empty: a shell variable that is not set is no wish for the default.
func notEmpty(c *cobra.Command, names ...string) error {
	for _, name := range names {
		if f := c.Flags().Lookup(name); f != nil && f.Changed && (f.Value.String() == "" || f.Value.String() == "[]") {
			return usage(c, "--%s is empty", name)
		}
	}
	return nil
}

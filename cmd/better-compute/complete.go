package main

import "github.com/spf13/cobra"

// complete tells shells the values that a flag takes.
func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag, or it is told twice
	}
}

// completeOutputs tells shells the values of --output, of every command that has it.
func completeOutputs(c *cobra.Command) {
	if c.Flags().Lookup("output") != nil {
		complete(c, "output", string(outputText), string(outputJSON))
	}
	for _, member := range c.Commands() {
		completeOutputs(member)
	}
}

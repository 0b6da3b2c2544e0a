package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/better-compute/bcd/internal/fault"
	"github.com/better-compute/bcd/internal/oneline"
)

// printError prints err the one way that every command does: what failed, then what to do.
func printError(w io.Writer, err error) {
	message := oneline.Text(err.Error())
	// The codes that scripts look for are part of the text; the daemon's own kinds are only an exit status.
	if code := fault.CodeOf(err); code.Wire() {
		message = fmt.Sprintf("%s (%s)", message, code)
	}
	fmt.Fprintf(w, "%s: %s\n", program, message)
	if hint := fault.HintOf(err); hint != "" {
		fmt.Fprintf(w, "hint: %s\n", oneline.Text(hint))
	}
}

// output is the --output flag.
type output string

const (
	outputText output = "text"
	outputJSON output = "json"
)

func (o *output) String() string { return string(*o) }
func (o *output) Type() string   { return "text|json" }
func (o *output) Set(s string) error {
	switch output(s) {
	case outputText, outputJSON:
		*o = output(s)
		return nil
	default:
		return fmt.Errorf("must be text or json")
	}
}

func (o *output) addTo(flags *pflag.FlagSet) {
	*o = outputText
	flags.VarP(o, "output", "o", "how to print the result: text or json")
}

// printJSON prints v, indented, as scripts and people both can read it.
func printJSON(w io.Writer, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// printTable prints rows under a header, aligned.
func printTable(w io.Writer, header []string, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(header, "\t"))
	for _, row := range rows {
		for i := range row {
			row[i] = oneline.Text(row[i])
			if row[i] == "" {
				row[i] = "-"
			}
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

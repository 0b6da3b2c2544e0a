package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// screen is what the reader sees.
type screen struct {
	w     io.Writer
	color bool
	steps int
}

// newScreen writes to f, in colour where f is a terminal and nobody objects (https://no-color.org).
func newScreen(f *os.File, getenv func(string) string) *screen {
	info, err := f.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0
	return &screen{w: f, color: terminal && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb"}
}

// The colours, as the parameters of a terminal's SGR sequence.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

func (s *screen) paint(color, text string) string {
	if !s.color || text == "" {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

func (s *screen) line(format string, args ...any) { fmt.Fprintf(s.w, format+"\n", args...) }

// step begins a chapter.
func (s *screen) step(title string) {
	s.steps++
	s.line("")
	s.line("%s", s.paint(bold, fmt.Sprintf("%d. %s", s.steps, title)))
}

// say tells what no command shows.
func (s *screen) say(format string, args ...any) { s.line("   %s", fmt.Sprintf(format, args...)) }

// command shows a command as a reader would type it.
func (s *screen) command(text string) { s.line("   %s %s", s.paint(dim, "$"), s.paint(cyan, text)) }

// output shows what a command printed.
func (s *screen) output(text string) {
	for line := range strings.Lines(text) {
		s.line("     %s", s.paint(dim, strings.TrimRight(line, "\n")))
	}
}

// checked tells what was found to hold.
func (s *screen) checked(format string, args ...any) {
	s.line("   %s %s", s.paint(green, "✓"), fmt.Sprintf(format, args...))
}

// failed tells what went wrong, with the output of what failed.
func (s *screen) failed(err error) {
	s.line("")
	s.line("%s %v", s.paint(red, "The demo failed:"), err)
	var failure *commandError
	if errors.As(err, &failure) {
		s.command(failure.command)
		s.output(failure.output)
	}
}

// row is a line of the summary.
func (s *screen) row(name, format string, args ...any) {
	s.line("   %s %s", s.paint(dim, fmt.Sprintf("%-12s", name)), fmt.Sprintf(format, args...))
}

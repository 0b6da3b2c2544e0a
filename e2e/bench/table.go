package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// figure is a row of the report.
type figure struct {
	name    string
	unit    string
	samples []float64
	// goal is the limit; 0 is none. aim is what we try to reach beside it; 0 is none.
	goal, aim float64
	// more says that more is better: then goal is a lower limit.
	more bool
	// whole judges every sample, else the median is judged: a size has no noise, a time has.
	whole bool
	// peer is the peer's figure; 0 is none.
	peer float64
}

// table prints figures as they come, under one heading.
type table struct {
	w io.Writer
	t *tabwriter.Writer
}

func newTable(w io.Writer, title string) *table {
	fmt.Fprintf(w, "\n%s\n", title)
	t := &table{w: w, t: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
	fmt.Fprintln(t.t, strings.Join([]string{"", "goal", "aim", "min", "median", "max", "", "peer", "of peer", "", ""}, "\t"))
	return t
}

func (t *table) add(f figure) {
	low, middle, high := spread(f.samples)
	cells := []string{f.name, f.limit(f.goal), f.limit(f.aim), number(low), number(middle), number(high), f.unit, "", "", f.verdict(), ""}
	if f.peer != 0 {
		cells[7], cells[8] = number(f.peer), fmt.Sprintf("%.2f", middle/f.peer)
	}
	fmt.Fprintln(t.t, strings.Join(cells, "\t"))
}

func (t *table) flush() error { return t.t.Flush() }

func (f figure) limit(v float64) string {
	switch {
	case v == 0:
		return ""
	case f.more:
		return "≥ " + number(v)
	default:
		return "≤ " + number(v)
	}
}

// verdict judges a figure by its goal, or by its aim where it has no goal.
func (f figure) verdict() string {
	limit, missed := f.goal, "MISSED"
	if limit == 0 {
		limit, missed = f.aim, "aim missed"
	}
	low, judged, high := spread(f.samples)
	if f.whole {
		if judged = high; f.more {
			judged = low
		}
	}
	within := func(v float64) bool { return f.more && judged >= v || !f.more && judged <= v }
	switch {
	case limit == 0:
		return ""
	case !within(limit):
		return missed
	case f.aim != 0 && !within(f.aim):
		return "ok, aim missed"
	default:
		return "ok"
	}
}

// spread returns the least, the middle and the greatest sample.
func spread(samples []float64) (low, middle, high float64) {
	if len(samples) == 0 {
		return 0, 0, 0
	}
	s := slices.Sorted(slices.Values(samples))
	return s[0], quantile(s, 0.5), s[len(s)-1]
}

// quantile returns the value below which the share q of the sorted samples lies.
func quantile(sorted []float64, q float64) float64 {
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// number prints three significant digits where that is useful.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

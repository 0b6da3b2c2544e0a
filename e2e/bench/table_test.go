package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, tc := range []struct {
		samples           []float64
		low, middle, high float64
	}{
		{nil, 0, 0, 0},
		{[]float64{7}, 7, 7, 7},
		{[]float64{3, 1, 2}, 1, 2, 3},
		{[]float64{4, 1, 2, 3}, 1, 2.5, 4},
	} {
		low, middle, high := spread(tc.samples)
		if low != tc.low || middle != tc.middle || high != tc.high {
			t.Errorf("spread(%v) = %v, %v, %v; want %v, %v, %v", tc.samples, low, middle, high, tc.low, tc.middle, tc.high)
		}
	}
}

func TestVerdict(t *testing.T) {
	for name, tc := range map[string]struct {
		f    figure
		want string
	}{
		"no limit":                       {figure{samples: []float64{1}}, ""},
		"at the goal":                    {figure{samples: []float64{20}, goal: 20}, "ok"},
		"over the goal":                  {figure{samples: []float64{20.1}, goal: 20, aim: 18}, "MISSED"},
		"between aim and goal":           {figure{samples: []float64{19}, goal: 20, aim: 18}, "ok, aim missed"},
		"within the aim":                 {figure{samples: []float64{18}, goal: 20, aim: 18}, "ok"},
		"aim alone, missed":              {figure{samples: []float64{41}, aim: 40}, "aim missed"},
		"aim alone":                      {figure{samples: []float64{39}, aim: 40}, "ok"},
		"the median counts":              {figure{samples: []float64{1, 2, 90}, goal: 20}, "ok"},
		"every sample counts":            {figure{samples: []float64{1, 2, 90}, goal: 20, whole: true}, "MISSED"},
		"more is better":                 {figure{samples: []float64{500}, aim: 400, more: true}, "ok"},
		"more is better, missed":         {figure{samples: []float64{300}, aim: 400, more: true}, "aim missed"},
		"more is better in every sample": {figure{samples: []float64{300, 500, 600}, goal: 400, more: true, whole: true}, "MISSED"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tc.f.verdict(); got != tc.want {
				t.Errorf("verdict is %q, want %q", got, tc.want)
			}
		})
	}
}

func TestTableShowsGoalPeerAndRatio(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "Title")
	table.add(figure{name: "size", unit: "MiB", samples: []float64{10, 30, 20}, goal: 25, peer: 40})
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	got := strings.Join(strings.Fields(lines[len(lines)-1]), " ")
	if want := "size ≤ 25.0 10.0 20.0 30.0 MiB 40.0 0.50 ok"; got != want {
		t.Errorf("the row is %q, want %q", got, want)
	}
}

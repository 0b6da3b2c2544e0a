package main

import (
	"context"
	"os"
	"path/filepath"
)

// measureSizes reports the size of each program. "make build" strips them.
func measureSizes(_ context.Context, b *bench) error {
	t := newTable(b.out, "Size of the programs, stripped")
	for _, f := range []figure{
		{name: "bcd", goal: 20, aim: 18, peer: peerBinary},
		{name: "bcd-static"},
		{name: "better-compute"},
	} {
		info, err := os.Stat(filepath.Join(b.programs, f.name))
		if err != nil {
			return err
		}
		f.unit, f.whole = "MiB", true
		f.samples = []float64{float64(info.Size()) / mib}
		t.add(f)
	}
	return t.flush()
}

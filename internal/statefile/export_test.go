package statefile

import "os"

// GiveOpen gives a file that was opened before, by the name that it had then.
func (d *Dir) GiveOpen(name string, f *os.File) error { return d.give(name, f) }

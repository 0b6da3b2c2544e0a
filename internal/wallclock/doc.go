// Package wallclock is the clock of a process: the machine's, or in a build with the tag testclock one that a test moves.
//
// It is for the programs' main packages. Everything else is given its clock.
package wallclock

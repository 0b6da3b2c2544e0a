// Package archtest reads the repository and holds it to its own rules: which package may import which, that every
// package says what it is, that what ships links no test code, and that the text of the project names no path outside it.
//
// It has no code of its own beside the tests. They parse the tree instead of asking `go list`: a test that reads files is
// run again when one of them changes, a test that asks a child process is cached and goes on passing.
package archtest

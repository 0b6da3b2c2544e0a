// Package e2e holds the tests of the programs as they are installed: real processes that are built as "make build" does,
// killed and started again, with a software TPM beside them, judged by what they print, what they leave on the disk and
// what another implementation (openssl) makes of it.
//
// It has no code beside the tests. What a single part does is that part's tests' to show.
package e2e

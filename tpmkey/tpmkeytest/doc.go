// Package tpmkeytest gives tests a TPM: real TPM code in a process of its own, behind a Unix socket.
//
// [Swtpm] starts the swtpm program; [Simulator] builds and starts the reference implementation; [Any] takes what the
// machine has. Each test gets a TPM of its own, with its own seeds, at a "unix:PATH" that the programs take as
// [tpm] device. A relay stands in front of it, so that a test can see the commands, let some of them fail, and count
// what was left loaded.
//
// Where a TPM cannot be had the test is skipped, with the reason. The environment variable BCD_REQUIRE_TPM=1, for
// continuous integration, makes that a failure.
//
// Only tests import it. It is no model of a chip's speed or of its faults beyond response codes.
package tpmkeytest

//go:build !(cgo && tpmsimulator)

// Command simulator is the TPM reference implementation behind a Unix socket, for tests. Without the build tag
// tpmsimulator, or without cgo, it only says so: every build of the module compiles it, and few machines have what the
// simulator needs. Package tpmkeytest builds and starts it.
package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "simulator: built without cgo and the tag tpmsimulator")
	os.Exit(1)
}

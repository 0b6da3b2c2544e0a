package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"bcd": main})
}

// recordedHost is a recorded server whose hardware is trusted.
const recordedHost = "../../testdata/hosts/dell-r750-h100"

// The contract of the command line: what each command prints, its exit status, and what it leaves on the disk. bcd runs as
// a process of its own, the control plane that it joins in the test's. Each script says at its top which rows it proves.
func TestScripts(t *testing.T) {
	host, err := filepath.Abs(recordedHost)
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Values[world{}] = &world{t: t}
			env.Setenv("HOST", host)
			env.Setenv("HOME", env.WorkDir)
			for _, name := range []string{"CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "WATCHDOG_USEC", "BCD_FAKEHW", "HTTPS_PROXY", "https_proxy"} {
				env.Setenv(name, "")
			}
			// Files of a test are made with the umask of whoever runs it; what is promised must not depend on it.
			return os.Chmod(env.WorkDir, 0o700)
		},
		Condition:     condition,
		Cmds:          scriptCommands,
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") == "1", // rewrites what cmp compares with
	})
}

package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		program: main,
	})
}

// The contract of the command line. Each script says at its top which rows it proves.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CONFIG_HOME", "")
			env.Setenv(envContext, "")
			env.Setenv(envSecret, "correct horse battery staple")
			env.Setenv("NO_COLOR", "1")
			// Files of a test are made with the umask of whoever runs it; the modes that are promised must not depend on it.
			return os.Chmod(env.WorkDir, 0o700)
		},
		Condition: condition,
		Cmds:      scriptCommands,
	})
}

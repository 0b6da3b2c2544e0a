package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/better-compute/bcd/controlplane/store"
	"github.com/better-compute/bcd/controlplane/tokens"
)

// The guide "Joining" holds, command by command: testdata/joining.txtar.
func TestJoiningGuide(t *testing.T) {
	path := filepath.Dir(build(t, "./cmd/bcd")) + ":" + filepath.Dir(build(t, "./cmd/better-compute"))
	testscript.Run(t, testscript.Params{
		Files:               []string{"testdata/joining.txtar"},
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Deadline:            time.Now().Add(2 * time.Minute),
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", path+":"+env.Getenv("PATH"))
			env.Setenv("HOME", env.WorkDir)
			for _, name := range []string{"XDG_CONFIG_HOME", "BETTER_COMPUTE_CONTEXT", "HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"} {
				env.Setenv(name, "")
			}
			return os.Chmod(env.WorkDir, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":     scriptExits,
			"ready":     scriptReady,
			"bind":      scriptBind,
			"waitfor":   scriptWaitFor,
			"append":    scriptAppend,
			"block":     scriptBlock,
			"call":      scriptCall,
			"keys":      scriptKeys,
			"host":      scriptHost,
			"discovery": scriptDiscovery,
			"proxy": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv("HTTPS_PROXY", "http://"+startProxy(t, map[string]string{args[0]: args[1]}).address)
			},
		},
	})
}

// scriptExits runs a command that must end with the status: exits 75 bcd ….
func scriptExits(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	var exit *exec.ExitError
	if err := ts.Exec(args[1], args[2:]...); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// scriptContext is a context file.
type scriptContext struct {
	URL    string `toml:"url"`
	APIKey string `toml:"api_key"`
}

func readContext(path string) (c scriptContext, err error) {
	text, err := os.ReadFile(path)
	if err == nil {
		err = toml.Unmarshal(text, &c)
	}
	return c, err
}

// scriptReady waits until the server that a context file names answers.
func scriptReady(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, "no server answers at the URL in "+args[0], func() bool {
		c, err := readContext(ts.MkAbs(args[0]))
		if err != nil {
			return false
		}
		response, err := http.Get(c.URL + "/.well-known/better-compute")
		if err != nil {
			return false
		}
		response.Body.Close()
		return response.StatusCode == http.StatusOK
	})
}

func until(ts *testscript.TestScript, otherwise string, holds func() bool) {
	for end := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			ts.Fatalf("%s", otherwise)
		}
	}
}

// scriptBind puts the group of a pattern's first match in a file into a variable: bind ID stdout '(jt_[0-9a-z]+)'.
func scriptBind(ts *testscript.TestScript, _ bool, args []string) {
	var found []string
	until(ts, args[1]+" does not match "+args[2], func() bool {
		found = regexp.MustCompile(args[2]).FindStringSubmatch(ts.ReadFile(args[1]))
		return found != nil
	})
	ts.Setenv(args[0], found[1])
}

// scriptWaitFor waits until a file matches a pattern.
func scriptWaitFor(ts *testscript.TestScript, _ bool, args []string) {
	until(ts, args[0]+" never matched "+args[1], func() bool {
		text, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && regexp.MustCompile(args[1]).Match(text)
	})
}

// scriptAppend appends a file to another one: append server.toml more.toml.
func scriptAppend(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0]) + "\n" + ts.ReadFile(args[1])
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

// scriptBlock runs a block of the guide as it stands, but for ids: block file [placeholder id…]. Each occurrence of the
// placeholder is replaced by the next id.
func scriptBlock(ts *testscript.TestScript, _ bool, args []string) {
	text := ts.ReadFile(args[0])
	if len(args) > 1 {
		for _, id := range args[2:] {
			text = strings.Replace(text, args[1], id, 1)
		}
	}
	if strings.Contains(text, "…") {
		ts.Fatalf("%s still has a placeholder", args[0])
	}
	ts.Check(ts.Exec("sh", "-euc", text))
}

// scriptCall calls a method of the HTTP API with a file as it stands, but for variables: call context method request answer.
func scriptCall(ts *testscript.TestScript, _ bool, args []string) {
	c, err := readContext(ts.MkAbs(args[0]))
	ts.Check(err)
	body := os.Expand(ts.ReadFile(args[2]), ts.Getenv)
	r, err := http.NewRequest(http.MethodPost, c.URL+"/"+strings.ReplaceAll(args[1], ".", "/"), strings.NewReader(body))
	ts.Check(err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+c.APIKey)
	response, err := http.DefaultClient.Do(r)
	ts.Check(err)
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	ts.Check(err)
	if response.StatusCode != http.StatusOK {
		ts.Fatalf("%s answers %s: %s", args[1], response.Status, answer)
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[3]), answer, 0o600))
}

// scriptKeys checks that a file is a JSON object with exactly the keys: keys file key….
func scriptKeys(ts *testscript.TestScript, _ bool, args []string) {
	var object map[string]any
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(args[0])), &object))
	var got []string
	for key := range object {
		got = append(got, key)
	}
	want := slices.Sorted(slices.Values(args[1:]))
	slices.Sort(got)
	if !slices.Equal(got, want) {
		ts.Fatalf("%s has the keys %q, want %q", args[0], got, want)
	}
}

// scriptHost makes a machine of the recorded server, with a product UUID and a serial of its own: host folder serial.
func scriptHost(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	ts.Check(os.CopyFS(dir, os.DirFS(recordedHost)))
	sum := sha256.Sum256([]byte(args[1]))
	for name, value := range map[string]string{
		"product_uuid":   fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]),
		"product_serial": args[1],
	} {
		ts.Check(os.WriteFile(filepath.Join(dir, "sys/class/dmi/id", name), []byte(value+"\n"), 0o600))
	}
}

// scriptDiscovery makes a token for a machine that boots from the network, as a module of the control plane does, in the
// database beside the running server: discovery dir file mac.
func scriptDiscovery(ts *testscript.TestScript, _ bool, args []string) {
	ctx := context.Background()
	db, err := store.Open(ctx, store.Options{Path: filepath.Join(ts.MkAbs(args[0]), "control-plane.db"), Now: time.Now})
	ts.Check(err)
	_, token, err := (&tokens.Service{Store: db}).Issue(ctx, tokens.IssueRequest{
		Role: store.TokenDiscovery, PoolID: ts.Getenv("POOL"), TTL: time.Hour, MAC: args[2], IssuedBy: "boot",
	})
	ts.Check(errors.Join(err, db.Close()))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), append(bytes.Clone(token.Bytes()), '\n'), 0o600))
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// recorded is the hardware of a real server, as files: what a machine without hardware of its own to trust, most virtual
// ones for instance, joins with here.
const recorded = "testdata/hosts/dell-r750-h100"

// hardware is what the machine joins with.
type hardware struct {
	flags []string // --host-root where it is a recorded server's
	what  string   // for the summary
}

// findHardware asks bcd what this machine shows and falls back to a recorded server.
func (w *workshop) findHardware(ctx context.Context) (hardware, error) {
	type report struct {
		Claims struct {
			Vendor      string `json:"vendor"`
			ProductName string `json:"product_name"`
		} `json:"claims"`
		Trusted    bool  `json:"trusted"`
		Unreadable []any `json:"unreadable"`
	}
	args := []string{"claims", "--output", "json"}
	w.command("bcd claims --output json")
	var own report
	if err := w.askJSON(ctx, &own, "bcd", args...); err != nil {
		return hardware{}, err
	}
	name := func(r report) string { return fmt.Sprintf("%s %s", r.Claims.Vendor, r.Claims.ProductName) }
	if own.Trusted && len(own.Unreadable) == 0 {
		w.checked("this machine, a %s, has hardware identifiers of its own: it joins with them", name(own))
		return hardware{what: name(own) + ", this machine"}, nil
	}
	why := "This machine shows too few hardware identifiers to be trusted (most virtual machines do)"
	if len(own.Unreadable) > 0 {
		why = "Some of this machine's hardware identifiers are for root to read"
	}
	w.say("%s.", why)
	w.say("So it joins with those of a recorded server, by --host-root. All else is real.")
	root := filepath.Join(w.repo, recorded)
	var server report
	if err := w.askJSON(ctx, &server, "bcd", append(args, "--host-root", root)...); err != nil {
		return hardware{}, err
	}
	if !server.Trusted {
		return hardware{}, fmt.Errorf("the recorded server in %s is not trusted", root)
	}
	return hardware{flags: []string{"--host-root", root}, what: name(server) + ", recorded (see step 2)"}, nil
}

// keys is where the node's key is made.
type keys struct {
	config string // lines of config.toml
	kind   string // as bcd names it
	pem    string // what node.key is
	what   string // for the summary
}

// findTPM starts a software TPM where there is one, else keys live in files.
func (w *workshop) findTPM(ctx context.Context) (keys, error) {
	if _, err := exec.LookPath("swtpm"); err != nil {
		w.say("swtpm, a software TPM, is not installed: the node's key lives in a file (mode 0600).")
		return keys{config: "[tpm]\nmode = \"off\"\n", kind: "file", pem: "PRIVATE KEY", what: "in a file: swtpm is not installed"}, nil
	}
	device, err := w.startTPM(ctx, nodeTPM)
	if err != nil {
		return keys{}, err
	}
	w.checked("swtpm, a software TPM, stands for the chip: the node's key is made in it and never leaves it")
	return keys{
		config: fmt.Sprintf("[tpm]\nmode = \"required\"\ndevice = %q\n", device),
		kind:   "tpm", pem: "TSS2 PRIVATE KEY", what: "in the TPM (swtpm); node.key holds only its record",
	}, nil
}

// listens waits until the program has made its socket.
func (p *process) listens(ctx context.Context, socket string) error {
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := os.Stat(socket); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-p.ended:
			return p.fail("it ended: %s", p.cmd.ProcessState)
		case <-poll.C:
		}
	}
}

// anotherServer makes a tree of another server: the recorded one with a serial and a UUID of its own.
func (w *workshop) anotherServer(name string) error {
	if err := os.CopyFS(w.path(name), os.DirFS(filepath.Join(w.repo, recorded))); err != nil {
		return err
	}
	for file, value := range map[string]string{
		"product_uuid":   "3f0d6f0e-7c3a-4b5e-9a41-6d2f8c1be7a3",
		"product_serial": "7KQX9P3",
	} {
		if err := w.write(filepath.Join(name, "sys/class/dmi/id", file), value+"\n"); err != nil {
			return err
		}
	}
	return nil
}

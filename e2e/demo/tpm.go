package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// The two ways in that the demo shows.
const (
	byToken = "join-token"
	byTPM   = "tpm"
)

const (
	identified = "identity.json" // what an operator lists of the machine's TPM
	nodeTPM    = "tpm"           // the folder of the machine's TPM
	otherTPM   = "other-tpm"     // and of another machine's
)

// tellServer has the control plane take machines by their TPM, and in no other way.
func (s *story) tellServer() error {
	s.say("This control plane takes no token at all. Who may join is known by the chip.")
	config := fmt.Sprintf("[api]\nlisten = %q\n[gateway]\nlisten = %[1]q\n[join]\ncert_ttl_seconds = %d\n[attestors.tpm]\n",
		"127.0.0.1:0", int(s.life.Seconds()))
	s.command("cat > cp/server.toml <<'END'")
	s.output("\n" + config + "END")
	return s.write("cp/server.toml", config)
}

// joinByTPM lists the machine's TPM and joins.
func (s *story) joinByTPM(ctx context.Context) error {
	s.step("The operator lists the machine's TPM, and the machine joins without a token")
	r, err := s.run(ctx, 0, "bcd", "tpm", "identify", "--config", node)
	if err != nil {
		return err
	}
	s.output(r.stdout)
	s.command("bcd tpm identify --config " + node + " --output json > " + identified)
	if r, err = s.ask(ctx, 0, "bcd", "tpm", "identify", "--config", node, "--output", "json"); err != nil {
		return err
	}
	if err := s.write(identified, r.stdout); err != nil {
		return err
	}
	if r, err = s.run(ctx, 0, "better-compute", "ek-allow", "add", identified, "--note", "demo"); err != nil {
		return err
	}
	s.output(r.stdout)
	s.checked("what crossed the desk is a hash: no secret, nothing to steal, nothing to expire")

	args := append([]string{"join", "--config", node, "--attestor", byTPM}, s.hardware.flags...)
	if r, err = s.run(ctx, 0, "bcd", args...); err != nil {
		return err
	}
	s.output(r.stdout)
	s.joinTook = r.took
	joined := regexp.MustCompile(`^joined: (node_[0-9a-z]+) \(key: tpm\)\n$`).FindStringSubmatch(r.stdout)
	if joined == nil {
		return r.fail("it did not join with a key in the TPM")
	}
	s.nodeID = joined[1]
	key, err := os.ReadFile(s.path("cp/bcd/state/node.key"))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(key), "-----BEGIN "+s.keys.pem+"-----") {
		return fmt.Errorf("node.key is no %s", s.keys.pem)
	}
	s.checked("joined in %s: the TPM proved that it is the listed one, and that the node's key was made in it", seconds(r.took))
	if r, err = s.run(ctx, 0, "bcd", args...); err != nil {
		return err
	}
	s.output(r.stdout)
	if r.stdout != "already joined: "+s.nodeID+"\n" {
		return r.fail("a second join is not a matter of course")
	}
	return nil
}

// strangerByTPM lets a machine with another TPM try.
func (s *story) strangerByTPM(ctx context.Context) error {
	s.step("Another machine tries, with the same configuration and a TPM of its own")
	if err := s.anotherServer(stranger); err != nil {
		return err
	}
	device, err := s.startTPM(ctx, otherTPM)
	if err != nil {
		return err
	}
	config, err := os.ReadFile(s.path(node))
	if err != nil {
		return err
	}
	s.command("sed s," + nodeTPM + "/socket," + otherTPM + "/socket, " + node + " > stranger.toml")
	if err := s.write("stranger.toml", strings.Replace(string(config), "unix:"+s.path(nodeTPM+"/socket"), device, 1)); err != nil {
		return err
	}
	r, err := s.run(ctx, 77, "bcd", "join", "--config", "stranger.toml", "--data-dir", "stranger", "--host-root", stranger, "--attestor", byTPM)
	if err != nil {
		return err
	}
	s.output(r.stderr)
	if !strings.Contains(r.stderr, "Join refused") || strings.Contains(r.stderr, "tpm:ek") {
		return r.fail("the machine must learn that it is refused, and not why")
	}
	if _, err := os.Stat(s.path("stranger/identity.json")); !errors.Is(err, fs.ErrNotExist) {
		return r.fail("it has an identity: %w", err)
	}
	s.checked("the machine learns only that it was refused (exit status 77)")
	return s.otherSide(ctx)
}

// startTPM makes and starts a software TPM in a folder, and returns it as [tpm] device names it.
func (w *workshop) startTPM(ctx context.Context, dir string) (device string, err error) {
	if err := os.Mkdir(w.path(dir), 0o700); err != nil {
		return "", err
	}
	p, err := w.start("swtpm", "socket", "--tpm2", "--tpmstate", "dir="+dir, "--server", "type=unixio,path="+filepath.Join(dir, "socket"),
		"--flags", "not-need-init,startup-clear")
	if err != nil {
		return "", err
	}
	return "unix:" + w.path(filepath.Join(dir, "socket")), p.listens(ctx, w.path(filepath.Join(dir, "socket")))
}

// needsTPM is the error of a machine without a software TPM, where the story is about one.
func needsTPM() error {
	if _, err := exec.LookPath("swtpm"); err != nil {
		return fmt.Errorf("swtpm, a software TPM, is not installed: apt-get install swtpm: %w", err)
	}
	return nil
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// story is what the demo shows, step by step. Later steps need what earlier ones found.
type story struct {
	*workshop
	life     time.Duration
	attestor string
	begun    time.Time

	server   *process
	hardware hardware
	keys     keys
	tokenID  string
	nodeID   string
	joinTook time.Duration
	leaves   []leaf
	sessions []string
}

// leaf is a certificate that the node had, and its key.
type leaf struct {
	serial string
	until  time.Time
	key    string // the content of node.key
}

const (
	node     = "node.toml" // the machine's config.toml
	token    = "join-token"
	stolen   = "stolen-token"
	stranger = "another-server"
)

func (s *story) tell(ctx context.Context) error {
	s.line("%s", s.paint(bold, "A machine joins a control plane, stays connected and renews its certificate"))
	s.line("")
	s.say("Two programs, real processes, real TLS, a real database, on this machine alone. To repeat it by hand:")
	s.command("export PATH=" + s.programs + ":$PATH")
	s.command(`export BETTER_COMPUTE_SECRET=$(openssl rand -hex 16) BETTER_COMPUTE_CONTEXT=cp/admin.toml`)
	s.command("cd " + s.dir + "   # removed when the demo ends")
	join, refusal := s.join, s.refusal
	if s.attestor == byTPM {
		join, refusal = s.joinByTPM, s.strangerByTPM
	}
	for _, step := range []func(context.Context) error{
		s.controlPlane, s.machine, join, s.connectAndRenew, refusal, s.goodbye,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	s.summary()
	return nil
}

// controlPlane makes the keys and starts the server.
func (s *story) controlPlane(ctx context.Context) error {
	s.step("The control plane: its CAs and keys, then JoinService, gateway and API on loopback")
	if _, err := s.run(ctx, 0, "better-compute", "pki", "init", "--trust-domain", "demo.example", "--dir", "cp"); err != nil {
		return err
	}
	if s.attestor == byTPM {
		if err := s.tellServer(); err != nil {
			return err
		}
	}
	serve := []string{"serve", "--dir", "cp", "--log-level", "warn"}
	if s.attestor == byToken {
		serve = append(serve, "--listen", "127.0.0.1:0", "--gateway-listen", "127.0.0.1:0", "--cert-ttl", s.life.String())
	}
	begun := time.Now()
	p, err := s.start("better-compute", serve...)
	if err != nil {
		return err
	}
	s.server = p
	var api, gateway string
	for {
		line, err := p.next(ctx)
		if err != nil {
			return err
		}
		if line == "ready" {
			break
		}
		switch name, rest, _ := strings.Cut(line, "  "); name {
		case "HTTP API":
			api = strings.TrimSpace(rest)
		case "gateway":
			gateway, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
		}
	}
	if api == "" || gateway == "" {
		return p.fail("it does not say where it listens")
	}
	s.checked("up in %s: API %s, gateway %s", seconds(time.Since(begun)), api, gateway)
	s.checked("its first start made a tenant, a site and a pool, for certificates of %s (a day is usual; this is a demo)", s.life)
	return nil
}

// machine finds hardware and a TPM and writes the configuration.
func (s *story) machine(ctx context.Context) (err error) {
	s.step("The machine: what it is, where its key will live, whom it trusts")
	if s.hardware, err = s.findHardware(ctx); err != nil {
		return err
	}
	if s.keys, err = s.findTPM(ctx); err != nil {
		return err
	}
	config, err := os.ReadFile(s.path("cp/bcd/config.toml"))
	if err != nil {
		return err
	}
	s.command("cp cp/bcd/join-encryption.jwk .")
	key, err := os.ReadFile(s.path("cp/bcd/join-encryption.jwk"))
	if err != nil {
		return err
	}
	if err := s.write("join-encryption.jwk", string(key)); err != nil {
		return err
	}
	s.command("cat cp/bcd/config.toml - > " + node + " <<'END'")
	s.output("\n" + s.keys.config + "END")
	if err := s.write(node, string(config)+"\n"+s.keys.config); err != nil {
		return err
	}
	s.checked("%s has the gateway's address and three pins, and no secret: all that the machine trusts", node)
	return nil
}

// join makes a token and joins.
func (s *story) join(ctx context.Context) error {
	s.step("A join token lets one machine in")
	r, err := s.run(ctx, 0, "better-compute", "join-tokens", "create", "--ttl", "10m", "--max-uses", "1", "--out", token)
	if err != nil {
		return err
	}
	s.tokenID = strings.TrimSpace(r.stdout)
	info, err := os.Stat(s.path(token))
	if err != nil {
		return err
	}
	if mode := info.Mode().Perm(); mode != 0o600 || strings.Contains(r.stdout+r.stderr, "bcjt_") {
		return r.fail("the token is not kept from others: its file has mode %04o", mode)
	}
	secret, err := os.ReadFile(s.path(token))
	if err != nil {
		return err
	}
	if err := s.keptNowhere(strings.TrimSpace(string(secret))); err != nil {
		return err
	}
	s.checked("%s, one use, in a file of mode 0600 and nowhere else; the control plane keeps only a hash", s.tokenID)
	s.say("Somebody copies the file. We come back to this.")
	s.command("cp -p " + token + " " + stolen)
	if err := s.write(stolen, string(secret)); err != nil {
		return err
	}

	args := append([]string{"join", "--config", node, "--token-file", token}, s.hardware.flags...)
	if r, err = s.run(ctx, 0, "bcd", args...); err != nil {
		return err
	}
	s.output(r.stdout)
	s.joinTook = r.took
	joined := regexp.MustCompile(`^joined: (node_[0-9a-z]+) \(key: (\w+)\)\n$`).FindStringSubmatch(r.stdout)
	if joined == nil || joined[2] != s.keys.kind {
		return r.fail("it did not join with a key of the kind %q", s.keys.kind)
	}
	s.nodeID = joined[1]
	pem, err := os.ReadFile(s.path("cp/bcd/state/node.key"))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(string(pem), "-----BEGIN "+s.keys.pem+"-----") {
		return fmt.Errorf("node.key is no %s", s.keys.pem)
	}
	if _, err := os.Stat(s.path(token)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the token file is still there after the join: %w", err)
	}
	s.checked("joined in %s; the token file is deleted", seconds(r.took))
	if r, err = s.run(ctx, 0, "bcd", args...); err != nil {
		return err
	}
	s.output(r.stdout)
	if r.stdout != "already joined: "+s.nodeID+"\n" {
		return r.fail("a second join is not a matter of course")
	}
	return nil
}

// keptNowhere checks that no file of the control plane has the token's secret.
func (s *story) keptNowhere(bearer string) error {
	_, secret, found := strings.Cut(bearer, ".")
	if !found || secret == "" {
		return errors.New("the token's file holds no token")
	}
	return filepath.WalkDir(s.path("cp"), func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name)
		if err == nil && bytes.Contains(content, []byte(secret)) {
			err = fmt.Errorf("the token's secret is in %s", name)
		}
		return err
	})
}

// connectAndRenew runs the daemon through two renewals.
func (s *story) connectAndRenew(ctx context.Context) error {
	s.step(fmt.Sprintf("The daemon: one session with the gateway, a new certificate at 60 %% of the old one's %s", s.life))
	args := append([]string{"node", "--config", node, "--log-format", "json"}, s.hardware.flags...)
	daemon, err := s.start("bcd", args...)
	if err != nil {
		return err
	}
	e, err := s.watch(ctx, daemon, "open session")
	if err != nil {
		return err
	}
	if err := s.opened(e); err != nil {
		return err
	}
	for range 2 {
		e, err := s.watch(ctx, daemon, "renewed")
		if err != nil {
			return err
		}
		if e.Node != s.nodeID {
			return daemon.fail("it renewed as %q", e.Node)
		}
		if e, err = s.watch(ctx, daemon, "open session"); err != nil {
			return err
		}
		if err := s.opened(e); err != nil {
			return err
		}
	}
	s.checked("three certificates, three keys, one node, and not a moment without a session")

	r, err := s.run(ctx, 0, "bcd", "status", "--config", node)
	if err != nil {
		return err
	}
	s.output(r.stdout)
	if last := s.leaves[2].serial; !strings.Contains(r.stdout, last) || !strings.Contains(r.stdout, "connected since ") {
		return r.fail("the daemon is not connected with certificate %s", last)
	}
	begun := time.Now()
	s.command("kill %bcd   # SIGTERM")
	if err := daemon.stop(); err != nil {
		return err
	}
	s.checked("stopped in %s", seconds(time.Since(begun)))
	return nil
}

// opened notes a session. Its certificate and the node's key must be new ones.
func (s *story) opened(e entry) error {
	key, err := os.ReadFile(s.path("cp/bcd/state/node.key"))
	if err != nil {
		return err
	}
	l := leaf{serial: e.Certificate.Serial, until: e.Certificate.NotAfter, key: string(key)}
	for _, older := range s.leaves {
		if older.serial == l.serial || older.key == l.key {
			return fmt.Errorf("the node has the certificate or the key of an earlier session (certificate %s)", l.serial)
		}
	}
	s.leaves, s.sessions = append(s.leaves, l), append(s.sessions, e.Session)
	return nil
}

// refusal lets another machine try the used-up token.
func (s *story) refusal(ctx context.Context) error {
	s.step("Another machine tries the copied token, which is used up")
	if err := s.anotherServer(stranger); err != nil {
		return err
	}
	r, err := s.run(ctx, 77, "bcd", "join", "--config", node, "--data-dir", "stranger", "--host-root", stranger, "--token-file", stolen)
	if err != nil {
		return err
	}
	s.output(r.stderr)
	if !strings.Contains(r.stderr, "Join refused") || strings.Contains(r.stderr, "exhausted") {
		return r.fail("the machine must learn that it is refused, and not why")
	}
	if _, err := os.Stat(s.path("stranger/identity.json")); !errors.Is(err, fs.ErrNotExist) {
		return r.fail("it has an identity: %w", err)
	}
	s.checked("the machine learns only that it was refused (exit status 77)")
	return s.otherSide(ctx)
}

// event is one of the control plane's.
type event struct {
	At   time.Time `json:"at"`
	Type string    `json:"type"`
	Data struct {
		NodeID    string `json:"nodeId"`
		SessionID string `json:"sessionId"`
		Reason    string `json:"reason"`
	} `json:"data"`
}

// otherSide checks that the control plane's events tell the same story.
func (s *story) otherSide(ctx context.Context) error {
	s.command("better-compute events list | grep refused")
	shown, err := s.ask(ctx, 0, "better-compute", "events", "list")
	if err != nil {
		return err
	}
	for line := range strings.Lines(shown.stdout) {
		if strings.Contains(line, "refused") {
			s.output(line)
		}
	}
	r, err := s.ask(ctx, 0, "better-compute", "events", "list", "--output", "json")
	if err != nil {
		return err
	}
	var told []string
	lines := json.NewDecoder(strings.NewReader(r.stdout))
	for lines.More() {
		var e event
		if err := lines.Decode(&e); err != nil {
			return r.fail("not an event: %w", err)
		}
		switch e.Type {
		case "node.joined":
			told = append(told, "joined "+e.Data.NodeID)
		case "node.connected":
			told = append(told, "connected "+e.Data.SessionID)
		case "node.disconnected":
			told = append(told, "disconnected "+e.Data.SessionID+" "+e.Data.Reason)
		case "security.join.refused":
			told = append(told, "refused "+e.Data.Reason)
		}
	}
	// A session ends as superseded once the next one stands.
	want := []string{
		"joined " + s.nodeID,
		"connected " + s.sessions[0],
		"connected " + s.sessions[1], "disconnected " + s.sessions[0] + " superseded",
		"connected " + s.sessions[2], "disconnected " + s.sessions[1] + " superseded",
		"disconnected " + s.sessions[2] + " closed",
		"refused " + s.reason(),
	}
	if !slices.Equal(told, want) {
		return r.fail("the control plane tells %q, want %q", told, want)
	}
	s.checked("the operator's event says why: %s", s.reason())
	return nil
}

// reason is why the other machine is refused.
func (s *story) reason() string {
	if s.attestor == byTPM {
		return "tpm:ek"
	}
	return "join-token:exhausted"
}

// goodbye ends the control plane.
func (s *story) goodbye(context.Context) error {
	s.step("Good night")
	s.command("kill %better-compute   # SIGTERM")
	if err := s.server.stop(); err != nil {
		return err
	}
	s.checked("stopped; no process and no file is left")
	return nil
}

// summary says what was seen.
func (s *story) summary() {
	s.line("")
	s.line("%s", s.paint(bold, "What you saw"))
	s.row("machine", "%s", s.hardware.what)
	s.row("node", "%s", s.nodeID)
	s.row("key", "%s", s.keys.what)
	if s.attestor == byTPM {
		s.row("token", "none")
	} else {
		s.row("token", "%s: one use, spent once", s.tokenID)
	}
	for i, l := range s.leaves {
		name, how := "", "renewed, with a new key"
		if i == 0 {
			name, how = "certificates", "joined, in "+seconds(s.joinTook)
		}
		s.row(name, "%s  until %s  %s", short(l.serial), clock(l.until), how)
	}
	s.row("sessions", "%d in a row, never a moment without one", len(s.sessions))
	s.row("refused", "1: \"Join refused\" for the machine, %q for the operator", s.reason())
	s.row("stand-ins", "%s", s.standIns())
	s.row("time", "%s", seconds(time.Since(s.begun)))
	s.line("")
}

// standIns names what was not this machine's own.
func (s *story) standIns() string {
	var names []string
	if len(s.hardware.flags) > 0 {
		names = append(names, "a recorded server's hardware")
	}
	if s.keys.kind == "tpm" {
		names = append(names, "a software TPM")
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ") + "; nothing else"
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }

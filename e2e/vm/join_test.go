package vm_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/better-compute/bcd/e2e/vm"
)

// life is how long a certificate is good: long enough for a shutdown and a boot in it, and short enough to wait for a renewal.
const life = 5 * time.Minute

// A server's years, with the hardware, the kernel and the init system of a server: it joins by its TPM and connects, is turned off
// and on, renews, has its TPM cleared, gets another disk, and then another TPM.
// Req: RS-010
func TestServerWithTPM(t *testing.T) {
	img := image(t)
	dir := t.TempDir()
	maker, other := newMaker(t, filepath.Join(dir, "maker")), newMaker(t, filepath.Join(dir, "other-maker"))
	first, second := filepath.Join(dir, "tpm1"), filepath.Join(dir, "tpm2")
	for tpm, m := range map[string]vm.Maker{first: maker, second: other} {
		if err := m.NewTPM(t.Context(), tpm); err != nil {
			t.Fatal(err)
		}
	}
	roots, err := maker.Roots() // the other maker is not trusted
	if err != nil {
		t.Fatal(err)
	}
	p := startPlane(t, dir, roots, life)
	s := newServer(t, p, dir)
	s.Image, s.Disk, s.TPM = img, filepath.Join(dir, "disk1"), first

	node := s.joinsAndConnects(p)
	s.off()
	s.boot()
	s.connectsAgainAndRenews(p, node)
	s.isClearedAndRecovers(p, node)
	s.off()

	s.Disk = filepath.Join(dir, "disk2")
	s.boot()
	s.install()
	s.comesBackOnAnotherDisk(p, node)
	s.off()

	s.TPM = second
	s.boot()
	s.becomesAnotherNode(p, node)
	s.off()
}

func newMaker(t *testing.T, dir string) vm.Maker {
	t.Helper()
	m, err := vm.NewMaker(dir)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// joins runs a join and returns the node's id.
func (s *server) joins(how string) (node string) {
	s.t.Helper()
	r := s.run(0, "bcd join --attestor tpm"+how)
	joined := regexp.MustCompile(`(?m)^joined: (node_[0-9a-z]+) \(key: tpm\)$`).FindStringSubmatch(r.Stdout)
	if joined == nil {
		s.t.Fatalf("the join says %q%s", r.Stdout, r.Stderr)
	}
	return joined[1]
}

// joinsAndConnects boots a new server, joins it by its maker's certificate and starts the unit.
func (s *server) joinsAndConnects(p *plane) (node string) {
	s.t.Helper()
	s.boot()
	s.install()
	hardware := s.run(0, "cd /sys/class/dmi/id && cat product_uuid product_serial sys_vendor && cat /sys/class/net/en*/address && ls /dev/tpmrm0").Stdout
	if want := s.UUID + "\n" + s.Serial + "\n" + s.Vendor + "\n" + s.MAC + "\n/dev/tpmrm0\n"; hardware != want {
		s.t.Fatalf("the kernel shows\n%s, not\n%s", hardware, want)
	}
	if shown := s.run(0, "bcd tpm identify").Stdout; !strings.Contains(shown, "RSA 2048, template L-1 (0x01c00002)") {
		s.t.Errorf("its TPM is\n%s", shown)
	}
	node = s.joins("")
	s.run(0, "systemctl enable --now bcd")
	s.connected(node)
	shown := p.node(node)
	for field, want := range map[string]string{"session": "connected", "identity generation": "1", "hardware key trusted": "true"} {
		if shown[field] != want {
			s.t.Errorf("the control plane shows %s %q, want %q: %q", field, shown[field], want, shown)
		}
	}
	joined := p.events("node.joined")
	if len(joined) != 1 || joined[0]["attestor"] != "tpm" || joined[0]["nodeKey"] != "tpm" || joined[0]["nodeId"] != node {
		s.t.Errorf("joined: %v", joined)
	}
	return node
}

// connectsAgainAndRenews is what an installed server does by itself after a boot.
func (s *server) connectsAgainAndRenews(p *plane, node string) {
	s.t.Helper()
	booted := s.connected(node)
	renewed := s.waitFor("renewed", life, func(st status) bool {
		return st.State == "connected" && st.Identity.Serial != booted.Identity.Serial
	})
	if renewed.Identity.NodeID != node || renewed.Identity.Key != "tpm" {
		s.t.Errorf("renewed: %+v", renewed)
	}
	if got := p.events("node.joined"); len(got) != 1 {
		s.t.Errorf("it joined %d times", len(got))
	}
	if got := p.node(node)["identity generation"]; got != "1" {
		s.t.Errorf("the renewed identity has the generation %q", got)
	}
}

// losesItsKey waits until the running daemon says that it has lost its key. It keeps what it has.
func (s *server) losesItsKey() {
	s.t.Helper()
	const why = "the TPM was cleared or replaced, and no longer loads the key"
	lost := s.waitFor("without its key", commandPatience, func(st status) bool { return st.State != "connected" && strings.Contains(st.Problem, why) })
	if lost.Identity.Key != "tpm" {
		s.t.Errorf("without its key: %+v", lost)
	}
	s.run(0, "systemctl is-active bcd")
}

// isClearedAndRecovers clears the TPM below the running node and does what the documentation says.
func (s *server) isClearedAndRecovers(p *plane, node string) {
	s.t.Helper()
	before := s.run(0, "bcd tpm identify --output json").Stdout
	s.run(0, "tpm2_clear")
	if after := s.run(0, "bcd tpm identify --output json").Stdout; after != before {
		s.t.Errorf("the cleared TPM is\n%s, and was\n%s", after, before)
	}
	s.run(0, "systemctl restart --no-block bcd")
	s.losesItsKey()
	if got := s.joins(" --reset --yes"); got != node {
		s.t.Errorf("it became %s, and was %s", got, node)
	}
	s.connected(node)
	if got := p.node(node)["identity generation"]; got != "2" {
		s.t.Errorf("the identity has the generation %q", got)
	}
}

// comesBackOnAnotherDisk joins from a disk that knows nothing: the TPM is the server.
func (s *server) comesBackOnAnotherDisk(p *plane, node string) {
	s.t.Helper()
	if got := s.joins(""); got != node {
		s.t.Errorf("it became %s, and was %s", got, node)
	}
	s.run(0, "systemctl enable --now bcd")
	s.connected(node)
	if got := p.node(node)["identity generation"]; got != "3" {
		s.t.Errorf("the identity has the generation %q", got)
	}
}

// becomesAnotherNode is the server with another TPM, of a maker that nobody trusts: neither its disk nor its hardware lets it in as the
// old node. The operator ends that and lists the TPM.
func (s *server) becomesAnotherNode(p *plane, node string) {
	s.t.Helper()
	s.losesItsKey()
	refused := func(reason string) {
		s.t.Helper()
		before := len(p.events("security.join.refused"))
		if r := s.run(77, "bcd join --reset --yes --attestor tpm"); !strings.Contains(r.Stderr, "Join refused") {
			s.t.Errorf("the join says %s", r.Stderr)
		}
		got := p.events("security.join.refused")[before:] // two where an earlier request is sent again first
		if len(got) == 0 {
			s.t.Errorf("nothing was refused, want %s", reason)
		}
		for _, e := range got {
			if e["reason"] != reason {
				s.t.Errorf("refused for %v, want %s", e["reason"], reason)
			}
		}
	}
	refused("tpm:ek")
	listed := filepath.Join(s.Share, "identity.json")
	if err := os.WriteFile(listed, []byte(s.run(0, "bcd tpm identify --output json").Stdout), 0o600); err != nil {
		s.t.Fatal(err)
	}
	p.run("ek-allow", "add", listed)
	refused("join:reclaim")
	p.run("nodes", "cordon", node)
	p.run("nodes", "delete", node, "--yes")
	next := s.joins(" --reset --yes")
	if next == node {
		s.t.Errorf("it became the deleted %s", node)
	}
	s.connected(next)
	if got := p.node(node)["state"]; got != "retired" {
		s.t.Errorf("the old node is %q", got)
	}
}

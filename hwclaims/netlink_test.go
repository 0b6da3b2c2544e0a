package hwclaims_test

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/hwclaims"
)

// inNewNetwork runs f on a thread in a network namespace of its own, or skips.
func inNewNetwork(t *testing.T, f func() error) {
	t.Helper()
	done := make(chan error)
	skip := make(chan error, 1)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			skip <- err
			return
		}
		done <- f()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-skip:
		t.Skipf("cannot make a network namespace: %v", err)
	default:
	}
}

func TestLinksOfTheKernel(t *testing.T) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("iproute2 is not installed")
	}
	var links []hwclaims.Link
	inNewNetwork(t, func() error {
		for _, args := range [][]string{
			{"link", "add", "bridge7", "address", "02:00:00:00:77:01", "type", "bridge"},
			{"link", "add", "veth7", "address", "02:00:00:00:77:02", "type", "veth", "peer", "name", "veth8"},
		} {
			if out, err := exec.CommandContext(t.Context(), "ip", args...).CombinedOutput(); err != nil {
				t.Logf("ip %s: %s", strings.Join(args, " "), out) // a kernel without the driver; what it has is checked below
			}
		}
		var err error
		links, err = hwclaims.DumpLinks()
		return err
	})
	find := func(name string) *hwclaims.Link {
		i := slices.IndexFunc(links, func(l hwclaims.Link) bool { return l.Name == name })
		if i < 0 {
			return nil
		}
		return &links[i]
	}
	if lo := find("lo"); lo == nil || lo.Index != 1 || lo.ARPHRD != unix.ARPHRD_LOOPBACK || lo.Device {
		t.Errorf("lo is %+v in %+v", lo, links)
	}
	for name, want := range map[string][2]string{"bridge7": {"bridge", "02:00:00:00:77:01"}, "veth7": {"veth", "02:00:00:00:77:02"}} {
		l := find(name)
		if l == nil {
			t.Logf("this kernel makes no %s", want[0])
			continue
		}
		if l.Kind != want[0] || l.Addr != want[1] || l.Permanent != "" || l.ARPHRD != 1 || l.Device {
			t.Errorf("%s is %+v", name, *l)
		}
	}
}

// The driver's permanent address and the one of the link dump are the same.
func TestEthtoolAgreesWithNetlink(t *testing.T) {
	links, err := hwclaims.DumpLinks()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		asked := hwclaims.EthtoolPermanent(l.Name)
		if strings.Trim(asked, "0:") == "" {
			asked = ""
		}
		if l.ARPHRD == 1 && asked != l.Permanent {
			t.Errorf("%s: ethtool says %q, netlink %q", l.Name, asked, l.Permanent)
		}
	}
	if got := hwclaims.EthtoolPermanent("no-such-link"); got != "" {
		t.Errorf("a link that is not there has the address %q", got)
	}
	if got := hwclaims.EthtoolPermanent(strings.Repeat("x", 40)); got != "" {
		t.Errorf("a name that is too long has the address %q", got)
	}
}

// attribute encodes one netlink attribute, padded to four bytes.
func attribute(kind uint16, value []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value))) //nolint:gosec // a few bytes
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func linkMessage(attributes ...[]byte) []byte {
	b := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint16(b[2:], 1)
	binary.NativeEndian.PutUint32(b[4:], 7)
	for _, a := range attributes {
		b = append(b, a...)
	}
	return b
}

func bondedLink() []byte {
	return linkMessage(
		attribute(unix.IFLA_IFNAME, []byte("eno2\x00")),
		attribute(unix.IFLA_ADDRESS, []byte{0xb4, 0x96, 0x91, 0, 0, 0x10}),
		attribute(unix.IFLA_PERM_ADDRESS, []byte{0xb4, 0x96, 0x91, 0, 0, 0x11}),
		attribute(unix.IFLA_PHYS_PORT_NAME, []byte("p1\x00")),
		attribute(unix.IFLA_PARENT_DEV_NAME, []byte("0000:31:00.1\x00")),
		attribute(unix.IFLA_PARENT_DEV_BUS_NAME, []byte("pci\x00")),
		attribute(0x7f, []byte{1, 2, 3}), // a kernel newer than we know
	)
}

func TestParseLink(t *testing.T) {
	got, err := hwclaims.ParseLink(bondedLink())
	want := hwclaims.Link{
		Name: "eno2", Index: 7, ARPHRD: 1, Addr: "b4:96:91:00:00:10", Permanent: "b4:96:91:00:00:11", PortName: "p1", Bus: "pci", Device: true,
	}
	if err != nil || got != want {
		t.Errorf("got %+v (%v), want %+v", got, err, want)
	}
	veth, err := hwclaims.ParseLink(linkMessage(
		attribute(unix.IFLA_IFNAME, []byte("veth0\x00")),
		attribute(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attribute(unix.IFLA_INFO_KIND, []byte("veth\x00"))),
	))
	if err != nil || veth.Kind != "veth" || veth.Device {
		t.Errorf("got %+v (%v)", veth, err)
	}
	for name, message := range map[string][]byte{
		"short":     make([]byte, 15),
		"nameless":  linkMessage(),
		"path":      linkMessage(attribute(unix.IFLA_IFNAME, []byte("../eno1\x00"))),
		"dots":      linkMessage(attribute(unix.IFLA_IFNAME, []byte("..\x00"))),
		"cut":       bondedLink()[:30],
		"long attr": linkMessage([]byte{0xff, 0xff, 3, 0}),
	} {
		if l, err := hwclaims.ParseLink(message); err == nil {
			t.Errorf("%s: accepted as %+v", name, l)
		}
	}
}

func TestParseBonding(t *testing.T) {
	got := hwclaims.ParseBonding(`Ethernet Channel Bonding Driver: v6.1

Bonding Mode: IEEE 802.3ad Dynamic link aggregation
Permanent HW addr: 00:00:00:00:00:00

Slave Interface: eno1
MII Status: up
Permanent HW addr: b4:96:91:00:00:10
Slave queue ID: 0

Slave Interface: eno2
Permanent HW addr: b4:96:91:00:00:11
`)
	if len(got) != 2 || got["eno1"] != "b4:96:91:00:00:10" || got["eno2"] != "b4:96:91:00:00:11" {
		t.Errorf("got %v", got)
	}
}

// A recorded root with the text of a namespace is no live one: netlink would answer for this machine.
func TestRecordedNamespaceIsNotOurs(t *testing.T) {
	r := newRoot(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Skipf("no /proc: %v", err)
	}
	r.write("proc/1/ns/pid", "", 0o444)
	if err := os.Symlink(own, r.dir+"/proc/1/ns/net"); err != nil {
		t.Fatal(err)
	}
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	for _, d := range report.Dropped {
		if d.What == "eth0" {
			t.Errorf("this machine's link %+v stands in a recorded machine's report", d)
		}
	}
	if len(report.Claims.MACs) != 0 {
		t.Errorf("claims %v", report.Claims.MACs)
	}
}

// Another root whose process 1 has our network namespace is asked by netlink.
func TestRootOfTheSameNetwork(t *testing.T) {
	r := newRoot(t)
	r.write("proc/1/ns/pid", "", 0o444)
	if err := os.Symlink("/proc/self/ns/net", r.dir+"/proc/1/ns/net"); err != nil {
		t.Fatal(err)
	}
	links, err := hwclaims.DumpLinks()
	if err != nil {
		t.Fatal(err)
	}
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	seen := len(report.Claims.MACs)
	for _, d := range report.Dropped {
		if slices.ContainsFunc(links, func(l hwclaims.Link) bool { return l.Name == d.What }) {
			seen++
		}
	}
	if seen == 0 && len(links) > 1 {
		t.Errorf("no link of %+v stands in %+v", links, report)
	}
	if slices.ContainsFunc(report.Notes, func(n string) bool { return strings.Contains(n, "sysfs") }) {
		t.Errorf("notes %q", report.Notes)
	}
}

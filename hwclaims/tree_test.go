package hwclaims_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/hwclaims/profile"
)

// root is a machine's root written to disk.
type root struct {
	t   *testing.T
	dir string
}

func newRoot(t *testing.T) root {
	t.Helper()
	return root{t: t, dir: t.TempDir()}
}

func (r root) write(name, content string, mode os.FileMode) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // a machine's root is public
		r.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), mode); err != nil {
		r.t.Fatal(err)
	}
}

// link makes a relative symbolic link, as sysfs has them.
func (r root) link(name, to string) {
	r.t.Helper()
	target, err := filepath.Rel(filepath.Dir(filepath.Join(r.dir, name)), filepath.Join(r.dir, to))
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.dir, filepath.Dir(name)), 0o755); err != nil { //nolint:gosec // as above
		r.t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(r.dir, to), 0o755); err != nil { //nolint:gosec // as above
		r.t.Fatal(err)
	}
	if err := os.Symlink(target, filepath.Join(r.dir, name)); err != nil {
		r.t.Fatal(err)
	}
}

// machine writes what the kernel of a profile's machine shows: /sys, /proc and the device tree.
func (r root) machine(m profile.Machine) {
	r.t.Helper()
	r.write("proc/version", "Linux version 6.12.0\n", 0o444)
	if m.DMI != nil {
		r.link("sys/class/dmi/id", "sys/devices/virtual/dmi/id")
		r.write("sys/class/dmi/id/modalias", "dmi:\n", 0o444)
	}
	for name, f := range m.DMI {
		switch {
		case !f.Present:
		case f.Error != "":
			r.write("sys/class/dmi/id/"+name, "secret\n", 0)
		default:
			r.write("sys/class/dmi/id/"+name, strings.TrimSuffix(f.Bytes, "\n")+"\n", 0o444)
		}
	}
	if m.DeviceTreeSerial != "" {
		r.write("sys/firmware/devicetree/base/serial-number", m.DeviceTreeSerial, 0o444)
	}
	var bonded strings.Builder
	for i, n := range m.NICs {
		r.nic(i+1, n)
		if n.Bus != "virtual" && n.PermAddr != "" && n.PermAddr != n.Addr {
			fmt.Fprintf(&bonded, "\nSlave Interface: %s\nMII Status: up\nSpeed: 25000 Mbps\nPermanent HW addr: %s\n", n.Name, n.PermAddr)
		}
	}
	if bonded.Len() > 0 {
		r.write("proc/1/net/bonding/bond0", "Ethernet Channel Bonding Driver: v6.12\n\nBonding Mode: 802.3ad\n"+bonded.String(), 0o444)
	}
	for i, g := range m.GPUs {
		model := "NVIDIA H100 80GB HBM3"
		if m.VGPU {
			model = "NVIDIA A40-8Q"
		}
		r.write(fmt.Sprintf("proc/driver/nvidia/gpus/0000:%02x:00.0/information", i+1),
			fmt.Sprintf("Model: \t\t %s\nIRQ:   \t\t 18\nGPU UUID: \t %s\nVideo BIOS: \t ??.??.??.??.??\nBus Type: \t PCIe\nDevice Minor: \t %d\n",
				model, g.UUID, i), 0o444)
	}
}

func (r root) nic(index int, n profile.NIC) {
	bus := map[string]string{
		"pci": "pci0000:00/0000:%02x:00.0", "usb": "pci0000:00/0000:00:14.0/usb1/1-%d/1-1:1.0", "virtio": "pci0000:00/0000:%02x:01.0/virtio0",
		"vmbus": "LNXSYSTM:00/vmbus/%02x", "platform": "platform/%02x.ethernet", "sdio": "platform/%02x.mmc/mmc_host/mmc1/mmc1:0001:1",
	}
	device := ""
	if n.Bus != "virtual" {
		form, ok := bus[n.Bus]
		if !ok {
			r.t.Fatalf("no place in sysfs for a device on bus %q", n.Bus)
		}
		device = "sys/devices/" + fmt.Sprintf(form, index)
	}
	where := path.Join(device, "net", n.Name)
	if device == "" {
		where = "sys/devices/virtual/net/" + n.Name
	}
	r.link("sys/class/net/"+n.Name, where)
	r.write(where+"/ifindex", fmt.Sprintln(index), 0o444)
	r.write(where+"/address", n.Addr+"\n", 0o444)
	if n.ARPHRD != nil {
		r.write(where+"/type", fmt.Sprintln(*n.ARPHRD), 0o444)
	}
	if n.AddrAssignType != nil {
		r.write(where+"/addr_assign_type", fmt.Sprintln(*n.AddrAssignType), 0o444)
	}
	if device == "" {
		return
	}
	r.link(where+"/device", device)
	r.link(device+"/subsystem", "sys/bus/"+n.Bus)
	r.link(device+"/driver", "sys/bus/"+n.Bus+"/drivers/"+n.Driver)
	r.write(device+"/uevent", "DRIVER="+n.Driver+"\n", 0o444)
	if n.VF {
		r.link(device+"/physfn", "sys/devices/pci0000:00/0000:00:1f.0")
	}
	if n.Representor {
		r.write(where+"/phys_port_name", fmt.Sprintf("pf0sf%d\n", index), 0o444)
	}
}

// withoutRootsRights runs f on a thread that obeys file modes even for root.
func withoutRootsRights(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err := unix.Capget(&header, &data[0]); err != nil {
			done <- err
			return
		}
		data[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
		if err := unix.Capset(&header, &data[0]); err != nil {
			done <- err
			return
		}
		f()
	}()
	if err := <-done; err != nil {
		t.Fatalf("cannot give up the right to read every file: %v", err)
	}
}

func collectRoot(t *testing.T, o hwclaims.Options) hwclaims.Report {
	t.Helper()
	var r hwclaims.Report
	var err error
	withoutRootsRights(t, func() { r, err = hwclaims.Collect(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The machines as files on disk, read as a container reads its host.
//
// Req: HC-001 HC-002 HC-003
func TestMachineTrees(t *testing.T) {
	eachMachine(t, func(t *testing.T, m profile.Machine, want expectation) {
		r := newRoot(t)
		r.machine(m)
		checkMachine(t, collectRoot(t, hwclaims.Options{Root: r.dir}), want)
	})
}

// The recorded hosts meet the expectation of the machine of their name.
func TestRecordedHosts(t *testing.T) {
	hosts, err := filepath.Glob("../testdata/hosts/*/sys")
	if err != nil || len(hosts) == 0 {
		t.Fatalf("no hosts: %v", err)
	}
	for _, sys := range hosts {
		host := filepath.Dir(sys)
		t.Run(filepath.Base(host), func(t *testing.T) {
			_, want := machine(t, filepath.Join(machinesDir, filepath.Base(host)+".json"))
			r := collectRoot(t, hwclaims.Options{Root: host})
			checkMachine(t, r, want)
			if r.Claims.Hostname == "" || r.Claims.Vendor == "" || len(r.Unreadable) > 0 {
				t.Errorf("report %+v", r)
			}
		})
	}
}

package hwclaims_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/hwclaims/profile"
	"github.com/better-compute/bcd/internal/fault"
)

func ptr[T any](v T) *T { return &v }

// nicCase is a network card as a driver reports it, and the claim that it makes, "" for none.
type nicCase struct {
	nic  profile.NIC
	want string
}

func ether(name, driver, bus, addr string) profile.NIC {
	return profile.NIC{Name: name, Driver: driver, Bus: bus, Addr: addr, PermAddr: addr, AddrAssignType: ptr(0), ARPHRD: ptr(1)}
}

func with(n profile.NIC, change func(*profile.NIC)) profile.NIC {
	change(&n)
	return n
}

var nicCases = map[string]nicCase{
	"ethernet on PCI":                     {ether("eno1", "ice", "pci", mac1), mac1},
	"wi-fi on SDIO":                       {ether("wlan0", "brcmfmac", "sdio", "dc:a6:32:00:00:02"), "dc:a6:32:00:00:02"},
	"switch port":                         {with(ether("swp1", "dsa", "platform", mac1), func(n *profile.NIC) { n.Kind = "dsa" }), mac1},
	"hyper-v":                             {ether("eth0", "hv_netvsc", "vmbus", "00:15:5d:00:00:01"), "00:15:5d:00:00:01"},
	"address was set":                     {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.Addr, n.AddrAssignType = "02:11:22:00:00:01", ptr(3) }), mac1},
	"no assignment type":                  {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.AddrAssignType = nil }), mac1},
	"no permanent address, never changed": {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.PermAddr = "" }), mac1},
	"permanent address of zeros":          {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.PermAddr = "00:00:00:00:00:00" }), mac1},

	"no permanent address, stolen":    {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.PermAddr, n.AddrAssignType = "", ptr(2) }), ""},
	"no permanent address, set":       {with(ether("eno1", "ice", "pci", mac1), func(n *profile.NIC) { n.PermAddr, n.AddrAssignType = "", ptr(3) }), ""},
	"invented by the driver":          {with(ether("eno1", "fm10k", "pci", mac1), func(n *profile.NIC) { n.AddrAssignType = ptr(1) }), ""},
	"BMC gadget":                      {ether("enx", "rndis_host", "usb", "b0:3a:f2:b6:05:9f"), ""},
	"BMC gadget, bus unknown":         {ether("usb0", "cdc_ether", "", mac1), ""},
	"thunderbolt":                     {ether("tb0", "thunderbolt-net", "thunderbolt", mac1), ""},
	"bluetooth":                       {ether("bnep0", "", "bluetooth", mac1), ""},
	"infiniband":                      {with(ether("ib0", "mlx5_core", "pci", mac1), func(n *profile.NIC) { n.ARPHRD = ptr(32) }), ""},
	"virtual function":                {with(ether("eno1v0", "iavf", "pci", mac1), func(n *profile.NIC) { n.VF = true }), ""},
	"virtual function's driver":       {ether("ens1", "ixgbevf", "pci", mac1), ""},
	"representor":                     {with(ether("pf0hpf", "mlx5_core", "pci", mac1), func(n *profile.NIC) { n.Representor = true }), ""},
	"sub-function":                    {ether("enp3s0f0s0", "mlx5_core.sf", "auxiliary", mac1), ""},
	"bond":                            {with(ether("bond0", "bonding", "virtual", mac1), func(n *profile.NIC) { n.Kind = "bond" }), ""},
	"tunnel with a permanent address": {ether("ip6tnl0", "", "virtual", mac1), ""},
	"kind without a bus":              {with(ether("veth0", "veth", "", mac1), func(n *profile.NIC) { n.Kind = "veth" }), ""},
	"virtio, local":                   {ether("eth0", "virtio_net", "virtio", "02:fc:00:00:00:01"), ""},
	"no MAC":                          {ether("pf0", "mlx5_core", "pci", "ch:64"), ""},
	"EUI-64":                          {ether("eno1", "ice", "pci", "b8:ce:f6:03:00:00:33:3e"), ""},
	"Realtek without EEPROM":          {ether("enp1s0", "r8169", "pci", "00:e0:4c:68:00:03"), ""},
	"rshim":                           {ether("tmfifo_net0", "virtio_net", "virtio", "00:1a:ca:ff:ff:01"), ""},
}

// Req: HC-003 HC-010
func TestNetworkCards(t *testing.T) {
	for name, test := range nicCases {
		t.Run(name, func(t *testing.T) {
			r := hwclaims.CollectProfile(profile.Machine{NICs: []profile.NIC{test.nic}})
			checkNIC(t, r, test)
		})
	}
}

func checkNIC(t *testing.T, r hwclaims.Report, test nicCase) {
	t.Helper()
	if got := strings.Join(r.Claims.MACs, " "); got != test.want {
		t.Errorf("claims %q, want %q (dropped %+v)", got, test.want, r.Dropped)
	}
	named := slices.ContainsFunc(r.Dropped, func(d hwclaims.Drop) bool { return d.What == test.nic.Name && d.Why != "" })
	if named != (test.want == "") {
		t.Errorf("drop of %s: %v in %+v", test.nic.Name, named, r.Dropped)
	}
}

// What only sysfs shows.
func TestNetworkCardsOfSysfs(t *testing.T) {
	const device, class = "sys/devices/pci0000:00/0000:00:1c.0/0000:01:00.0", "sys/class/net/"
	for name, test := range map[string]struct {
		change func(root)
		want   string
	}{
		"plain":            {func(root) {}, mac1},
		"removable device": {func(r root) { r.write(device+"/removable", "removable\n", 0o444) }, ""},
		"removable bridge": {func(r root) { r.write("sys/devices/pci0000:00/0000:00:1c.0/removable", "removable\n", 0o444) }, ""},
		"fixed":            {func(r root) { r.write(device+"/removable", "fixed\n", 0o444) }, mac1},
		"virtual function": {func(r root) { r.link(device+"/physfn", "sys/devices/pci0000:00/0000:02:00.0") }, ""},
		"function in a guest": {func(r root) {
			r.write(device+"/vendor", "0x15b3\n", 0o444)
			r.write(device+"/device", "0x1018\n", 0o444)
		}, ""},
		"its physical one": {func(r root) {
			r.write(device+"/vendor", "0x15b3\n", 0o444)
			r.write(device+"/device", "0x1017\n", 0o444)
		}, mac1},
		"uplink port":        {func(r root) { r.write(class+"eno1/phys_port_name", "p0\n", 0o444) }, mac1},
		"host function":      {func(r root) { r.write(class+"eno1/phys_port_name", "pf0hpf\n", 0o444) }, ""},
		"function port":      {func(r root) { r.write(class+"eno1/phys_port_name", "c1pf0vf3\n", 0o444) }, ""},
		"unreadable address": {func(r root) { r.chmod(class+"eno1/address", 0) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t)
			r.link(class+"eno1", device+"/net/eno1")
			r.link(device+"/net/eno1/device", device)
			r.link(device+"/subsystem", "sys/bus/pci")
			r.link(device+"/driver", "sys/bus/pci/drivers/ice")
			for file, text := range map[string]string{"address": mac1, "type": "1", "addr_assign_type": "0", "ifindex": "2"} {
				r.write(class+"eno1/"+file, text+"\n", 0o644)
			}
			r.write(class+"bonding_masters", "bond0\n", 0o444)
			test.change(r)
			report := collectRoot(t, hwclaims.Options{Root: r.dir})
			checkNIC(t, report, nicCase{nic: profile.NIC{Name: "eno1"}, want: test.want})
			if len(report.Dropped) != 4+map[bool]int{true: 1}[test.want == ""] { // four identity files are absent
				t.Errorf("dropped %+v", report.Dropped)
			}
		})
	}
}

// A tree whose links are folders and whose facts are in uevent files: copies of /sys look so.
func TestNetworkCardsOfCopiedSysfs(t *testing.T) {
	for name, test := range map[string]struct{ uevent, want string }{
		"pci": {"DRIVER=ice\nMODALIAS=pci:v00008086d00001593\n", mac1},
		"usb": {"DRIVER=cdc_ncm\nMODALIAS=usb:v0B1Fp03EE\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t)
			for file, text := range map[string]string{"address": mac1, "type": "1", "addr_assign_type": "0", "device/uevent": test.uevent} {
				r.write("sys/class/net/eno1/"+file, text+"\n", 0o444)
			}
			checkNIC(t, collectRoot(t, hwclaims.Options{Root: r.dir}), nicCase{nic: profile.NIC{Name: "eno1"}, want: test.want})
		})
	}
}

func (r root) chmod(name string, mode os.FileMode) {
	r.t.Helper()
	if err := os.Chmod(filepath.Join(r.dir, name), mode); err != nil {
		r.t.Fatal(err)
	}
}

func TestUnreadableIsNotAbsent(t *testing.T) {
	r := newRoot(t)
	m, _ := machine(t, machinesDir+"/nonroot-eacces.json")
	r.machine(m)
	r.chmod("sys/class/dmi/id/board_serial", 0o644)
	r.write("sys/class/dmi/id/board_serial", "VM174S009999\n", 0o644)
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	var unreadable []string
	for _, u := range report.Unreadable {
		unreadable = append(unreadable, u.What)
		if u.Path != "/sys/class/dmi/id/"+u.What || u.Reason != "permission denied" {
			t.Errorf("%+v", u)
		}
	}
	if diff := cmp.Diff([]string{"product_serial", "chassis_serial", "product_uuid"}, unreadable); diff != "" {
		t.Errorf("unreadable (-want +got):\n%s", diff)
	}
	if !fault.Is(report.Incomplete(), fault.HardwareUnreadable) {
		t.Errorf("Incomplete() = %v", report.Incomplete())
	}
	a := report.Assess()
	if !slices.Equal(a.Classes, []hwclaims.Class{hwclaims.ClassSerial, hwclaims.ClassMAC}) {
		t.Fatalf("classes %v", a.Classes)
	}
	if a.Trusted {
		t.Error("a board's serial and MACs are trusted although the product's serial and UUID cannot be read")
	}
}

func TestUnreadableFolders(t *testing.T) {
	r := newRoot(t)
	r.write("sys/class/dmi/id/sys_vendor", "Dell Inc.\n", 0o444)
	r.write("sys/class/net/eno1/address", mac1, 0o444)
	r.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: "+gpu1, 0o444)
	for _, dir := range []string{"sys/class/dmi", "sys/class/net", "proc/driver/nvidia/gpus"} {
		r.chmod(dir, 0)
	}
	t.Cleanup(func() {
		for _, dir := range []string{"sys/class/dmi", "sys/class/net", "proc/driver/nvidia/gpus"} {
			r.chmod(dir, 0o755)
		}
	})
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	got := map[string]bool{}
	for _, u := range report.Unreadable {
		got[u.What] = true
	}
	want := []string{"board_serial", "chassis_serial", "gpu", "mac", "product_serial", "product_uuid"}
	if diff := cmp.Diff(want, slices.Sorted(maps.Keys(got))); diff != "" {
		t.Errorf("unreadable (-want +got):\n%s", diff)
	}
	if report.Incomplete() == nil {
		t.Error("the report is complete")
	}
}

func TestBadText(t *testing.T) {
	m := profile.Machine{DMI: map[string]profile.Field{
		"product_serial": {Present: true, Bytes: "SN\xff\xfe"},
		"board_serial":   {Present: true, Bytes: strings.Repeat("7X", 200)},
		"chassis_serial": {Present: true, Bytes: "\x00\x00"},
		"product_uuid":   {Present: true, Bytes: "Not Settable\n"},
		"sys_vendor":     {Present: true, Bytes: "Bad\xffVendor"},
		"product_name":   {Present: true, Bytes: "C6100           \n"},
	}}
	r := hwclaims.CollectProfile(m)
	want := hwclaims.Claims{ProductUUID: "Not Settable", ProductName: "C6100"}
	if diff := cmp.Diff(want, r.Claims, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("claims (-want +got):\n%s", diff)
	}
	drops := map[string]hwclaims.Drop{}
	for _, d := range r.Assess().Dropped {
		drops[d.What] = d
	}
	for what, wantDrop := range map[string]hwclaims.Drop{
		"product_serial": {What: "product_serial", Value: "0x534efffe", Why: "not valid UTF-8"},
		"chassis_serial": {What: "chassis_serial", Value: "0x0000", Why: "blank"},
		"product_uuid":   {What: "product_uuid", Value: "Not Settable", Why: "not a UUID"},
	} {
		if drops[what] != wantDrop {
			t.Errorf("got %+v, want %+v", drops[what], wantDrop)
		}
	}
	if drops["board_serial"].Why == "" {
		t.Error("a serial of 400 bytes becomes a claim")
	}
}

func TestLimitsOfClaims(t *testing.T) {
	var m profile.Machine
	for i := range 70 {
		m.NICs = append(m.NICs, ether(fmt.Sprintf("eno%d", i), "ice", "pci", fmt.Sprintf("70:b5:e8:00:51:%02x", i)))
		m.GPUs = append(m.GPUs, profile.GPU{UUID: fmt.Sprintf("GPU-6b200001-0000-4000-8000-0000000077%02x", 69-i)})
	}
	r := hwclaims.CollectProfile(m)
	if err := r.Claims.Validate(); err != nil {
		t.Error(err)
	}
	if len(r.Claims.MACs) != 64 || len(r.Claims.GPUUUIDs) != 64 || !slices.IsSorted(r.Claims.GPUUUIDs) {
		t.Errorf("%d MACs, %d GPUs", len(r.Claims.MACs), len(r.Claims.GPUUUIDs))
	}
	if len(r.Dropped) != 4+6+6 { // no DMI, and what is over the limits
		t.Errorf("dropped %+v", r.Dropped)
	}
}

func TestSharedAddressOfOneCard(t *testing.T) {
	r := hwclaims.CollectProfile(profile.Machine{NICs: []profile.NIC{ether("swp1", "ice", "pci", mac1), ether("swp2", "ice", "pci", mac1)}})
	if !slices.Equal(r.Claims.MACs, []string{mac1}) {
		t.Errorf("claims %v", r.Claims.MACs)
	}
}

func TestFleetPlaceholdersAreNotClaimed(t *testing.T) {
	m, _ := machine(t, machinesDir+"/dell-r750-h100.json")
	r := hwclaims.CollectProfile(m, "7xq4t23", "70-b5-e8-00-50-28", "gpu-1c0ffee0-0001-4a2b-8c3d-0123456789ab")
	if c := r.Claims; c.ProductSerial != "" || c.ChassisSerial != "" || slices.Contains(c.MACs, mac1) || len(c.GPUUUIDs) > 0 {
		t.Errorf("claims %+v", c)
	}
	if r.Claims.BoardSerial == "" || len(r.Claims.MACs) != 2 {
		t.Errorf("more than the fleet's values are gone: %+v", r.Claims)
	}
}

func TestHostnameOfAnotherRoot(t *testing.T) {
	r := newRoot(t)
	r.write("proc/sys/kernel/hostname", "asker\n", 0o444)
	if got := collectRoot(t, hwclaims.Options{Root: r.dir}).Claims.Hostname; got != "asker" {
		t.Errorf("host name %q without /etc/hostname", got)
	}
	r.write("etc/hostname", "gpu-node-17\n", 0o444)
	if got := collectRoot(t, hwclaims.Options{Root: r.dir + "/"}).Claims.Hostname; got != "gpu-node-17" {
		t.Errorf("host name %q", got)
	}
}

func TestDeviceTreeStandsInForSMBIOS(t *testing.T) {
	r := newRoot(t)
	r.write("sys/firmware/devicetree/base/serial-number", "10000000abcd0001\x00", 0o444)
	r.write("sys/firmware/devicetree/base/model", "Raspberry Pi 4 Model B Rev 1.2\x00", 0o444)
	r.write("sys/devices/soc0/serial_number", "42424242\n", 0o444)
	c := collectRoot(t, hwclaims.Options{Root: r.dir}).Claims
	if c.DeviceTreeSerial != "10000000abcd0001" || c.ProductName != "Raspberry Pi 4 Model B Rev 1.2" {
		t.Errorf("claims %+v", c)
	}
	r.write("sys/class/dmi/id/product_serial", serial1+"\n", 0o444)
	c = collectRoot(t, hwclaims.Options{Root: r.dir}).Claims
	if c.DeviceTreeSerial != "" || c.ProductSerial != serial1 {
		t.Errorf("claims with SMBIOS %+v", c)
	}
}

func TestSystemOnChipSerial(t *testing.T) {
	r := newRoot(t)
	r.write("sys/devices/soc0/serial_number", "1421921047731\n", 0o444)
	if got := collectRoot(t, hwclaims.Options{Root: r.dir}).Claims.DeviceTreeSerial; got != "1421921047731" {
		t.Errorf("serial %q", got)
	}
}

func TestRootThatIsNotThere(t *testing.T) {
	_, err := hwclaims.Collect(t.Context(), hwclaims.Options{Root: filepath.Join(t.TempDir(), "none")})
	if !fault.Is(err, fault.Config) || fault.HintOf(err) == "" {
		t.Errorf("error %v", err)
	}
}

// A recorded tree cannot lead the reader out of its root.
func TestRootIsNotLeft(t *testing.T) {
	outside := newRoot(t)
	outside.write("product_serial", "OUTSIDE7731\n", 0o444)
	r := newRoot(t)
	r.write("sys/class/dmi/id/sys_vendor", "Dell Inc.\n", 0o444)
	if err := os.Symlink(filepath.Join(outside.dir, "product_serial"), filepath.Join(r.dir, "sys/class/dmi/id/product_serial")); err != nil {
		t.Fatal(err)
	}
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	if report.Claims.ProductSerial != "" {
		t.Errorf("claims %+v", report.Claims)
	}
	if report.Incomplete() == nil {
		t.Error("a link out of the root is treated as absent")
	}
}

func TestThisMachine(t *testing.T) {
	r, err := hwclaims.Collect(t.Context(), hwclaims.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Claims.Validate(); err != nil {
		t.Error(err)
	}
	if name, _ := os.Hostname(); r.Claims.Hostname != name {
		t.Errorf("host name %q, want %q", r.Claims.Hostname, name)
	}
	links, err := hwclaims.DumpLinks()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		claimed := slices.Contains(r.Claims.MACs, l.Permanent) || slices.Contains(r.Claims.MACs, l.Addr)
		dropped := slices.ContainsFunc(r.Dropped, func(d hwclaims.Drop) bool { return d.What == l.Name })
		if l.Name != "lo" && claimed == dropped {
			t.Errorf("link %s is claimed: %v, dropped: %v", l.Name, claimed, dropped)
		}
	}
}

func TestDocument(t *testing.T) {
	r := newRoot(t)
	m, want := machine(t, machinesDir+"/gigabyte-g292.json")
	r.machine(m)
	b, err := json.Marshal(collectRoot(t, hwclaims.Options{Root: r.dir}).Document())
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		expectation
		Dropped     []map[string]string `json:"dropped"`
		HardwareKey string              `json:"hardware_key"`
		Claims      map[string]any      `json:"claims"`
		Unreadable  []any               `json:"unreadable"`
		Notes       []string            `json:"notes"`
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.Survivors, got.Survivors); diff != "" {
		t.Errorf("survivors (-want +got):\n%s", diff)
	}
	if !slices.Equal(got.Classes, want.Classes) || !slices.Equal(got.KeyClasses, want.KeyClasses) || !got.Trusted || len(got.HardwareKey) != 64 {
		t.Errorf("document %s", b)
	}
	if len(got.Dropped) != 2 || got.Dropped[0]["what"] == "" || got.Dropped[0]["value"] != "01234567890123456789AB" || got.Dropped[0]["why"] == "" {
		t.Errorf("dropped %v", got.Dropped)
	}
	if got.Claims["product_serial"] != "01234567890123456789AB" {
		t.Errorf("claims %v", got.Claims)
	}
	empty, err := json.Marshal(hwclaims.Report{}.Document())
	if err != nil || strings.Contains(string(empty), "null") {
		t.Errorf("empty document %s (%v)", empty, err)
	}
}

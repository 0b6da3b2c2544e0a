package hwclaims_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/better-compute/bcd/hwclaims"
	"github.com/better-compute/bcd/hwclaims/profile"
)

// unreadable returns "what: reason" of what could not be read.
func unreadable(r hwclaims.Report) []string {
	var all []string
	for _, u := range r.Unreadable {
		all = append(all, u.What+" "+u.Path+": "+u.Reason)
	}
	return all
}

// A recorded tree may hold anything where a file should be. Nothing of it blocks, and none of it is absent in silence.
func TestOddFiles(t *testing.T) {
	const serial = "sys/class/dmi/id/product_serial"
	for name, test := range map[string]struct {
		make       func(root)
		want, drop string // what is claimed; why it is not
		unreadable []string
	}{
		"folder": {
			make: func(r root) { r.write(serial+"/x", "", 0o444) }, drop: "unreadable (is a directory)",
			unreadable: []string{"product_serial /" + serial + ": is a directory"},
		},
		"pipe": {make: func(r root) {
			if err := unix.Mkfifo(filepath.Join(r.dir, serial), 0o644); err != nil {
				r.t.Fatal(err)
			}
		}, drop: "unreadable (not a regular file)", unreadable: []string{"product_serial /" + serial + ": not a regular file"}},
		"loop": {
			make: func(r root) {
				if err := os.Symlink("product_serial", filepath.Join(r.dir, serial)); err != nil {
					r.t.Fatal(err)
				}
			}, drop: "unreadable (too many levels of symbolic links)",
			unreadable: []string{"product_serial /" + serial + ": too many levels of symbolic links"},
		},
		"terabyte": {make: func(r root) {
			r.write(serial, serial1, 0o644)
			if err := os.Truncate(filepath.Join(r.dir, serial), 1<<40); err != nil {
				r.t.Skipf("cannot make a sparse file: %v", err)
			}
		}, want: serial1},
		"megabyte":  {make: func(r root) { r.write(serial, strings.Repeat("7X", 1<<19), 0o444) }, drop: "longer than 256 bytes"},
		"UTF-16":    {make: func(r root) { r.write(serial, "\xff\xfe7\x00X\x00", 0o444) }, drop: "not valid UTF-8"},
		"cut UTF-8": {make: func(r root) { r.write(serial, "7XQ4T2\xc3", 0o444) }, drop: "not valid UTF-8"},
		"0xFF":      {make: func(r root) { r.write(serial, "\xff\xff\xff\xff", 0o444) }, drop: "not valid UTF-8"},
		"padded":    {make: func(r root) { r.write(serial, " "+serial1+"  \x00\x00junk\n", 0o444) }, want: serial1},
		"NUL alone": {make: func(r root) { r.write(serial, "\x00", 0o444) }, drop: "blank"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t)
			r.write("sys/class/dmi/id/sys_vendor", "Dell Inc.\n", 0o444)
			test.make(r)
			report := collectRoot(t, hwclaims.Options{Root: r.dir})
			if report.Claims.ProductSerial != test.want {
				t.Errorf("claims %q, want %q", report.Claims.ProductSerial, test.want)
			}
			i := slices.IndexFunc(report.Dropped, func(d hwclaims.Drop) bool { return d.What == "product_serial" })
			switch {
			case test.drop == "" && i >= 0:
				t.Errorf("dropped %+v", report.Dropped[i])
			case test.drop != "" && (i < 0 || report.Dropped[i].Why != test.drop):
				t.Errorf("dropped %+v, want %q", report.Dropped, test.drop)
			}
			if got := unreadable(report); !slices.Equal(got, test.unreadable) {
				t.Errorf("unreadable %q, want %q", got, test.unreadable)
			}
		})
	}
}

// A driver's folder that may not be looked into is not the same as no driver.
func TestUnreadableDriverFolder(t *testing.T) {
	r := newRoot(t)
	r.write("proc/driver/nvidia/gpus/0000:01:00.0/information", "GPU UUID: "+gpu1, 0o444)
	r.chmod("proc/driver", 0)
	t.Cleanup(func() { r.chmod("proc/driver", 0o755) })
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	if want := []string{"gpu /proc/driver/nvidia: permission denied"}; !slices.Equal(unreadable(report), want) {
		t.Errorf("unreadable %q, want %q", unreadable(report), want)
	}
}

// A link whose device may not be looked at is neither virtual nor physical.
func TestUnreadableDevice(t *testing.T) {
	for _, closed := range []string{"sys/class/net/eno1", "sys/class/net/eno1/device"} {
		t.Run(closed, func(t *testing.T) {
			r := newRoot(t)
			for file, text := range map[string]string{"address": mac1, "type": "1", "addr_assign_type": "0", "device/uevent": "DRIVER=ice"} {
				r.write("sys/class/net/eno1/"+file, text+"\n", 0o444)
			}
			r.chmod(closed, 0)
			t.Cleanup(func() { r.chmod(closed, 0o755) })
			report := collectRoot(t, hwclaims.Options{Root: r.dir})
			i := slices.IndexFunc(report.Dropped, func(d hwclaims.Drop) bool { return d.What == "eno1" })
			if i < 0 || report.Dropped[i].Why != "unreadable (permission denied)" {
				t.Errorf("dropped %+v, claims %v", report.Dropped, report.Claims.MACs)
			}
		})
	}
}

// The device tree's serial may be filler where the chip's own serial is not.
func TestDeviceTreeSerialsInOrder(t *testing.T) {
	const tree, old, chip = "sys/firmware/devicetree/base/serial-number", "proc/device-tree/serial-number", "sys/devices/soc0/serial_number"
	for name, test := range map[string]struct {
		files map[string]string
		want  string
	}{
		"first":          {map[string]string{tree: "10000000abcd0001\x00", old: "10000000abcd0002\x00", chip: "1421921047731\n"}, "10000000abcd0001"},
		"proc":           {map[string]string{old: "10000000abcd0002\x00", chip: "1421921047731\n"}, "10000000abcd0002"},
		"zeros":          {map[string]string{tree: "0000000000000000\x00", chip: "1421921047731\n"}, "1421921047731"},
		"blank":          {map[string]string{tree: "\x00", chip: "1421921047731\n"}, "1421921047731"},
		"no text":        {map[string]string{tree: "\xff\xff\x00", chip: "1421921047731\n"}, "1421921047731"},
		"nothing better": {map[string]string{tree: "0000000000000000\x00"}, "0000000000000000"},
	} {
		r := newRoot(t)
		for file, text := range test.files {
			r.write(file, text, 0o444)
		}
		if got := collectRoot(t, hwclaims.Options{Root: r.dir}).Claims.DeviceTreeSerial; got != test.want {
			t.Errorf("%s: claims %q, want %q", name, got, test.want)
		}
	}
	r := newRoot(t)
	r.write(tree, "10000000abcd0001\x00", 0)
	r.write(chip, "1421921047731\n", 0o444)
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	if report.Claims.DeviceTreeSerial != "" || report.Incomplete() == nil {
		t.Errorf("another serial stands in for one that cannot be read: %+v", report)
	}
}

// A node has hundreds of links of its pods. They cost no more than a look each.
func TestThousandLinks(t *testing.T) {
	r := newRoot(t)
	m := profile.Machine{NICs: []profile.NIC{ether("eno1", "ice", "pci", mac1)}}
	r.machine(m)
	for i := range 1000 {
		name := "sys/class/net/cali" + strings.Repeat("0", 3) + string(rune('a'+i%26)) + string(rune('a'+i/26%26)) + string(rune('a'+i/676))
		for file, text := range map[string]string{"address": "ee:ee:ee:ee:ee:ee", "type": "1", "addr_assign_type": "3"} {
			r.write(name+"/"+file, text+"\n", 0o444)
		}
	}
	start := time.Now()
	report := collectRoot(t, hwclaims.Options{Root: r.dir})
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	if !slices.Equal(report.Claims.MACs, []string{mac1}) || len(report.Dropped) != 1004 {
		t.Errorf("claims %v, %d dropped", report.Claims.MACs, len(report.Dropped))
	}
}

// Where a sandbox refuses netlink, the report says so, and sysfs answers.
func TestRefusedNetlinkIsUnreadable(t *testing.T) {
	var report hwclaims.Report
	var err error
	done := make(chan error)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the filter ends with the thread
		if e := refuseNetlink(); e != nil {
			done <- e
			return
		}
		report, err = hwclaims.Collect(t.Context(), hwclaims.Options{})
	}()
	if e := <-done; e != nil {
		t.Skipf("cannot filter system calls: %v", e)
	}
	if err != nil {
		t.Fatal(err)
	}
	if want := "mac rtnetlink: address family not supported by protocol"; !slices.Contains(unreadable(report), want) {
		t.Errorf("unreadable %q, want %q", unreadable(report), want)
	}
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Skipf("no sysfs: %v", err)
	}
	for _, l := range links {
		named := slices.ContainsFunc(report.Dropped, func(d hwclaims.Drop) bool { return d.What == l.Name() })
		if l.Name() != "lo" && l.Type()&os.ModeSymlink != 0 && !named && len(report.Claims.MACs) == 0 {
			t.Errorf("link %s of sysfs is neither claimed nor dropped", l.Name())
		}
	}
}

// refuseNetlink makes the kernel refuse netlink sockets to this thread, as systemd's RestrictAddressFamilies does.
func refuseNetlink() error {
	const nr, firstArgument = 0, 16 // offsets in struct seccomp_data
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: nr},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 3, K: unix.SYS_SOCKET},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: firstArgument},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.AF_NETLINK},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&program)), 0, 0)
}

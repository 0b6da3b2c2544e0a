package vm

import (
	"bytes"
	"crypto/md5" //nolint:gosec // a machine id, no secret
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// sockets and files of a boot, in its folder.
const (
	tpmSocket     = "tpm"
	controlSocket = "control"
	consoleFile   = "console"
)

// kvm reports whether the host's processor runs guests. /dev/kvm alone says little: without the processor's help a KVM may emulate
// kernels an instruction at a time, far slower than QEMU does.
func kvm() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	_ = f.Close() // nothing was written
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return false
	}
	for word := range bytes.FieldsSeq(cpu) {
		if w := string(word); w == "vmx" || w == "svm" {
			return true
		}
	}
	return false
}

// option makes a list of QEMU's options: a comma in a value is doubled.
func option(first string, pairs ...string) string {
	for i := 0; i < len(pairs); i += 2 {
		first += "," + pairs[i] + "=" + strings.ReplaceAll(pairs[i+1], ",", ",,")
	}
	return first
}

// arguments are QEMU's for a boot whose sockets and console are in a folder.
func (s Server) arguments(dir string) ([]string, error) {
	initrd := filepath.Join(s.Image, initrdFile)
	info, err := os.Stat(initrd)
	if err != nil {
		return nil, err
	}
	accel := []string{"-accel", "tcg,thread=multi", "-cpu", "Nehalem"}
	if kvm() {
		accel = []string{"-accel", "kvm", "-cpu", "host"}
	}
	args := append([]string{"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-M", "q35", "-m", "1024", "-smp", "2"}, accel...)
	args = append(args, "-uuid", s.UUID,
		"-smbios", option("type=0", "vendor", "Example Firmware", "version", "1.2.3", "date", "03/14/2024"),
		"-smbios", option("type=1", "manufacturer", s.Vendor, "product", s.Product, "version", "1.0", "serial", s.Serial, "uuid", s.UUID),
		"-smbios", option("type=2", "manufacturer", s.Vendor, "product", s.Product+" board", "serial", s.Serial+"-MB"),
		"-smbios", option("type=3", "manufacturer", s.Vendor, "serial", s.Serial+"-CH"),
		// One socat for each connection: "-tcp:" would be one connection for all.
		"-netdev", option("user", "id", "net", "net", "10.0.2.0/24", "ipv6", "off", "restrict", "on",
			"guestfwd", fmt.Sprintf("tcp:%s:%d-cmd:socat -lf /dev/null - TCP:127.0.0.1:%d", hostInGuest, s.Port, s.HostPort)),
		"-device", option("e1000", "netdev", "net", "mac", s.MAC, "addr", "0x3", "romfile", ""),
		"-drive", option("if=none,id=root,format=raw,cache=unsafe", "file", s.Disk),
		"-device", "virtio-blk-pci,drive=root", "-device", "virtio-rng-pci",
		"-fsdev", option("local,id=share,security_model=none,multidevs=remap", "path", s.Share),
		"-device", "virtio-9p-pci,fsdev=share,mount_tag=control",
		"-device", "virtio-serial-pci",
		"-chardev", option("socket,id=control,server=on,wait=off", "path", filepath.Join(dir, controlSocket)),
		"-device", "virtserialport,chardev=control,name=control",
		"-chardev", option("file,id=console", "path", filepath.Join(dir, consoleFile)), "-serial", "chardev:console")
	if s.TPM != "" {
		args = append(args, "-chardev", option("socket,id=tpm", "path", filepath.Join(dir, tpmSocket)),
			"-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", "tpm-tis,tpmdev=tpm0")
	}
	// Not "-initrd": QEMU 7.2 puts that so near the end of the memory, for a kernel with a PVH entry, that with the TPM's event log
	// there too it overwrites the ACPI tables. So it is loaded at 256 MiB, out of the kernel's reach, which is told where.
	const at = 256 << 20
	id := md5.Sum([]byte(s.UUID + s.Disk)) //nolint:gosec // as above: each installed disk has an id of its own
	args = append(args, "-kernel", filepath.Join(s.Image, kernelFile), "-device", option("loader,force-raw=on", "file", initrd, "addr", fmt.Sprint(at)),
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 mitigations=off systemd.show_status=no systemd.mask=serial-getty@ttyS0.service "+
			"systemd.machine_id=%s test.hosts=127.0.0.1=localhost,127.0.1.1=server,%s=%s initrdmem=%d,%d memmap=%dK$%d",
			hex.EncodeToString(id[:]), hostInGuest, s.Name, at, info.Size(), (info.Size()+4095)/4096*4, at))
	return args, nil
}

package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// Server is a server that is off.
type Server struct {
	Image string // the folder that the script image made
	Disk  string // file of the root disk; copied from the image where it is missing
	TPM   string // folder of the TPM's state, made by [Maker.NewTPM]; "" is a server without a TPM
	Share string // folder of the host that is ShareInGuest in the guest, writable

	// What the firmware says, as in /sys/class/dmi/id. The board's serial ends in -MB, the chassis' in -CH.
	UUID, Serial, Vendor, Product string
	MAC                           string // of the one NIC, an Intel 82540EM

	// Name is a name of the host in the guest, and Port the one port that the guest reaches there: HostPort of the host's loopback.
	Name           string
	Port, HostPort int
}

// ShareInGuest is where the guest has the shared folder.
const ShareInGuest = "/run/control"

// hostInGuest is the address that stands for the host. QEMU forwards single ports of it.
const hostInGuest = "10.0.2.100"

// programs are what a boot needs on the host.
var programs = []string{"qemu-system-x86_64", "swtpm", "swtpm_setup", "swtpm_localca", "socat", "cp"}

// Missing says which of the needed programs the host lacks, and which files the image.
func Missing(image string) (names []string) {
	for _, p := range programs {
		if _, err := exec.LookPath(p); err != nil {
			names = append(names, p)
		}
	}
	for _, f := range []string{kernelFile, initrdFile, diskFile} {
		if _, err := os.Stat(filepath.Join(image, f)); err != nil {
			names = append(names, filepath.Join(image, f))
		}
	}
	return names
}

// The files of an image.
const (
	kernelFile = "vmlinux"
	initrdFile = "initrd"
	diskFile   = "rootfs.img"
)

// installDisk copies the image's disk, where the server has none yet.
func (s Server) installDisk(ctx context.Context) error {
	if _, err := os.Stat(s.Disk); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if out, err := exec.CommandContext(ctx, "cp", "--sparse=always", "--reflink=auto", filepath.Join(s.Image, diskFile), s.Disk).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy the image's disk: %w\n%s", err, out)
	}
	return nil
}

package tpmkey

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-tpm/tpm2"

	"github.com/better-compute/bcd/internal/fault"
)

// socketPrefix marks a device that is a software TPM's socket.
const socketPrefix = "unix:"

// maxSocketPath is the longest path of a Unix socket, in bytes: sun_path of unix(7), less its final NUL.
const maxSocketPath = 107

// device is the TPM and the turn to use it.
type device struct {
	name      string // as configured
	path      string
	socket    bool                      // a software TPM, which has no resource manager
	off       bool                      // the configuration says not to use it
	authFiles map[tpm2.TPMHandle]string // by hierarchy; absent or empty where none is set
	ek        uint32                    // NV index of the EK to use; 0 for the fixed order
	timeout   time.Duration
	sysfs     string // where the kernel tells of its TPMs; "/sys" but in tests
	pause     func(context.Context, time.Duration) error
	connect   func(context.Context) (io.ReadWriteCloser, error)
	turn      chan struct{} // holds one value while an operation is under way
	stuck     *stuckCommand // guarded by turn
}

// stuckCommand is a command that the TPM has not answered within its deadline and that the kernel cannot take back.
type stuckCommand struct{ returned <-chan struct{} }

func newDevice(o Options) (*device, error) {
	d := &device{
		name: o.Device, ek: o.EK, timeout: o.Timeout,
		authFiles: map[tpm2.TPMHandle]string{
			ownerHierarchy.handle: o.OwnerAuthFile, endorsementHierarchy.handle: o.EndorsementAuthFile,
		},
		sysfs: "/sys", pause: sleep, turn: make(chan struct{}, 1),
	}
	if d.name == "" {
		d.name = DefaultDevice
	}
	if d.timeout == 0 {
		d.timeout = DefaultTimeout
	}
	d.connect = d.open
	d.path, d.socket = strings.CutPrefix(d.name, socketPrefix)
	const hint = `set [tpm] device to "` + DefaultDevice + `" or "unix:PATH"`
	switch {
	case !filepath.IsAbs(d.path):
		return nil, fault.New(fault.Config, hint, "unknown TPM device %q: its path is not absolute", d.name)
	case d.socket && len(d.path) > maxSocketPath:
		return nil, fault.New(fault.Config, "move the socket to a shorter path",
			"unusable TPM device %q: a socket's path has at most %d bytes", d.name, maxSocketPath)
	}
	if _, known := ekByIndex(d.ek); d.ek != 0 && !known {
		return nil, fault.New(fault.Config, "set [tpm] ek to "+ekIndices(), "no endorsement key of the index 0x%08x can be used", d.ek)
	}
	return d, nil
}

// refusing returns the device as one that the configuration says not to use.
func (d *device) refusing() *device {
	r := *d
	r.off = true
	return &r
}

// do opens the TPM, runs one operation on it, and closes it again. what completes "cannot …" in an error.
func (d *device) do(ctx context.Context, what string, operation func(*link) error) error {
	if d.off {
		return fault.New(fault.Config, `set [tpm] mode to "auto" or "required"`, `cannot %s: [tpm] mode is "off"`, what)
	}
	// A signature has no context. Without a bound, those that wait for a TPM that does not answer would queue up.
	patience := time.NewTimer(d.timeout)
	defer patience.Stop()
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	case <-patience.C:
		return fmt.Errorf("cannot %s: %w", what, fault.New(fault.TPMUnavailable, hintStuck, "TPM %q is busy with earlier operations", d.name))
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return fmt.Errorf("cannot %s: %w", what, context.Cause(ctx))
	}
	if err := d.unstick(); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	conn, err := d.connect(ctx)
	if err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	l := &link{ctx: ctx, dev: d, conn: conn}
	err = operation(l)
	if err != nil {
		err = fmt.Errorf("cannot %s: %w", what, l.explain(err))
	}
	// Nothing is learned from closing: the answers are in, and a descriptor is gone whatever close says.
	_ = conn.Close()
	return err
}

// unstick fails while an earlier command is still in the kernel: the next one would only queue up behind it, with a
// thread each.
func (d *device) unstick() error {
	if d.stuck == nil {
		return nil
	}
	select {
	case <-d.stuck.returned:
		d.stuck = nil
		return nil
	default:
		return fault.New(fault.TPMUnavailable, hintStuck, "TPM %q still holds a command that it did not answer in time", d.name)
	}
}

func (d *device) open(ctx context.Context) (io.ReadWriteCloser, error) {
	if d.socket {
		dialer := net.Dialer{Timeout: d.timeout}
		conn, err := dialer.DialContext(ctx, "unix", d.path)
		switch {
		case err == nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		return nil, d.explainOpen(err)
	}
	// Blocking on purpose: the kernel's TPM device answers a non-blocking read that comes too early with end of file.
	// NONBLOCK would also need a kernel with poll support for it (5.0). The deadline is kept by link instead.
	fd, err := syscall.Open(d.path, syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, d.explainOpen(&fs.PathError{Op: "open", Path: d.path, Err: err})
	}
	f := os.NewFile(uintptr(fd), d.path)
	if info, err := f.Stat(); err != nil || info.Mode()&fs.ModeCharDevice == 0 {
		_ = f.Close()
		return nil, fault.New(fault.Config, `set [tpm] device to "`+DefaultDevice+`" or "unix:PATH"`, "%q is not a TPM device", d.path)
	}
	return f, nil
}

// explainOpen says why the device cannot be opened, with what an operator needs to see to change it.
func (d *device) explainOpen(err error) error {
	errno := syscall.Errno(0)
	if !errors.As(err, &errno) {
		return fault.New(fault.TPMUnavailable, hintOpen, "cannot open TPM %q: %w", d.name, err)
	}
	row := openFaultOf(errno)
	detail := ""
	switch errno {
	case syscall.EACCES:
		detail = d.owner()
	case syscall.ENOENT, syscall.ENXIO, syscall.ENODEV:
		detail = d.absence()
	}
	return fault.New(row.code, row.hint, "cannot open TPM %q: %w%s", d.name, errno, detail)
}

// owner tells who may open the device.
func (d *device) owner() string {
	info, err := os.Stat(d.path)
	if err != nil {
		return ""
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	uid, gid := strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid))
	owner, group := uid, gid
	if u, err := user.LookupId(uid); err == nil {
		owner = u.Username
	}
	if g, err := user.LookupGroupId(gid); err == nil {
		group = g.Name
	}
	return fmt.Sprintf(" (it belongs to %s:%s, mode %04o)", owner, group, info.Mode().Perm())
}

// absence tells why a device file with a resource manager may be missing.
func (d *device) absence() string {
	if d.socket {
		return ""
	}
	raw := strings.Replace(filepath.Base(d.path), "tpmrm", "tpm", 1)
	if raw == filepath.Base(d.path) {
		return ""
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(d.path), raw)); err != nil {
		return " (the kernel shows no TPM)"
	}
	version, err := os.ReadFile(filepath.Join(d.sysfs, "class/tpm", raw, "tpm_version_major"))
	if err == nil && strings.TrimSpace(string(version)) == "1" {
		return fmt.Sprintf(" (%s is a TPM 1.2; bcd needs a TPM 2.0)", raw)
	}
	return fmt.Sprintf(" (there is a %s without a resource manager: a TPM 1.2, or a kernel before 4.12)", raw)
}

// sleep waits for d or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

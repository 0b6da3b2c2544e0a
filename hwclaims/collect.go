package hwclaims

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/better-compute/bcd/internal/fault"
)

// Options say where [Collect] reads.
type Options struct {
	// Root is the root of the machine to describe; "" is "/". In a container it is where the host's root is mounted. It may
	// also be a recorded machine: a folder with the machine's sys, proc and etc.
	Root string
	// Placeholders are values that this fleet knows to be filler on its machines. They are left out of the claims, so that
	// the control plane, which does not know them, comes to the same hardware key.
	Placeholders []string
	// NVMLChild is the command that runs [NVMLChild] and prints its answer: usually this program and a hidden argument.
	// Empty means that GPUs are read from /proc/driver/nvidia alone, which wakes no GPU from its sleep.
	NVMLChild []string
	// NVMLTimeout is how long the child may take; 0 is 10 s. A wedged driver hangs for ever.
	NVMLTimeout time.Duration
	// Profile is a machine profile's file that stands for the hardware. Only a build with the tag fakehw takes one.
	Profile string
}

// Report is what [Collect] found.
type Report struct {
	// Claims is what the machine says of itself. It passes [Claims.Validate].
	Claims Claims
	// Dropped are the values and network cards that never became a claim: absent, blank, not text, not physical, not permanent.
	Dropped []Drop
	// Unreadable are the values that exist, or may exist, and could not be read.
	Unreadable []Unreadable
	// Notes are sources that are missing, in words.
	Notes []string
}

// Unreadable is a value that could not be read. It is never treated as absent.
type Unreadable struct {
	// What is the claim's name, or "mac" or "gpu" for a whole source of them.
	What string `json:"what"`
	// Path is the file, or the interface of the kernel, that refused.
	Path string `json:"path"`
	// Reason is the cause: "permission denied", say.
	Reason string `json:"reason"`
}

// Collect reads the claims of the machine at o.Root. A source that is missing or unreadable is no error: the report says
// so. An error means that nothing could be read at all.
func Collect(ctx context.Context, o Options) (Report, error) {
	f, err := gather(ctx, o)
	if err != nil {
		return Report{}, err
	}
	return f.report(o.Placeholders), nil
}

// CollectFirmware reads what [Collect] does of the firmware's identifiers alone: DMI, and the device tree. Some of those files
// are root's; all else is everybody's.
func CollectFirmware(ctx context.Context, o Options) (Report, error) {
	f, err := gatherFirmware(ctx, o)
	if err != nil {
		return Report{}, err
	}
	return f.report(o.Placeholders), nil
}

// WithFirmware returns the report with the firmware's identifiers as firmware has them, which [CollectFirmware] made with more
// rights on the same machine.
func (r Report) WithFirmware(firmware Report) Report {
	c, from := &r.Claims, firmware.Claims
	c.ProductUUID, c.ProductSerial, c.BoardSerial, c.ChassisSerial = from.ProductUUID, from.ProductSerial, from.BoardSerial, from.ChassisSerial
	c.DeviceTreeSerial, c.Vendor, c.ProductName = from.DeviceTreeSerial, from.Vendor, from.ProductName
	ours := func(what string) bool { return !identity(what) }
	r.Dropped = slices.Concat(
		filter(firmware.Dropped, func(d Drop) bool { return !ours(d.What) }), filter(r.Dropped, func(d Drop) bool { return ours(d.What) }),
	)
	r.Unreadable = slices.Concat(
		filter(firmware.Unreadable, func(u Unreadable) bool { return !ours(u.What) }), filter(r.Unreadable, func(u Unreadable) bool { return ours(u.What) }),
	)
	return r
}

func filter[T any](all []T, keep func(T) bool) (kept []T) {
	for _, v := range all {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// Incomplete returns an error when an identifier of the firmware exists and could not be read. Claims without it would
// give another hardware key than claims with it: the machine would look like another machine.
func (r Report) Incomplete() error {
	for _, u := range r.Unreadable {
		if identity(u.What) {
			return fault.New(fault.HardwareUnreadable, "run bcd as root",
				"cannot read %s from %q: %s", u.What, u.Path, u.Reason)
		}
	}
	return nil
}

func identity(what string) bool {
	return slices.Contains([]string{
		whatProductUUID, whatProductSerial, whatBoardSerial, whatChassisSerial, whatDeviceTreeSerial,
	}, what)
}

// Assess judges the report's claims as [Assess] does and adds what only the reader knows: its own drops, and that claims
// with an unreadable identifier are never trusted.
func (r Report) Assess() Assessment {
	a := Assess(r.Claims)
	a.Dropped = append(slices.Clone(r.Dropped), a.Dropped...)
	if r.Incomplete() != nil {
		a.Trusted = false
	}
	return a
}

// Document is a report and its assessment as one JSON object.
type Document struct {
	Claims      Claims       `json:"claims"`
	Survivors   Survivors    `json:"survivors"`
	Dropped     []Drop       `json:"dropped"`
	Classes     []Class      `json:"classes"`
	KeyClasses  []Class      `json:"key_classes"`
	HardwareKey string       `json:"hardware_key"` // lower-case hex, "" without a key
	Trusted     bool         `json:"trusted"`
	Unreadable  []Unreadable `json:"unreadable"`
	Notes       []string     `json:"notes"`
}

// Document returns the report and its assessment for a program to print. Lists are never null.
func (r Report) Document() Document {
	a := r.Assess()
	return Document{
		Claims:      r.Claims,
		Survivors:   a.Survivors,
		Dropped:     orEmpty(a.Dropped),
		Classes:     orEmpty(a.Classes),
		KeyClasses:  orEmpty(a.KeyClasses),
		HardwareKey: hex.EncodeToString(a.HardwareKey),
		Trusted:     a.Trusted,
		Unreadable:  orEmpty(r.Unreadable),
		Notes:       orEmpty(r.Notes),
	}
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// printable returns s itself where it is printable text, else its bytes in hex, at most as long as a claim may be.
func printable(s string) string {
	if validText(s, MaxText) == nil {
		return s
	}
	s = strings.TrimRight(s, "\n")
	if validText(s, MaxText) == nil {
		return s
	}
	return fmt.Sprintf("0x%x", s[:min(len(s), MaxText/4)])
}

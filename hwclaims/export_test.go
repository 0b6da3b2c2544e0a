package hwclaims

import (
	"context"
	"os"
	"time"

	"github.com/better-compute/bcd/hwclaims/profile"
)

// CollectProfile collects from a machine profile in a build of any tags.
func CollectProfile(m profile.Machine, placeholders ...string) Report {
	return profileFacts(m).report(placeholders)
}

// FillerText, FillerUUID and FillerMAC are the placeholder rules.
func FillerText(text string, names ...string) string { return fillerText(text, nameWords(names...)) }

func FillerUUID(s string) string {
	u, ok := parseUUID(s)
	if !ok {
		return whyNotUUID(s)
	}
	return fillerUUID(u)
}

func FillerMAC(s string) string {
	m, ok := parseMAC(s)
	if !ok {
		return "not a 6-byte hardware address"
	}
	return fillerMAC(m)
}

// CleanText, Fold and the parsers.
var (
	CleanText         = cleanText
	Fold              = fold
	ParsePlaceholders = func(s string) error { _, err := parsePlaceholders(s); return err }
	EthtoolPermanent  = ethtoolPermanent
	DriverVersion     = driverVersion
)

// Link is what a link message or a link's sysfs folder says.
type Link struct {
	Name, Addr, Permanent, Kind, Bus, Driver, PortName string
	Index, ARPHRD                                      int
	Device                                             bool
}

func link(n nic) Link {
	return Link{n.name, n.addr, n.permanentOr(""), n.kind, n.bus, n.driver, n.portName, n.index, n.arphrd, n.device}
}

func ParseLink(b []byte) (Link, error) { n, err := parseLink(b); return link(n), err }

func DumpLinks() ([]Link, error) {
	nics, err := dumpLinks()
	var links []Link
	for _, n := range nics {
		links = append(links, link(n))
	}
	return links, err
}

func ParseBonding(s string) map[string]string {
	m := map[string]string{}
	parseBonding(s, m)
	return m
}

func ParseGPUInformation(s string) (uuid string, vgpu, ok bool) {
	g, ok := parseGPUInformation(s)
	return g.uuid, g.vgpu, ok
}

const HaveNVML = haveNVML

// AskNVML returns the UUIDs of the GPUs that count as whole ones, and of the vGPU instances.
func AskNVML(ctx context.Context, command []string, timeout time.Duration) (whole, vgpu, notes []string, err error) {
	a, err := askNVML(ctx, command, timeout)
	for _, g := range a.GPUs {
		if g.VGPU {
			vgpu = append(vgpu, g.UUID)
		} else {
			whole = append(whole, g.UUID)
		}
	}
	return whole, vgpu, a.Notes, err
}

// GPUs reads the GPUs of a root as those of the running machine.
func GPUs(ctx context.Context, root string, o Options) (claims, notes []string) {
	var f facts
	f.readGPUs(ctx, tree{fsys: os.DirFS(root)}, true, o)
	r := f.report(nil)
	return r.Claims.GPUUUIDs, r.Notes
}

// Running and SharesNetwork say whether a root is this machine's.
var (
	Running       = running
	SharesNetwork = sharesNetwork
)

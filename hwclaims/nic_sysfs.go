package hwclaims

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const netDir = "sys/class/net"

// readNICs lists the machine's links: by netlink where the kernel that runs us knows them, else from sysfs, which has no
// permanent address of a link whose address was changed.
func (f *facts) readNICs(t tree, root string) {
	var nics []nic
	live := sharesNetwork(root)
	byNetlink := live
	if byNetlink {
		links, err := dumpLinks()
		if err != nil {
			f.unreadable = append(f.unreadable, Unreadable{What: whatMAC, Path: "rtnetlink", Reason: cause(err)})
			byNetlink = false
		}
		nics = links
	} else {
		f.notes = append(f.notes, "network cards are read from sysfs: this is not the network namespace of the host root")
	}
	if !byNetlink {
		entries, err := fs.ReadDir(t.fsys, netDir)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			f.notes = append(f.notes, "no network: /"+netDir+" does not exist")
		case err != nil:
			f.unreadable = append(f.unreadable, Unreadable{What: whatMAC, Path: "/" + netDir, Reason: cause(err)})
		}
		for _, e := range entries {
			if e.Type().IsRegular() { // bonding_masters
				continue
			}
			nics = append(nics, nic{name: e.Name(), arphrd: -1})
		}
	}
	slaves := bondSlaves(t)
	for i := range nics {
		n := &nics[i]
		n.readSysfs(t)
		if live && n.permanentOr("") == "" && n.notPhysical() == "" {
			n.permanent = ethtoolPermanent(n.name)
		}
		if n.permanentOr("") == "" {
			n.permanent = slaves[n.name]
		}
		if n.name != "lo" {
			f.nics = append(f.nics, *n)
		}
	}
}

// readSysfs adds what sysfs knows of a link. What netlink said stands.
func (n *nic) readSysfs(t tree) {
	link := netDir + "/" + n.name
	n.assign = atoi(t.text(link+"/addr_assign_type"), -1)
	if n.arphrd < 0 { // from sysfs alone
		n.index = atoi(t.text(link+"/ifindex"), 0)
		n.arphrd = atoi(t.text(link+"/type"), -1)
		n.portName = t.text(link + "/phys_port_name")
		addr := t.field(link + "/address")
		n.addr, _ = cleanText(addr.bytes)
		if addr.state == fieldUnreadable {
			n.problem = "unreadable (" + addr.cause + ")"
		}
	}
	device := link + "/device"
	exists, problem := t.lstat(device)
	if problem != nil {
		n.problem = "unreadable (" + cause(problem) + ")"
	}
	if !exists {
		return
	}
	n.device = true
	where := t.resolve(device)
	uevent := uevent(t.field(device + "/uevent").bytes)
	n.driver = t.linkBase(device+"/driver", uevent["DRIVER"])
	bus, _, _ := strings.Cut(uevent["MODALIAS"], ":")
	n.bus = busOf(where, t.linkBase(device+"/subsystem", bus))
	n.pciID = pciID(t.text(device+"/vendor"), t.text(device+"/device"))
	n.vf, problem = t.lstat(device + "/physfn")
	if problem != nil {
		n.problem = "unreadable (" + cause(problem) + ")"
	}
	n.removable = t.removable(where)
}

// externalDevice finds a USB, gadget or Thunderbolt ancestor in a device's path: a card's own bus may be another.
var externalDevice = pattern(`/(usb[0-9]+|gadget[.0-9]*|domain[0-9]+/[0-9]+-[0-9]+)(/|$)`)

func busOf(where, bus string) string {
	if m := externalDevice().FindStringSubmatch(where); m != nil {
		switch {
		case strings.HasPrefix(m[1], "usb"):
			return "usb"
		case strings.HasPrefix(m[1], "gadget"):
			return "gadget"
		default:
			return "thunderbolt"
		}
	}
	if strings.HasPrefix(where, "sys/devices/virtual/") {
		return "virtual"
	}
	return bus
}

func pciID(vendor, device string) string {
	v, ok := strings.CutPrefix(vendor, "0x")
	d, ok2 := strings.CutPrefix(device, "0x")
	if !ok || !ok2 {
		return ""
	}
	return v + ":" + d
}

// removable reports whether the device or one above it says that it can be unplugged.
func (t tree) removable(device string) bool {
	for dir := device; strings.HasPrefix(dir, "sys/devices/"); dir = path.Dir(dir) {
		if t.text(dir+"/removable") == "removable" {
			return true
		}
	}
	return false
}

// linkBase returns the last element of a symbolic link, other where there is none.
func (t tree) linkBase(name, other string) string {
	target, err := fs.ReadLink(t.fsys, name)
	if err != nil {
		return other
	}
	return path.Base(target)
}

const maxLinks = 40 // as the kernel

// resolve returns the path that name leads to when its symbolic links are followed; a link that leaves the root, or
// whose target cannot be read, stays as it is.
func (t tree) resolve(name string) string {
	done, rest, links := "", name, 0
	for rest != "" {
		var part string
		part, rest, _ = strings.Cut(rest, "/")
		at := path.Join(done, part)
		target, err := fs.ReadLink(t.fsys, at)
		if err != nil || path.IsAbs(target) || links == maxLinks {
			done = at
			continue
		}
		links++
		done, rest = "", path.Join(path.Dir(at), target, rest)
		if rest == ".." || strings.HasPrefix(rest, "../") {
			return name
		}
	}
	return done
}

// bondSlaves returns the permanent addresses of the links below a bond. The address that they show is the bond's.
func bondSlaves(t tree) map[string]string {
	slaves := map[string]string{}
	for _, dir := range []string{"proc/1/net/bonding", "proc/net/bonding"} {
		entries, err := fs.ReadDir(t.fsys, dir)
		if err != nil {
			continue // no bonding, or another process' /proc: then the next
		}
		for _, e := range entries {
			parseBonding(t.field(dir+"/"+e.Name()).bytes, slaves)
		}
		break
	}
	return slaves
}

// parseBonding reads /proc/net/bonding/NAME: a section for each link below the bond.
func parseBonding(s string, slaves map[string]string) {
	name := ""
	for line := range strings.Lines(s) {
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(key) {
		case "Slave Interface":
			name = value
		case "Permanent HW addr":
			if name != "" {
				slaves[name] = value
			}
		}
	}
}

// uevent parses KEY=value lines.
func uevent(s string) map[string]string {
	m := map[string]string{}
	for line := range strings.Lines(s) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			m[k] = v
		}
	}
	return m
}

func atoi(s string, other int) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return other
	}
	return n
}

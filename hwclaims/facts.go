package hwclaims

import (
	"cmp"
	"fmt"
	"slices"
)

const (
	whyNotText = "not valid UTF-8"
	whyBlank   = "blank"
	whyAbsent  = "absent"
	whyNoDMI   = "no DMI"
	whyFleet   = "a placeholder of this fleet"
)

// facts are what a source says of the machine before anything is judged. Sources are the running kernel, a recorded
// tree and a machine profile.
type facts struct {
	dmi        map[string]field // by file name in /sys/class/dmi/id; nil where there is no DMI
	deviceTree field
	model      field // the device tree's name of the machine
	hostname   string
	nics       []nic
	gpus       []gpu
	unreadable []Unreadable
	notes      []string
}

// field is one identity file: its bytes, or why there are none.
type field struct {
	state fieldState
	bytes string
	path  string
	cause string // why it is unreadable
}

type fieldState int

const (
	fieldAbsent fieldState = iota
	fieldPresent
	fieldUnreadable
)

// gpu is one GPU as a driver reports it.
type gpu struct {
	uuid string
	vgpu bool // an instance that a hypervisor makes at each start of the machine
}

// report turns facts into claims. placeholders are the fleet's own.
func (f facts) report(placeholders []string) Report {
	b := builder{extra: foldAll(placeholders), Report: Report{Unreadable: f.unreadable, Notes: f.notes}}
	c := &b.Claims
	c.ProductSerial = b.dmi(f.dmi, whatProductSerial)
	c.BoardSerial = b.dmi(f.dmi, whatBoardSerial)
	c.ChassisSerial = b.dmi(f.dmi, whatChassisSerial)
	c.DeviceTreeSerial = b.deviceTree(f.deviceTree)
	b.nics(f.nics)
	b.gpus(f.gpus)
	c.ProductUUID = b.dmi(f.dmi, whatProductUUID)
	c.Vendor = b.name(f.dmi["sys_vendor"])
	c.ProductName = cmp.Or(b.name(f.dmi["product_name"]), b.name(f.model))
	c.Hostname = hostname(f.hostname)
	return b.Report
}

// builder fills a report.
type builder struct {
	Report
	extra map[string]bool
}

func (b *builder) drop(what, value, why string) {
	b.Dropped = append(b.Dropped, Drop{What: what, Value: printable(value), Why: why})
}

func (b *builder) dmi(files map[string]field, what string) string {
	if files == nil {
		b.drop(what, "", whyNoDMI)
		return ""
	}
	f := files[what]
	if f.state == fieldAbsent {
		b.drop(what, "", whyAbsent)
		return ""
	}
	return b.text(what, f)
}

func (b *builder) deviceTree(f field) string {
	if f.state == fieldAbsent {
		return ""
	}
	return b.text(whatDeviceTreeSerial, f)
}

// text returns a field as a claim, or drops it and returns "".
func (b *builder) text(what string, f field) string {
	if f.state == fieldUnreadable {
		b.Unreadable = append(b.Unreadable, Unreadable{What: what, Path: f.path, Reason: f.cause})
		b.drop(what, "", fmt.Sprintf("unreadable (%s)", f.cause))
		return ""
	}
	s, ok := cleanText(f.bytes)
	why := ""
	switch {
	case !ok:
		why = whyNotText
	case s == "":
		why = whyBlank
	case len(s) > MaxText:
		why = fmt.Sprintf("longer than %d bytes", MaxText)
	case b.extra[fold(s)]:
		why = whyFleet
	default:
		return s
	}
	b.drop(what, f.bytes, why)
	return ""
}

// name returns a field that is for people only, or "".
func (b *builder) name(f field) string {
	s, ok := cleanText(f.bytes)
	if !ok || len(s) > MaxText {
		return ""
	}
	return s
}

func hostname(raw string) string {
	s, ok := cleanText(raw)
	if !ok || len(s) > MaxHostname {
		return ""
	}
	return s
}

func (b *builder) gpus(gpus []gpu) {
	for _, g := range gpus {
		uuid, ok := NormalizeGPU(g.uuid)
		why := ""
		switch {
		case !ok:
			why = "not a physical GPU UUID"
		case g.vgpu:
			why = "a vGPU instance's UUID"
		case b.extra[fold(uuid)]:
			why = whyFleet
		case slices.Contains(b.Claims.GPUUUIDs, uuid):
			continue
		}
		if why != "" {
			b.drop(whatGPU+" "+printable(g.uuid), g.uuid, why)
			continue
		}
		b.Claims.GPUUUIDs = append(b.Claims.GPUUUIDs, uuid)
	}
	slices.Sort(b.Claims.GPUUUIDs)
	b.Claims.GPUUUIDs = b.limit(whatGPU, b.Claims.GPUUUIDs, MaxGPUs)
}

func (b *builder) nics(nics []nic) {
	slices.SortStableFunc(nics, func(x, y nic) int { return cmp.Compare(x.index, y.index) })
	for _, n := range nics {
		mac, why := n.claim()
		if why == "" && b.extra[fold(mac)] {
			why = whyFleet
		}
		if why != "" {
			b.drop(n.name, n.permanentOr(n.addr), why)
			continue
		}
		if !slices.Contains(b.Claims.MACs, mac) { // ports of one card may share an address
			b.Claims.MACs = append(b.Claims.MACs, mac)
		}
	}
	b.Claims.MACs = b.limit(whatMAC, b.Claims.MACs, MaxMACs)
}

// limit keeps the first values of a list that is longer than may be claimed, and says so.
func (b *builder) limit(what string, values []string, limit int) []string {
	if len(values) <= limit {
		return values
	}
	for _, v := range values[limit:] {
		b.drop(what+" "+v, v, fmt.Sprintf("more than %d", limit))
	}
	return values[:limit]
}

package hwclaims

import (
	"crypto/sha256"
	"slices"
)

// Names of the claims, as they stand in [Drop], in JSON and in a machine profile's expectations.
const (
	whatProductUUID      = "product_uuid"
	whatProductSerial    = "product_serial"
	whatBoardSerial      = "board_serial"
	whatChassisSerial    = "chassis_serial"
	whatDeviceTreeSerial = "devicetree_serial"
	whatMAC              = "mac"
	whatGPU              = "gpu"
)

// Class is a kind of identifier. Values of one class are not independent of each other.
type Class string

// The classes, strongest first.
const (
	ClassProductUUID Class = "product-uuid"
	ClassSerial      Class = "serial"
	ClassMAC         Class = "mac"
	ClassGPU         Class = "gpu"
)

// Survivors are the identifiers that stay after normalisation and the placeholder rules. Values keep the order of the
// claims; none is there twice.
type Survivors struct {
	ProductUUID      []string `json:"product_uuid,omitempty"`
	ProductSerial    []string `json:"product_serial,omitempty"`
	BoardSerial      []string `json:"board_serial,omitempty"`
	ChassisSerial    []string `json:"chassis_serial,omitempty"`
	DeviceTreeSerial []string `json:"devicetree_serial,omitempty"`
	MACs             []string `json:"mac,omitempty"`
	GPUUUIDs         []string `json:"gpu,omitempty"`
}

// Drop is a value, or a network card, that does not count, and why.
type Drop struct {
	// What is the claim's name, the network interface's name, or "gpu" or "mac" and the value.
	What string `json:"what"`
	// Value is the value as it was claimed, in hex where it is not text; "" where there is none.
	Value string `json:"value"`
	// Why is for people. Its wording may change.
	Why string `json:"why"`
}

// Assessment is the verdict on a machine's claims.
type Assessment struct {
	Survivors Survivors
	Dropped   []Drop
	// Classes are the classes that survive, strongest first.
	Classes []Class
	// KeyClasses are the at most two classes that make the hardware key.
	KeyClasses []Class
	// HardwareKey is the SHA-256 of [Assessment.KeyInput], nil when no class survives.
	HardwareKey []byte
	// Trusted says that at least two classes survive and one of them is product-uuid or serial.
	Trusted bool
}

// Assess judges claims. It is pure: equal claims give equal verdicts on every machine. extra are values that a fleet
// knows to be filler on its machines; they match whole values, by folded text.
func Assess(c Claims, extra ...string) Assessment {
	j := judge{names: nameWords(c.Vendor, c.ProductName), extra: foldAll(extra)}
	a := Assessment{Survivors: Survivors{
		ProductUUID:      j.values(whatProductUUID, []string{c.ProductUUID}, j.uuid),
		ProductSerial:    j.values(whatProductSerial, []string{c.ProductSerial}, j.serial),
		BoardSerial:      j.values(whatBoardSerial, []string{c.BoardSerial}, j.serial),
		ChassisSerial:    j.values(whatChassisSerial, []string{c.ChassisSerial}, j.serial),
		DeviceTreeSerial: j.values(whatDeviceTreeSerial, []string{c.DeviceTreeSerial}, j.serial),
		MACs:             j.values(whatMAC, c.MACs, j.mac),
		GPUUUIDs:         j.values(whatGPU, c.GPUUUIDs, j.gpu),
	}}
	a.Dropped = j.dropped
	for _, class := range []Class{ClassProductUUID, ClassSerial, ClassMAC, ClassGPU} {
		if len(a.Survivors.values(class)) > 0 {
			a.Classes = append(a.Classes, class)
		}
	}
	a.KeyClasses = slices.Clone(a.Classes[:min(2, len(a.Classes))])
	if len(a.KeyClasses) > 0 {
		sum := sha256.Sum256(a.KeyInput())
		a.HardwareKey = sum[:]
	}
	a.Trusted = len(a.Classes) >= 2 && (a.Classes[0] == ClassProductUUID || a.Classes[0] == ClassSerial)
	return a
}

// KeyInput returns the bytes that the hardware key hashes: the line "bc-hardware-key:v1", then a line "class=value" for
// each value of the two strongest surviving classes, in the classes' order and sorted by bytes within one. Every line
// ends with a line feed.
func (a Assessment) KeyInput() []byte {
	b := []byte("bc-hardware-key:v1\n")
	for _, class := range a.KeyClasses {
		for _, v := range slices.Sorted(slices.Values(a.Survivors.values(class))) {
			b = append(b, class...)
			b = append(b, '=')
			b = append(b, v...)
			b = append(b, '\n')
		}
	}
	return b
}

// values returns what a class contributes to the key. A machine has one serial: the product's, else the device tree's,
// else the board's, else the chassis', which the nodes of a multi-node box share.
func (s Survivors) values(class Class) []string {
	switch class {
	case ClassProductUUID:
		return s.ProductUUID
	case ClassSerial:
		for _, serial := range [][]string{s.ProductSerial, s.DeviceTreeSerial, s.BoardSerial, s.ChassisSerial} {
			if len(serial) > 0 {
				return serial
			}
		}
		return nil
	case ClassMAC:
		return s.MACs
	case ClassGPU:
		return s.GPUUUIDs
	default:
		return nil
	}
}

// judge normalises values and remembers those that it drops.
type judge struct {
	names   []string        // words of the vendor's and product's name, folded
	extra   map[string]bool // a fleet's own placeholders, folded
	dropped []Drop
}

// values keeps the values that one accepts. one returns the normalised value, or why there is none.
func (j *judge) values(what string, raw []string, one func(string) (value, why string)) []string {
	var kept []string
	for _, r := range raw {
		if r == "" {
			continue
		}
		v, why := one(r)
		if why == "" && j.extra[fold(v)] {
			why = whyFleet
		}
		if why != "" {
			name := what
			if what == whatMAC || what == whatGPU {
				name += " " + printable(r)
			}
			j.dropped = append(j.dropped, Drop{What: name, Value: printable(r), Why: why})
			continue
		}
		if !slices.Contains(kept, v) {
			kept = append(kept, v)
		}
	}
	return kept
}

func (j *judge) serial(raw string) (string, string) {
	text, ok := cleanText(raw)
	if !ok {
		return "", whyNotText
	}
	if why := fillerText(text, j.names); why != "" {
		return "", why
	}
	return NormalizeSerial(text), ""
}

func (j *judge) uuid(raw string) (string, string) {
	u, ok := parseUUID(raw)
	if !ok {
		return "", whyNotUUID(raw)
	}
	if why := fillerUUID(u); why != "" {
		return "", why
	}
	return formatUUID(u), ""
}

func (j *judge) mac(raw string) (string, string) {
	m, ok := parseMAC(raw)
	if !ok {
		return "", "not a 6-byte hardware address"
	}
	if why := fillerMAC(m); why != "" {
		return "", why
	}
	return formatMAC(m), ""
}

func (j *judge) gpu(raw string) (string, string) {
	g, ok := NormalizeGPU(raw)
	if !ok {
		return "", "not a physical GPU UUID"
	}
	u, _ := parseUUID(g[len(gpuPrefix):])
	if why := fillerUUID(u); why != "" {
		return "", why
	}
	return g, ""
}

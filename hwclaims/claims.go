package hwclaims

import (
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Limits of what a machine may claim. The control plane refuses more.
const (
	// MaxMACs is how many network card addresses a machine may claim.
	MaxMACs = 64
	// MaxGPUs is how many GPU UUIDs a machine may claim.
	MaxGPUs = 64
	// MaxText is the length of a text, in bytes of UTF-8.
	MaxText = 256
	// MaxHostname is the length of a host name, in bytes (RFC 1035).
	MaxHostname = 253
)

// Claims is what a machine says of itself: text as the firmware gave it, without the bytes that are no text. It is not
// normalised and it may hold filler; [Assess] judges it.
type Claims struct {
	// ProductUUID is the SMBIOS system UUID in the kernel's spelling.
	ProductUUID string `json:"product_uuid,omitempty"`
	// ProductSerial, BoardSerial and ChassisSerial are the serial numbers of SMBIOS types 1, 2 and 3.
	ProductSerial string `json:"product_serial,omitempty"`
	BoardSerial   string `json:"board_serial,omitempty"`
	ChassisSerial string `json:"chassis_serial,omitempty"`
	// DeviceTreeSerial is the device tree's serial-number, claimed where there is no SMBIOS.
	DeviceTreeSerial string `json:"devicetree_serial,omitempty"`
	// MACs are the permanent addresses of the physical network cards, as aa:bb:cc:dd:ee:ff.
	MACs []string `json:"mac,omitempty"`
	// GPUUUIDs are the UUIDs of whole GPUs, each with its prefix GPU-.
	GPUUUIDs []string `json:"gpu,omitempty"`
	// Hostname, Vendor and ProductName are for people. They are never part of the hardware key.
	Hostname    string `json:"hostname,omitempty"`
	Vendor      string `json:"vendor,omitempty"`
	ProductName string `json:"product_name,omitempty"`
}

// Validate reports the first claim that breaks a limit. Claims that came over the wire are validated before anything
// else is done with them.
func (c Claims) Validate() error {
	if len(c.MACs) > MaxMACs {
		return fmt.Errorf("claim mac has %d values, at most %d are allowed", len(c.MACs), MaxMACs)
	}
	if len(c.GPUUUIDs) > MaxGPUs {
		return fmt.Errorf("claim gpu has %d values, at most %d are allowed", len(c.GPUUUIDs), MaxGPUs)
	}
	for _, t := range c.texts() {
		if err := validText(t.value, t.max); err != nil {
			return fmt.Errorf("claim %s %w", t.name, err)
		}
	}
	return nil
}

type namedText struct {
	name, value string
	max         int
}

func (c Claims) texts() []namedText {
	texts := []namedText{
		{whatProductUUID, c.ProductUUID, MaxText},
		{whatProductSerial, c.ProductSerial, MaxText},
		{whatBoardSerial, c.BoardSerial, MaxText},
		{whatChassisSerial, c.ChassisSerial, MaxText},
		{whatDeviceTreeSerial, c.DeviceTreeSerial, MaxText},
		{"hostname", c.Hostname, MaxHostname},
		{"vendor", c.Vendor, MaxText},
		{"product_name", c.ProductName, MaxText},
	}
	for _, m := range c.MACs {
		texts = append(texts, namedText{whatMAC, m, MaxText})
	}
	for _, g := range c.GPUUUIDs {
		texts = append(texts, namedText{whatGPU, g, MaxText})
	}
	return texts
}

func validText(s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), limit)
	}
	if !utf8.ValidString(s) {
		return fmt.Errorf("is not valid UTF-8")
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("holds the unprintable character %U", r)
		}
	}
	return nil
}

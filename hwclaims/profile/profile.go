// Package profile reads machine profiles: one JSON object that describes a machine's firmware, network cards and GPUs as
// its drivers report them. A development build (tag fakehw) takes one in place of the hardware, and the tests hold one
// for every machine that the project knows.
//
// The schema is that of testdata/machines. Unknown keys are ignored, missing ones are absent. What a profile expects of
// the claims is the tests' business and is not read here.
package profile

import (
	"encoding/json"
	"fmt"
)

// Machine is one machine profile.
type Machine struct {
	// ID names the machine.
	ID string `json:"id"`
	// DMI holds the files of /sys/class/dmi/id by name. It is nil where the machine has no SMBIOS.
	DMI map[string]Field `json:"dmi"`
	// DeviceTreeSerial is the device tree's serial-number, its NUL included.
	DeviceTreeSerial string `json:"dt_serial"`
	Hostname         string `json:"hostname"`
	NICs             []NIC  `json:"nics"`
	GPUs             []GPU  `json:"gpus"`
	// VGPU says that the GPUs are instances that a hypervisor makes at each start.
	VGPU bool `json:"vgpu"`
}

// Field is a file: absent (null), unreadable, or its bytes.
type Field struct {
	// Present says that there is a file.
	Present bool
	// Error is the errno's name where the file may not be read: "EACCES".
	Error string
	// Bytes is the file's content.
	Bytes string
}

// UnmarshalJSON reads null, an object with an error (ENOENT is absent), the bytes as Latin-1 text, or a bare number or
// boolean as the text that it is: the kernel's files hold text only.
func (f *Field) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*f = Field{}
		return nil
	}
	if len(b) > 0 && b[0] == '{' {
		var e struct {
			Error string `json:"error"`
		}
		if err := json.Unmarshal(b, &e); err != nil {
			return err //nolint:wrapcheck // encoding/json names the place
		}
		*f = Field{Present: true, Error: e.Error}
		if e.Error == "ENOENT" {
			*f = Field{}
		}
		return nil
	}
	if len(b) > 0 && b[0] != '"' && b[0] != '[' {
		*f = Field{Present: true, Bytes: string(b)}
		return nil
	}
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err //nolint:wrapcheck // encoding/json names the place
	}
	bytes := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return fmt.Errorf("%q holds %U: the bytes of a file are written as Latin-1 text", text, r)
		}
		bytes = append(bytes, byte(r))
	}
	*f = Field{Present: true, Bytes: string(bytes)}
	return nil
}

// NIC is one network interface.
type NIC struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
	Addr   string `json:"addr"`
	// PermAddr is IFLA_PERM_ADDRESS; "" where it is not reported.
	PermAddr string `json:"permaddr"`
	// AddrAssignType is 0 permanent, 1 random, 2 stolen, 3 set; nil where the kernel does not say.
	AddrAssignType *int   `json:"addr_assign_type"`
	Bus            string `json:"bus"` // "virtual" for a link without a device
	// ARPHRD is the link type, nil for Ethernet.
	ARPHRD *int `json:"arphrd"`
	// Kind is IFLA_INFO_KIND.
	Kind        string `json:"kind"`
	VF          bool   `json:"vf"`
	Representor bool   `json:"representor"`
}

// GPU is one GPU.
type GPU struct {
	UUID string `json:"uuid"`
}

// Parse reads one machine profile.
func Parse(b []byte) (Machine, error) {
	var m Machine
	if err := json.Unmarshal(b, &m); err != nil {
		return Machine{}, fmt.Errorf("cannot parse machine profile: %w", err)
	}
	return m, nil
}

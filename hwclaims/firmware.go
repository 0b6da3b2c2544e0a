package hwclaims

import (
	"errors"
	"io/fs"
)

const dmiDir = "sys/class/dmi/id"

// dmiFiles are the files of the SMBIOS that the kernel shows. The kernel has put the UUID into the byte order of
// SMBIOS 2.6, and takes the first record where a type has several. It leaves product_uuid out where the firmware has none.
var dmiFiles = []string{whatProductUUID, whatProductSerial, whatBoardSerial, whatChassisSerial, "sys_vendor", "product_name"}

// deviceTreeSerials are tried in order, where there is no SMBIOS: the device tree's serial, and the one that the
// system-on-chip's driver reads from its fuses.
var deviceTreeSerials = []string{
	"sys/firmware/devicetree/base/serial-number", "proc/device-tree/serial-number", "sys/devices/soc0/serial_number",
}

func (f *facts) readFirmware(t tree) {
	_, err := fs.Stat(t.fsys, dmiDir)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		f.dmi = make(map[string]field, len(dmiFiles))
		for _, name := range dmiFiles {
			f.dmi[name] = t.field(dmiDir + "/" + name)
		}
		return
	}
	f.notes = append(f.notes, "no SMBIOS: /"+dmiDir+" does not exist")
	f.readDeviceTreeSerial(t)
	f.model = t.field("sys/firmware/devicetree/base/model")
}

// readDeviceTreeSerial takes the first serial that may be one, else the first that is there at all, so that the report
// says why it does not count. One that cannot be read ends the search: another in its place would be another machine.
func (f *facts) readDeviceTreeSerial(t tree) {
	for _, path := range deviceTreeSerials {
		serial := t.field(path)
		switch {
		case serial.state == fieldUnreadable:
			f.deviceTree = serial
			return
		case serial.state == fieldAbsent:
			continue
		case f.deviceTree.state == fieldAbsent:
			f.deviceTree = serial
		}
		if text, ok := cleanText(serial.bytes); ok && fillerText(text, nil) == "" {
			f.deviceTree = serial
			return
		}
		f.notes = append(f.notes, "no serial number in "+serial.path+": it holds filler")
	}
	if f.deviceTree.state == fieldAbsent {
		f.notes = append(f.notes, "no device tree serial")
	}
}

package hwclaims

import (
	"github.com/better-compute/bcd/hwclaims/profile"
)

// profileFacts are the facts of a machine that a profile describes.
func profileFacts(m profile.Machine) facts {
	f := facts{hostname: m.Hostname, notes: []string{"hardware is read from the machine profile " + m.ID}}
	if m.DMI != nil {
		f.dmi = make(map[string]field, len(m.DMI))
		for name, file := range m.DMI {
			f.dmi[name] = profileField("/"+dmiDir+"/"+name, file)
		}
	}
	if m.DMI == nil && m.DeviceTreeSerial != "" {
		f.deviceTree = field{state: fieldPresent, bytes: m.DeviceTreeSerial}
	}
	for i, n := range m.NICs {
		f.nics = append(f.nics, nic{
			name: n.Name, index: i + 1,
			arphrd: valueOr(n.ARPHRD, arphrdEther), addr: n.Addr, permanent: n.PermAddr, assign: valueOr(n.AddrAssignType, -1),
			kind: n.Kind, device: n.Bus != "virtual", bus: n.Bus, driver: n.Driver, vf: n.VF, representor: n.Representor,
		})
	}
	for _, g := range m.GPUs {
		f.gpus = append(f.gpus, gpu{uuid: g.UUID, vgpu: m.VGPU})
	}
	return f
}

func profileField(path string, f profile.Field) field {
	switch {
	case !f.Present:
		return field{path: path}
	case f.Error != "":
		return field{state: fieldUnreadable, path: path, cause: f.Error}
	default:
		return field{state: fieldPresent, bytes: f.Bytes, path: path}
	}
}

func valueOr(p *int, other int) int {
	if p == nil {
		return other
	}
	return *p
}

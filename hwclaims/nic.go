package hwclaims

import (
	"strings"
)

// nic is one network interface as the kernel reports it.
type nic struct {
	name  string
	index int // order of the interfaces
	// arphrd is the link type (ARPHRD_*); 1 is Ethernet, Wi-Fi included.
	arphrd int
	// addr is the current address; permanent is the burned-in one, "" where the kernel reports none.
	addr, permanent string
	// assign is addr_assign_type: 0 permanent, 1 random, 2 stolen from another link, 3 set; -1 unknown.
	assign int
	// kind is IFLA_INFO_KIND: "bond", "veth"; "" for a device's own link.
	kind string
	// device says that a device stands behind the link; bus, driver and pciID (vendor:device, hex) are the device's.
	device             bool
	bus, driver, pciID string
	// vf is an SR-IOV virtual function, representor a switchdev port of one or a sub-function.
	vf, representor bool
	// removable is a device behind an external port.
	removable bool
	// portName is phys_port_name.
	portName string
	// problem is why the interface's facts could not be read.
	problem string
}

const (
	arphrdEther = 1

	assignPermanent = 0
	assignRandom    = 1
)

// claim returns the interface's permanent address when it identifies the machine, or why it does not.
func (n nic) claim() (mac, why string) {
	if why := n.notPhysical(); why != "" {
		return "", why
	}
	if n.assign == assignRandom {
		return "", "random address"
	}
	raw := n.permanentOr("")
	if raw == "" && n.assign == assignPermanent {
		raw = n.addr
	}
	if raw == "" {
		return "", "no permanent address"
	}
	m, ok := parseMAC(raw)
	if !ok {
		return "", "not a 6-byte hardware address"
	}
	if why := fillerMAC(m); why != "" {
		return "", why
	}
	return formatMAC(m), ""
}

// permanentOr returns the permanent address, or other where the kernel has none: a virtual link reports zeros.
func (n nic) permanentOr(other string) string {
	if strings.Trim(n.permanent, "0:") == "" {
		return other
	}
	return n.permanent
}

// busesOff are the buses of devices that come and go: a dongle, a dock, a BMC's gadget. A BMC's USB network gadget has
// the same address on thousands of servers.
var busesOff = map[string]bool{
	"usb": true, "gadget": true, "thunderbolt": true, "bluetooth": true, "pcmcia": true, "firewire": true,
}

// usbDrivers are drivers of USB network gadgets, for sources that know the driver and not the bus.
var usbDrivers = map[string]bool{"cdc_ether": true, "cdc_ncm": true, "cdc_subset": true, "rndis_host": true}

// vfDrivers drive virtual functions only. Inside a virtual machine a function has no link to its physical one.
var vfDrivers = map[string]bool{"iavf": true, "i40evf": true, "igbvf": true, "ixgbevf": true, "cxgb4vf": true}

// portOfOther matches phys_port_name of representors: ports that stand for a function elsewhere. A physical port is "p0".
var portOfOther = pattern(`^(c[0-9]+)?(pf[0-9]+(vf[0-9]+|sf[0-9]+|hpf)?|vf[0-9]+|sf[0-9]+)$`)

func (n nic) notPhysical() string {
	switch {
	case n.problem != "":
		return n.problem
	case n.kind != "" && n.kind != "dsa": // a switch's ports are physical
		return "virtual link kind " + n.kind
	case !n.device || n.bus == "virtual":
		return "virtual link without a device"
	case busesOff[n.bus]:
		return "removable/BMC bus " + n.bus
	case usbDrivers[n.driver]:
		return "removable/BMC bus usb"
	case n.removable:
		return "removable device"
	case n.arphrd != arphrdEther:
		return "not Ethernet"
	case n.vf || vfDrivers[n.driver] || vfDevices[n.pciID]:
		return "SR-IOV virtual function"
	case n.representor || n.bus == "auxiliary" || portOfOther().MatchString(n.portName):
		return "switchdev representor / sub-function"
	default:
		return ""
	}
}

package hwclaims

// vfDevices are PCI ids (vendor:device) of virtual functions whose driver also drives the physical function. Inside a
// virtual machine nothing else tells them apart. Source: the PCI ID repository.
var vfDevices = map[string]bool{
	// Mellanox ConnectX-3 to ConnectX-8, BlueField
	"15b3:1002": true, "15b3:1004": true, "15b3:1014": true, "15b3:1016": true, "15b3:1018": true, "15b3:101a": true,
	"15b3:101c": true, "15b3:101e": true, "15b3:a2d1": true, "15b3:a2d3": true,
	// Broadcom NetXtreme-E
	"14e4:1606": true, "14e4:1609": true, "14e4:16c1": true, "14e4:16cb": true, "14e4:16d3": true, "14e4:16dc": true,
	"14e4:16e1": true, "14e4:16e5": true, "14e4:1806": true, "14e4:1807": true, "14e4:1808": true, "14e4:1809": true,
	// Broadcom (QLogic) NetXtreme II
	"14e4:163e": true, "14e4:163f": true, "14e4:164f": true, "14e4:16a9": true, "14e4:16ad": true, "14e4:16af": true,
}

package hwclaims

// vfDevices are PCI ids (vendor:device) of virtual functions whose driver also drives the physical function. Inside a
// virtual machine nothing else tells them apart. Functions with a driver of their own are in vfDrivers. Left out on
// purpose: systems-on-chip whose only network card is such a function (ThunderX). Source: the PCI ID repository, version
// 2026.08.22.
var vfDevices = map[string]bool{
	// Mellanox: ConnectX-2 to -6, then one id for all
	"15b3:0263": true, "15b3:1002": true, "15b3:1004": true, "15b3:1012": true, "15b3:1014": true, "15b3:1016": true,
	"15b3:1018": true, "15b3:101a": true, "15b3:101c": true, "15b3:101e": true, "15b3:a2d3": true,
	// Broadcom NetXtreme II, -E and -C
	"14e4:1606": true, "14e4:1609": true, "14e4:163f": true, "14e4:166f": true, "14e4:16a9": true, "14e4:16ad": true,
	"14e4:16af": true, "14e4:16c1": true, "14e4:16cb": true, "14e4:16d3": true, "14e4:16dc": true, "14e4:16e1": true,
	"14e4:16e5": true, "14e4:1806": true, "14e4:1807": true, "14e4:1808": true, "14e4:1809": true, "14e4:1819": true,
	// QLogic FastLinQ
	"1077:1664": true, "1077:16ad": true, "1077:8090": true,
	// Solarflare
	"1924:1803": true, "1924:1813": true, "1924:1903": true, "1924:1923": true, "1924:1a03": true, "1924:1b03": true,
	"1924:1c03": true, "1924:3c03": true,
	// Huawei and HiSilicon
	"19e5:022a": true, "19e5:0231": true, "19e5:375e": true, "19e5:375f": true, "19e5:379e": true, "19e5:379f": true,
	"19e5:a22e": true, "19e5:a22f": true,
	// AMD Pensando
	"1dd8:1003": true,
}

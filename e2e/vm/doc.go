// Package vm boots a server in software: QEMU, a Debian with systemd, SMBIOS values, a NIC and a TPM 2.0 (swtpm) with the
// certificate of a maker. The tests of this package run the programs in it, as a kernel and systemd run them on a server. Other
// packages' tests may do so too.
//
// The disk and the TPM outlive a boot, so that two boots are two boots of one server, and either can be put into another one.
// The guest reaches nothing but the port of the host that is forwarded to it. Where the host has no hardware virtualisation its
// processor is emulated: a boot takes up to a minute, and programs run ten times slower.
//
// The package makes no image (the script image does) and knows nothing of bcd. A [Server] is not for concurrent use.
package vm

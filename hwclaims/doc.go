// Package hwclaims says what a machine is, and how sure we are of it.
//
// [Collect] reads the identifiers of the machine it runs on: the firmware's (SMBIOS, else the device tree), the permanent
// addresses of its network cards and the UUIDs of its GPUs. [Assess] is pure and runs on both sides, in the daemon and in
// the control plane, so that both come to the same verdict: it normalises the claims, drops the filler that vendors ship
// in place of identifiers, and derives the hardware key. Vendor filler such as "To be filled by O.E.M." never becomes a
// value: two machines that share a filler serial must not share an identity.
//
// A value that exists and may not be read is [Unreadable], never absent: a machine asked without the right to read its
// serials must not look like a machine without serials.
//
// The filler that is known is data (placeholders.txt, each entry with its source). Rules catch what no list has:
// repeated characters, counting digits, template tokens, names of fields, localised and half-overwritten defaults. To
// add a value, add a line to placeholders.txt; to add a rule, add it where the value's kind is judged (text, UUID, MAC)
// together with the real values that come closest to it and must survive.
//
// # What this package does not do
//
// It opens no network connection, writes nothing, and knows nothing of tokens, keys or nodes. It decides nothing: the
// control plane does, with the same [Assess].
package hwclaims

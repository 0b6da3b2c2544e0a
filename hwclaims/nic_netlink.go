package hwclaims

import (
	"encoding/binary"
	"fmt"
	"net"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// extSkipStats is RTEXT_FILTER_SKIP_STATS of linux/rtnetlink.h.
const extSkipStats = 1 << 3

// maxDumps is how often a dump is asked for again because links changed while it ran.
const maxDumps = 3

// dumpLinks asks the kernel for all links at once. Addresses are not asked for: nodes have tens of thousands.
func dumpLinks() ([]nic, error) {
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot open rtnetlink: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing is buffered
	request, err := linkRequest()
	if err != nil {
		return nil, err
	}
	for dump := 1; ; dump++ {
		answers, err := conn.Execute(request)
		if err != nil {
			return nil, fmt.Errorf("cannot list links: %w", err)
		}
		if interrupted(answers) && dump < maxDumps {
			continue
		}
		nics := make([]nic, 0, len(answers))
		for _, a := range answers {
			if a.Header.Type != unix.RTM_NEWLINK {
				continue
			}
			n, err := parseLink(a.Data)
			if err != nil {
				return nil, err
			}
			nics = append(nics, n)
		}
		return nics, nil
	}
}

// linkRequest is RTM_GETLINK for every link, statistics left out.
func linkRequest() (netlink.Message, error) {
	attributes := netlink.NewAttributeEncoder()
	attributes.Uint32(unix.IFLA_EXT_MASK, extSkipStats)
	mask, err := attributes.Encode()
	if err != nil {
		return netlink.Message{}, fmt.Errorf("cannot encode the request for links: %w", err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.RTM_GETLINK, Flags: netlink.Request | netlink.Dump},
		Data:   append(make([]byte, unix.SizeofIfInfomsg), mask...),
	}, nil
}

func interrupted(messages []netlink.Message) bool {
	for _, m := range messages {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// parseLink reads one RTM_NEWLINK message: a struct ifinfomsg and its attributes.
func parseLink(b []byte) (nic, error) {
	if len(b) < unix.SizeofIfInfomsg {
		return nic{}, fmt.Errorf("link message of %d bytes is too short", len(b))
	}
	n := nic{
		arphrd: int(binary.NativeEndian.Uint16(b[2:])),
		index:  int(int32(binary.NativeEndian.Uint32(b[4:]))), //nolint:gosec // an index is a C int
		assign: -1,
	}
	attributes, err := netlink.NewAttributeDecoder(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return nic{}, fmt.Errorf("cannot parse link %d: %w", n.index, err)
	}
	for attributes.Next() {
		switch attributes.Type() {
		case unix.IFLA_IFNAME:
			n.name = attributes.String()
		case unix.IFLA_ADDRESS:
			n.addr = net.HardwareAddr(attributes.Bytes()).String()
		case unix.IFLA_PERM_ADDRESS:
			n.permanent = net.HardwareAddr(attributes.Bytes()).String()
		case unix.IFLA_PHYS_PORT_NAME:
			n.portName = attributes.String()
		case unix.IFLA_PARENT_DEV_NAME:
			n.device = true
		case unix.IFLA_PARENT_DEV_BUS_NAME:
			n.bus = attributes.String()
		case unix.IFLA_LINKINFO:
			attributes.Nested(func(info *netlink.AttributeDecoder) error {
				for info.Next() {
					if info.Type() == unix.IFLA_INFO_KIND {
						n.kind = info.String()
					}
				}
				return nil
			})
		}
	}
	if err := attributes.Err(); err != nil {
		return nic{}, fmt.Errorf("cannot parse link %d: %w", n.index, err)
	}
	if n.name == "" || strings.ContainsAny(n.name, "/\x00") || n.name == "." || n.name == ".." {
		return nic{}, fmt.Errorf("link %d has the name %q", n.index, n.name)
	}
	return n, nil
}

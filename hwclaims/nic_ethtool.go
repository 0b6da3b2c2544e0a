package hwclaims

import (
	"encoding/binary"
	"net"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxAddrLen is MAX_ADDR_LEN of linux/netdevice.h, in bytes.
const maxAddrLen = 32

// ethtoolPermanent asks a link's driver for its permanent address (ETHTOOL_GPERMADDR), "" where there is none. Kernels
// before 5.6 do not say it by netlink.
func ethtoolPermanent(name string) string {
	if len(name) >= unix.IFNAMSIZ {
		return ""
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer func() { _ = unix.Close(fd) }()

	const header = 8 // struct ethtool_perm_addr: cmd, size, then the address
	request := make([]byte, header+maxAddrLen)
	binary.NativeEndian.PutUint32(request, unix.ETHTOOL_GPERMADDR)
	binary.NativeEndian.PutUint32(request[4:], maxAddrLen)

	// struct ifreq, with the pointer as a pointer so that the garbage collector sees it.
	var ifreq struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(ifreq.name[:], name)
	ifreq.data = unsafe.Pointer(&request[0])
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifreq)))
	runtime.KeepAlive(request)
	if errno != 0 {
		return ""
	}
	size := binary.NativeEndian.Uint32(request[4:])
	return net.HardwareAddr(request[header : header+min(size, maxAddrLen)]).String()
}

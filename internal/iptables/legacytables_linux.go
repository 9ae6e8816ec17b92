package iptables

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// legacyTables reads the kernel's list of tables, which creates none. The list is
// empty if the kernel has no legacy iptables, or has not loaded it. Only root may
// read it.
func (x Tool) legacyTables() ([]string, error) {
	file := "/proc/thread-self/net/ip_tables_names"
	if x.V6() {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	tables, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Fields(string(tables)), err
}

// IPT_SO_GET_INFO and IPT_SO_GET_ENTRIES in <linux/netfilter_ipv4/ip_tables.h>
// and its IPv6 twin, at the level of the protocol.
const (
	getInfo    = 64
	getEntries = 65
)

// tableInfo is struct ipt_getinfo, and ip6t_getinfo; of it only the size is used.
type tableInfo struct {
	name       [32]byte
	hooks      uint32
	entry      [5]uint32
	underflow  [5]uint32
	numEntries uint32
	size       uint32
}

// entriesHeader is the head of struct ipt_get_entries: the table, the size of
// the entries, and padding.
type entriesHeader struct {
	name [32]byte
	size uint32
	_    uint32
}

// kernelEntries returns the rules of a table in the kernel's encoding, and nothing if
// there is no such table. A chain is an entry with its name, which ends with a zero byte.
// Asking requires only CAP_NET_ADMIN, where the tool also requires CAP_NET_RAW.
func (x Tool) kernelEntries(table string) (entries []byte, err error) {
	family, level := unix.AF_INET, unix.SOL_IP
	if x.V6() {
		family, level = unix.AF_INET6, unix.SOL_IPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // the kernel answers about tables on it
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	const mostTries = 10 // each time, another process has changed the table meanwhile
	for try := 1; ; try++ {
		info := tableInfo{}
		copy(info.name[:], table)
		err := getsockopt(fd, level, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOPROTOOPT) {
			return nil, nil // no such table; no legacy iptables at all
		}
		if err != nil {
			return nil, err
		}
		const head = unsafe.Sizeof(entriesHeader{})
		data := make([]byte, head+uintptr(info.size))
		h := (*entriesHeader)(unsafe.Pointer(&data[0]))
		h.name, h.size = info.name, info.size
		err = getsockopt(fd, level, getEntries, unsafe.Pointer(&data[0]), uintptr(len(data)))
		if err == nil {
			return data[head:], nil
		}
		if !errors.Is(err, unix.EAGAIN) || try == mostTries {
			return nil, err
		}
	}
}

func getsockopt(fd, level, option int, value unsafe.Pointer, size uintptr) error {
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

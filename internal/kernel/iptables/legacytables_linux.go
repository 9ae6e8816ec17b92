package iptables

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
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
// and its IPv6 twin, at the level of the protocol, and what they fill.
const (
	getInfo    = 64
	getEntries = 65

	nameSize  = 32 // both begin with the name of the table
	infoSize  = 84 // of struct ipt_getinfo, at whose end is the size of the entries
	entriesAt = 40 // in struct ipt_get_entries, behind their size and padding
)

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
	defer func() { err = joined.Errors(err, unix.Close(fd)) }()
	const mostTries = 10 // each time, another process has changed the table meanwhile
	for try := 1; ; try++ {
		info := make([]byte, infoSize)
		copy(info[:nameSize-1], table)
		err := getsockopt(fd, level, getInfo, info)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOPROTOOPT) {
			return nil, nil // no such table; no legacy iptables at all
		}
		if err != nil {
			return nil, err
		}
		size := info[infoSize-4:]
		data := make([]byte, entriesAt+binary.NativeEndian.Uint32(size))
		copy(data, info[:nameSize])
		copy(data[nameSize:], size)
		if err = getsockopt(fd, level, getEntries, data); err == nil {
			return data[entriesAt:], nil
		}
		if !errors.Is(err, unix.EAGAIN) || try == mostTries {
			return nil, err
		}
	}
}

func getsockopt(fd, level, option int, value []byte) error {
	length := uint32(len(value))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(unsafe.Pointer(&value[0])), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

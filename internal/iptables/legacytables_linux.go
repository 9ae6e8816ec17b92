package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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

// saveLegacy is save for legacy iptables. The kernel's list of tables does not
// show chains, but reading it creates no table. Only root may read it, in the
// tool too. Other users ask the kernel for tables that may not exist.
func (x Tool) saveLegacy(ctx context.Context, chains []ChainID) (string, error) {
	tables, err := x.legacyTables()
	if errors.Is(err, fs.ErrPermission) {
		return x.saveTables(ctx, chains)
	}
	if err != nil {
		return "", err
	}
	there := func(id ChainID) bool { return slices.Contains(tables, id.Table) }
	// Another program's tables are no reason to need the tool.
	return x.saveTables(ctx, slices.DeleteFunc(slices.Clone(chains), func(id ChainID) bool { return !there(id) }))
}

// saveTables is saveLegacy without the list. Asking the kernel requires only
// CAP_NET_ADMIN, where the tool also requires CAP_NET_RAW. If it can, the kernel
// creates an empty table for each one asked for.
func (x Tool) saveTables(ctx context.Context, chains []ChainID) (string, error) {
	var saved strings.Builder
	for _, table := range []string{"nat", "filter"} {
		here := slices.DeleteFunc(slices.Clone(chains), func(id ChainID) bool { return id.Table != table })
		found, err := x.kernelHasAny(table, here)
		if err != nil {
			return "", fmt.Errorf("ask the kernel for table %s: %w", table, err)
		}
		if !found {
			continue
		}
		out, err := x.Run(ctx, "", "save", "-t", table)
		if err != nil {
			return "", fmt.Errorf("%w (other users than root need CAP_NET_RAW for legacy iptables)", err)
		}
		saved.WriteString(out)
	}
	return saved.String(), nil
}

// kernelHasAny reports whether a table has one of the chains.
func (x Tool) kernelHasAny(table string, chains []ChainID) (bool, error) {
	if len(chains) == 0 {
		return false, nil
	}
	family := unix.AF_INET
	if x.V6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // the kernel answers about tables on it
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	rules, err := x.entries(fd, table)
	found := slices.ContainsFunc(chains, func(id ChainID) bool { return bytes.Contains(rules, append([]byte(id.Chain), 0)) })
	return found, errors.Join(err, unix.Close(fd))
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

// entries returns the rules of a table in the kernel's encoding, and nothing if
// there is no such table. A chain is an entry with its name, which ends with a
// zero byte.
func (x Tool) entries(fd int, table string) ([]byte, error) {
	const mostTries = 10 // each time, another process has changed the table meanwhile
	for try := 1; ; try++ {
		info := tableInfo{}
		copy(info.name[:], table)
		err := x.getsockopt(fd, getInfo, unsafe.Pointer(&info), unsafe.Sizeof(info))
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
		err = x.getsockopt(fd, getEntries, unsafe.Pointer(&data[0]), uintptr(len(data)))
		if err == nil {
			return data[head:], nil
		}
		if !errors.Is(err, unix.EAGAIN) || try == mostTries {
			return nil, err
		}
	}
}

func (x Tool) getsockopt(fd, option int, value unsafe.Pointer, size uintptr) error {
	level := unix.SOL_IP
	if x.V6() {
		level = unix.SOL_IPV6
	}
	length := uint32(size)
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(option),
		uintptr(value), uintptr(unsafe.Pointer(&length)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

package audit

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// filterFamily has the names of a family for the tools, and for the kernel's legacy tables.
type filterFamily struct {
	tool, nft, names string
	domain, level    int
}

func filterFamilies() []filterFamily {
	return []filterFamily{
		{"iptables", "ip", "ip_tables_names", unix.AF_INET, unix.SOL_IP},
		{"ip6tables", "ip6", "ip6_tables_names", unix.AF_INET6, unix.SOL_IPV6},
	}
}

// legacyTables returns the legacy tables of the calling thread's namespace. The kernel
// lists them in a file that does not exist while there are none. The file belongs to the
// root user of the time when the namespace was made: of the machine, if the namespace is
// older than the mappings of its user namespace. Then nobody in it can read the file, nor
// can the tools. The kernel is asked for each table instead, which makes an empty one of it.
func (f filterFamily) legacyTables() (tables []string, err error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	if !errors.Is(err, fs.ErrPermission) {
		return strings.Fields(string(names)), unlessGone(err)
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	for _, table := range []string{"filter", "mangle", "nat", "raw", "security"} {
		// struct ipt_getinfo, and ip6t_getinfo: IPT_SO_GET_INFO of <linux/netfilter_ipv4/ip_tables.h>.
		var info [84]byte
		copy(info[:], table)
		const getInfo = 64
		length := uint32(len(info))
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), getInfo,
			uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
		switch errno {
		case 0:
			tables = append(tables, table)
		case unix.ENOENT, unix.ENOPROTOOPT: // no such table; no legacy iptables at all
		default:
			err = errors.Join(err, os.NewSyscallError("getsockopt", errno))
		}
	}
	return tables, errors.Join(err, unix.Close(fd))
}

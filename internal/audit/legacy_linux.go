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
// can the tools, and listed is false. The kernel is asked for each table instead, which
// makes an empty one of it.
func (f filterFamily) legacyTables() (tables []string, listed bool, err error) {
	names, err := os.ReadFile("/proc/thread-self/net/" + f.names)
	switch {
	case err == nil:
		return strings.Fields(string(names)), true, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, true, nil
	case !errors.Is(err, fs.ErrPermission):
		return nil, false, err
	}
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, false, err
	}
	for _, table := range []string{"filter", "mangle", "nat", "raw", "security"} {
		there, terr := f.hasLegacyTable(fd, table)
		if there {
			tables = append(tables, table)
		}
		err = errors.Join(err, terr)
	}
	return tables, false, errors.Join(err, unix.Close(fd))
}

// getInfo is IPT_SO_GET_INFO of <linux/netfilter_ipv4/ip_tables.h>, and its IPv6 twin.
const getInfo = 64

// tableInfo is struct ipt_getinfo, and ip6t_getinfo.
type tableInfo struct {
	name [32]byte
	_    [13]uint32
}

func (f filterFamily) hasLegacyTable(fd int, table string) (bool, error) {
	var info tableInfo
	copy(info.name[:], table)
	length := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&length)), 0)
	switch errno {
	case 0:
		return true, nil
	case unix.ENOENT, unix.ENOPROTOOPT: // no such table; no legacy iptables at all
		return false, nil
	}
	return false, os.NewSyscallError("getsockopt", errno)
}

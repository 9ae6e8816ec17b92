package thread

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// MissingCapabilities returns the names of the capabilities(7) that the calling thread lacks.
// Plugins need CAP_NET_ADMIN in the network namespace in which they run, and
// CAP_SYS_ADMIN to enter the container's. A process in its own user namespace has both,
// but they do not apply to the host's network namespace.
func MissingCapabilities() ([]string, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var has [2]unix.CapUserData // 32 capabilities each
	if err := unix.Capget(&header, &has[0]); err != nil {
		return nil, fmt.Errorf("capget: %w", err)
	}
	var lacks []string
	for _, c := range []struct {
		bit  uint
		name string
	}{{unix.CAP_NET_ADMIN, "CAP_NET_ADMIN"}, {unix.CAP_SYS_ADMIN, "CAP_SYS_ADMIN"}} {
		if has[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			lacks = append(lacks, c.name)
		}
	}
	return lacks, nil
}

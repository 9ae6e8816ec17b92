// Package privilege names the capabilities that plugins need and this process lacks.
package privilege

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Missing returns the names of the capabilities that the calling thread lacks: those
// that plugins need in the network namespace they run in, and to enter a container's
// (capabilities(7)). In a user namespace of its own a process has them over what was
// made there, and may lack them over the host's.
func Missing() ([]string, error) {
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

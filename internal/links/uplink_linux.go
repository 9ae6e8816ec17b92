package links

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// HasUplink reports whether a bridge has a port through which machines other
// than the containers of this host may be reached. Hardware, a tunnel and a
// virtual machine's interface are such ports. A veth is not, nor is a dummy,
// which leads nowhere. The kernel lists all ports, which takes some µs for each.
func (c *Conn) HasUplink(bridge int) (bool, error) {
	m := linkList(u32(unix.IFLA_MASTER, uint32(bridge))) // old kernels list all interfaces nevertheless
	found := false
	err := c.execute(m, func(body []byte) error {
		port, err := parseLink(body)
		found = found || port.Port.Master == bridge && port.Kind != "veth" && port.Kind != "dummy"
		return err
	})
	if err != nil && !errors.Is(err, ErrInterrupted) { // a port that comes or goes meanwhile may be missing
		return false, fmt.Errorf("list the ports of bridge %d: %w", bridge, err)
	}
	return found, nil
}

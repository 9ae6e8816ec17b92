package sweep

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// FlushFlows makes conntrack forget the UDP flows that it sends to addresses of
// a container that is gone. A flow is translated by its first packet: one to a
// host port outlives the rule, and the next container that takes the port
// never sees it. TCP finds out by itself. It returns how many there were.
func FlushFlows(host *netns.Handle, addresses []netip.Addr) (flushed uint, err error) {
	var errs []error
	err = in(host, unix.NETLINK_NETFILTER, func(nl *netlink.Handle) error {
		for _, addr := range addresses {
			n, err := flush(nl, addr)
			flushed += n
			if err != nil {
				errs = append(errs, fmt.Errorf("flush UDP flows to %s: %w", addr, err))
			}
		}
		return errors.Join(errs...)
	})
	return flushed, err
}

func flush(nl *netlink.Handle, addr netip.Addr) (uint, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	filter := &netlink.ConntrackFilter{}
	if err := filter.AddProtocol(unix.IPPROTO_UDP); err != nil {
		return 0, err
	}
	// What comes back comes from the container, whatever address it was sent to.
	if err := filter.AddIP(netlink.ConntrackReplySrcIP, net.IP(addr.AsSlice())); err != nil {
		return 0, err
	}
	return nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)
}

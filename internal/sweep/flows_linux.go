package sweep

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// FlushFlows makes conntrack forget the UDP flows that it sends to addresses of
// a container that is gone. A flow is translated by its first packet: one to a
// host port outlives the rule, and the next container that takes the port
// never sees it. TCP finds out by itself. It returns how many there were.
//
// If there are any, it asks which addresses are in use by others, whose flows
// stay.
func FlushFlows(host *netns.Handle, addresses []netip.Addr, inUse func() ([]netip.Addr, error)) (flushed uint, err error) {
	var errs []error
	asked := sync.OnceValues(inUse)
	err = in(host, unix.NETLINK_NETFILTER, func(nl *netlink.Handle) error {
		for _, addr := range addresses {
			n, err := flush(nl, addr, asked)
			flushed += n
			if err != nil {
				errs = append(errs, fmt.Errorf("flush UDP flows to %s: %w", addr, err))
			}
		}
		return errors.Join(errs...)
	})
	return flushed, err
}

// flowsTo matches the UDP flows to an address, unless others use it.
type flowsTo struct {
	netlink.ConntrackFilter
	addr  netip.Addr
	inUse func() ([]netip.Addr, error)
	err   error
}

func (f *flowsTo) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if f.err != nil || !f.ConntrackFilter.MatchConntrackFlow(flow) {
		return false
	}
	taken, err := f.inUse()
	f.err = err
	return err == nil && !slices.Contains(taken, f.addr)
}

func flush(nl *netlink.Handle, addr netip.Addr, inUse func() ([]netip.Addr, error)) (uint, error) {
	family := netlink.InetFamily(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	filter := &flowsTo{addr: addr, inUse: inUse}
	if err := filter.AddProtocol(unix.IPPROTO_UDP); err != nil {
		return 0, err
	}
	// What comes back comes from the container, whatever address it was sent to.
	if err := filter.AddIP(netlink.ConntrackReplySrcIP, net.IP(addr.AsSlice())); err != nil {
		return 0, err
	}
	n, err := nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, filter)
	return n, errors.Join(err, filter.err)
}

func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENOENT)
}

package netfilter

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// forgetFlows makes conntrack forget the UDP flows to forwarded ports of the
// host. Only the first packet of a flow is looked at for where it goes: one
// that goes on would never see that the port is forwarded now, or no longer.
func (fw *Firewalls) forgetFlows(ctx context.Context, all []HostPorts) error {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		filters, err := flowFilters(all, family)
		if err != nil {
			return err
		}
		if len(filters) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		nl, err := fw.conntrack()
		if err != nil {
			return err
		}
		_, err = nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...)
		nl.Close()
		// An interrupted list has been gone through all the same: who changed
		// the table meanwhile has put a flow there that saw the rules. And a
		// kernel without ctnetlink, which takes the request for invalid, keeps
		// what nobody can ask it to forget.
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("forget the UDP flows to the host's ports: %w", err)
		}
	}
	return nil
}

// flowFilters returns what the flows of a family match that are to be
// forgotten, for all of which the table is read once.
func flowFilters(all []HostPorts, family netlink.InetFamily) ([]netlink.CustomConntrackFilter, error) {
	var filters []netlink.CustomConntrackFilter
	for _, h := range all {
		to := h.V4
		if family == unix.AF_INET6 {
			to = h.V6
		}
		// Without any address it is not known which families there were.
		if !to.IsValid() && (h.V4.IsValid() || h.V6.IsValid()) {
			continue
		}
		for _, p := range h.Ports {
			if p.Protocol != "udp" || p.HostIP != (netip.Addr{}) && p.HostIP.Is6() != (family == unix.AF_INET6) {
				continue
			}
			filter := &netlink.ConntrackFilter{}
			if err := filter.AddProtocol(unix.IPPROTO_UDP); err != nil {
				return nil, err
			}
			if err := filter.AddPort(netlink.ConntrackOrigDstPort, p.HostPort); err != nil {
				return nil, err
			}
			filters = append(filters, filter)
		}
	}
	return filters, nil
}

// conntrack opens a socket in the namespace.
func (fw *Firewalls) conntrack() (nl *netlink.Handle, err error) {
	if fw.ns != nil {
		nl, err = netlink.NewHandleAt(vnetns.NsHandle(fw.ns.File().Fd()), unix.NETLINK_NETFILTER)
	} else {
		nl, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
	}
	if err != nil {
		return nil, fmt.Errorf("netlink socket to conntrack: %w", err)
	}
	return nl, nil
}

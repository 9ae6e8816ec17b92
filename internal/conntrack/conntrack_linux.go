// Package conntrack makes the kernel's connection tracking forget UDP flows. A
// flow is translated by its first packet: one to a host port outlives the rule,
// and never sees that the port leads elsewhere by now, or nowhere. TCP finds out
// by itself.
package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/netns"
)

// Flows are UDP flows to a port of the host, or to a container. One of the two is
// needed.
type Flows struct {
	Port uint16     // of the host, to which they were sent; 0 for any
	From netip.Addr // from which they are answered; the zero Addr for any
	// Keep reports whether they are to stay. It is asked for each; nil: none is.
	Keep func() (bool, error)
}

// ErrInterrupted means that flows came or went while the kernel listed them, so
// that some may not have been seen.
var ErrInterrupted error = netlink.ErrDumpInterrupted

// Forget makes the kernel forget those of the flows that are of IPv4, or of
// IPv6, and returns how many there were. It reads the table once. A nil
// namespace is that of the calling thread.
func Forget(ns *netns.Handle, v6 bool, all ...Flows) (forgotten uint, err error) {
	var filters []netlink.CustomConntrackFilter
	for _, f := range all {
		if f.Port == 0 && !f.From.IsValid() {
			return 0, errors.New("no port and no address: all flows would be forgotten")
		}
		filter := &filter{keep: f.Keep}
		err = errors.Join(err, filter.AddProtocol(unix.IPPROTO_UDP))
		if f.Port != 0 {
			err = errors.Join(err, filter.AddPort(netlink.ConntrackOrigDstPort, f.Port))
		}
		if f.From.IsValid() {
			err = errors.Join(err, filter.AddIP(netlink.ConntrackReplySrcIP, net.IP(f.From.AsSlice())))
		}
		filters = append(filters, filter)
	}
	if err != nil {
		return 0, err
	}
	nl, err := open(ns)
	if err != nil {
		return 0, err
	}
	defer nl.Close()
	family := netlink.InetFamily(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	forgotten, err = nl.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...)
	for _, f := range filters {
		err = errors.Join(err, f.(*filter).err)
	}
	return forgotten, err
}

// open opens a socket, which is inside for the one system call that makes it.
func open(ns *netns.Handle) (nl *netlink.Handle, err error) {
	if ns == nil {
		nl, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
	} else {
		nl, err = netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_NETFILTER)
	}
	if err != nil {
		return nil, fmt.Errorf("netlink socket to conntrack: %w", err)
	}
	return nl, nil
}

// filter matches the flows that are to be forgotten.
type filter struct {
	netlink.ConntrackFilter
	keep func() (bool, error)
	err  error
}

func (f *filter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if f.err != nil || !f.ConntrackFilter.MatchConntrackFlow(flow) {
		return false
	}
	if f.keep == nil {
		return true
	}
	var keep bool
	keep, f.err = f.keep()
	return f.err == nil && !keep
}

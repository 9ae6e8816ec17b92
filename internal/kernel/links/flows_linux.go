package links

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/netns"
)

// Flows are UDP flows to a port of the host, or to a container. One of the two is
// needed.
type Flows struct {
	Port uint16     // host port to which they were sent; 0 for any
	From netip.Addr // address that answers; the zero Addr for any
	// Untranslated selects only flows that no rule has sent elsewhere.
	Untranslated bool
	// Keep reports whether a flow stays. It is called for each; nil keeps none.
	Keep func() (bool, error)
}

// Forget deletes those of the flows that are IPv4, or IPv6, from the kernel's
// connection tracking, and returns their number. It reads the table once: with
// [ErrInterrupted] some may be left. A nil namespace means the calling thread's.
//
// The first packet of a flow decides its translation: a flow to a host port outlives
// the rule, and is not affected when the port later leads elsewhere, or nowhere. TCP
// connections notice by themselves.
func Forget(ns *netns.Handle, v6 bool, all ...Flows) (forgotten uint, err error) {
	var filters []netlink.CustomConntrackFilter
	for _, f := range all {
		if f.Port == 0 && !f.From.IsValid() {
			return 0, errors.New("no port and no address: all flows would be forgotten")
		}
		filter := &filter{keep: f.Keep, untranslated: f.Untranslated}
		err = joined.Errors(err, filter.AddProtocol(unix.IPPROTO_UDP))
		if f.Port != 0 {
			err = joined.Errors(err, filter.AddPort(netlink.ConntrackOrigDstPort, f.Port))
		}
		if f.From.IsValid() {
			err = joined.Errors(err, filter.AddIP(netlink.ConntrackReplySrcIP, net.IP(f.From.AsSlice())))
		}
		filters = append(filters, filter)
	}
	if err != nil {
		return 0, err
	}
	in := vnetns.None()
	if ns != nil {
		in = vnetns.NsHandle(ns.File().Fd())
	}
	h, err := netlink.NewHandleAt(in, unix.NETLINK_NETFILTER)
	if err != nil {
		return 0, fmt.Errorf("netlink socket to conntrack: %w", err)
	}
	defer h.Close()
	family := netlink.InetFamily(unix.AF_INET)
	if v6 {
		family = unix.AF_INET6
	}
	forgotten, err = h.ConntrackDeleteFilters(netlink.ConntrackTable, family, filters...)
	for _, f := range filters {
		err = joined.Errors(err, f.(*filter).err)
	}
	return forgotten, err
}

// filter matches the flows to delete.
type filter struct {
	netlink.ConntrackFilter
	untranslated bool
	keep         func() (bool, error)
	err          error
}

func (f *filter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	if f.err != nil || !f.ConntrackFilter.MatchConntrackFlow(flow) {
		return false
	}
	if f.untranslated && !flow.Forward.DstIP.Equal(flow.Reverse.SrcIP) {
		return false
	}
	if f.keep == nil {
		return true
	}
	var keep bool
	keep, f.err = f.keep()
	return f.err == nil && !keep
}

package bandwidth

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// tbf is the token bucket for a limit, as the root of a device.
func tbf(link netlink.Link, l limit) *netlink.Tbf {
	b := bucketOf(l, netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: link.Attrs().Index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate: b.rate, Limit: b.limit, Buffer: b.buffer,
	}
}

// ingress is the queue that gets what a device receives.
func ingress(link netlink.Link) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: link.Attrs().Index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_INGRESS,
	}}
}

// redirect sends all that a device receives to another, as what that one sends.
func redirect(from, to netlink.Link) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: from.Attrs().Index,
			Parent:    netlink.MakeHandle(0xffff, 0),
			Priority:  1,
			Protocol:  unix.ETH_P_ALL,
		},
		ClassId:    netlink.MakeHandle(1, 1),
		RedirIndex: to.Attrs().Index,
		Actions: []netlink.Action{&netlink.MirredAction{
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Attrs().Index,
		}},
	}
}

// change is what an ADD has done, so that it can be undone: the host's end may
// live on when the ADD has failed.
type change struct {
	nl   *netlink.Handle
	undo []func() error
}

func (c *change) addQdisc(q netlink.Qdisc, to netlink.Link) error {
	err := c.nl.QdiscAdd(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has no queue %s: %w", q.Type(), err)
	}
	if err != nil {
		return fmt.Errorf("add queue %s to interface %q: %w", q.Type(), to.Attrs().Name, err)
	}
	c.undo = append(c.undo, func() error { return c.nl.QdiscDel(q) })
	return nil
}

// revert undoes everything, the last first.
func (c *change) revert() error {
	var errs []error
	for _, undo := range slices.Backward(c.undo) {
		if err := undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo: %w", err))
		}
	}
	return errors.Join(errs...)
}

// shape makes the ifb device, by the first of the names that is free, and sends
// it what the host's end receives.
func (c *change) shape(host netlink.Link, l limit, names []string) (netlink.Link, error) {
	var name string
	var err error
	for _, name = range names {
		err = c.nl.LinkAdd(&netlink.Ifb{LinkAttrs: netlink.LinkAttrs{
			Name: name, MTU: host.Attrs().MTU, Flags: net.FlagUp,
		}})
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("interface %q, which is named after this interface of the container, is there already: "+
			"an earlier one was not deleted: %w", name, err)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil, fmt.Errorf("egressRate needs an interface of type ifb, which this kernel does not have (CONFIG_IFB): %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("add interface %q of type ifb: %w", name, err)
	}
	ifb, err := c.nl.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %q: %w", name, err)
	}
	c.undo = append(c.undo, func() error { return c.nl.LinkDel(ifb) })
	if err := c.addQdisc(ingress(host), host); err != nil {
		return nil, err
	}
	if err := c.nl.FilterAdd(redirect(host, ifb)); err != nil {
		return nil, fmt.Errorf("redirect from interface %q to %q: %w", host.Attrs().Name, name, err)
	}
	return ifb, c.addQdisc(tbf(ifb, l), ifb)
}

// checkBucket makes sure that a device has the token bucket of the limit. A queue
// of another type that somebody has put there instead is theirs. The kernel's own
// queue, which has no handle, says that the limit is gone.
func checkBucket(nl *netlink.Handle, link netlink.Link, l limit) error {
	name := link.Attrs().Name
	qdiscs, err := nl.QdiscList(link)
	if err != nil {
		return fmt.Errorf("queues of interface %q: %w", name, err)
	}
	at := slices.IndexFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Attrs().Parent == netlink.HANDLE_ROOT })
	if at < 0 {
		return fmt.Errorf("interface %q has no queue", name)
	}
	has, ok := qdiscs[at].(*netlink.Tbf)
	if !ok && qdiscs[at].Attrs().Handle != 0 {
		return nil
	}
	if !ok {
		return fmt.Errorf("interface %q has a queue of type %q, and no tbf", name, qdiscs[at].Type())
	}
	want := bucketOf(l, netlink.TickInUsec())
	if got := (bucket{rate: has.Rate, limit: has.Limit, buffer: has.Buffer}); got != want {
		return fmt.Errorf("interface %q has a tbf with rate %d, limit %d, buffer %d, and not rate %d, limit %d, buffer %d",
			name, got.rate, got.limit, got.buffer, want.rate, want.limit, want.buffer)
	}
	return nil
}

// checkShaped makes sure that the ifb device is up and limits what the host's
// end receives.
func checkShaped(nl *netlink.Handle, host netlink.Link, l limit, name string) error {
	ifb, err := nl.LinkByName(name)
	if err != nil {
		return fmt.Errorf("interface %q: %w", name, err)
	}
	if ifb.Type() != "ifb" || ifb.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %q of type %s is not an ifb that is up", name, ifb.Type())
	}
	if err := checkBucket(nl, ifb, l); err != nil {
		return err
	}
	filters, err := nl.FilterList(host, netlink.MakeHandle(0xffff, 0))
	if err != nil {
		return fmt.Errorf("filters of interface %q: %w", host.Attrs().Name, err)
	}
	for _, f := range filters {
		if u32, ok := f.(*netlink.U32); ok && redirects(u32, ifb) {
			return nil
		}
	}
	return fmt.Errorf("interface %q does not redirect what it receives to %q", host.Attrs().Name, name)
}

func redirects(f *netlink.U32, to netlink.Link) bool {
	for _, a := range f.Actions {
		m, ok := a.(*netlink.MirredAction)
		if ok && m.MirredAction == netlink.TCA_EGRESS_REDIR && m.Ifindex == to.Attrs().Index {
			return true
		}
	}
	return false
}

package bandwidth

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// queues is a socket for traffic control.
type queues struct{ nl *netlink.Handle }

func openQueues(ns *netns.Handle) (queues, error) {
	nl, err := netlink.NewHandleAt(vnetns.NsHandle(ns.File().Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return queues{}, fmt.Errorf("netlink socket in namespace %s: %w", ns.ID(), err)
	}
	return queues{nl}, nil
}

func (q queues) close() { q.nl.Close() }

// tbf returns the token bucket of a limit, as a device's root queue.
func tbf(index int, l limit) *netlink.Tbf {
	b := bucketOf(l, netlink.TickInUsec())
	return &netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: index,
			Handle:    netlink.MakeHandle(1, 0),
			Parent:    netlink.HANDLE_ROOT,
		},
		Rate: b.rate, Limit: b.limit, Buffer: b.buffer,
	}
}

// ingress returns the queue of the packets that a device receives.
func ingress(index int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_INGRESS,
	}}
}

// redirect returns a filter that makes another device send the packets that a
// device receives.
func redirect(from, to links.Link) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: from.Index,
			Parent:    netlink.MakeHandle(0xffff, 0),
			Priority:  1,
			Protocol:  unix.ETH_P_ALL,
		},
		ClassId:    netlink.MakeHandle(1, 1),
		RedirIndex: to.Index,
		Actions: []netlink.Action{&netlink.MirredAction{
			MirredAction: netlink.TCA_EGRESS_REDIR, Ifindex: to.Index,
		}},
	}
}

// change records the steps of an ADD for undoing them, because the host's end
// may outlive a failed ADD.
type change struct {
	queues
	conn *links.Conn
	undo []func() error
}

// add adds a queue to an interface.
func (c *change) add(q netlink.Qdisc, to links.Link) error {
	err := c.nl.QdiscAdd(q)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("this kernel has no queue %s: %w", q.Type(), err)
	}
	if err != nil {
		return fmt.Errorf("add queue %s to interface %q: %w", q.Type(), to.Name, err)
	}
	c.undo = append(c.undo, func() error { return c.nl.QdiscDel(q) })
	return nil
}

// revert undoes everything, the last step first.
func (c *change) revert() error {
	var errs []error
	for _, undo := range slices.Backward(c.undo) {
		if err := undo(); err != nil {
			errs = append(errs, fmt.Errorf("undo: %w", err))
		}
	}
	return errors.Join(errs...)
}

// shape creates the ifb device, under the first free name, and redirects the
// packets that the host's end receives to it.
func (c *change) shape(host links.Link, l limit, names []string) (ifb links.Link, err error) {
	var name string
	for _, name = range names {
		ifb, err = links.Ifb{Name: name, MTU: host.MTU}.Create(c.conn)
		if !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if errors.Is(err, unix.EEXIST) {
		return ifb, fmt.Errorf("interface %q, which is named after this interface of the container, is there already: "+
			"an earlier one was not deleted: %w", name, err)
	}
	if errors.Is(err, unix.EOPNOTSUPP) {
		return ifb, fmt.Errorf("egressRate needs an interface of type ifb, which this kernel does not have (CONFIG_IFB): %w", err)
	}
	if err != nil {
		return ifb, fmt.Errorf("add interface %q of type ifb: %w", name, err)
	}
	c.undo = append(c.undo, func() error { return c.conn.Delete(ifb.Index) })
	if err := c.add(ingress(host.Index), host); err != nil {
		return ifb, err
	}
	if err := c.nl.FilterAdd(redirect(host, ifb)); err != nil {
		return ifb, fmt.Errorf("redirect from interface %q to %q: %w", host.Name, name, err)
	}
	return ifb, c.add(tbf(ifb.Index, l), ifb)
}

// byIndex returns the index of an interface in the form of traffic control.
func byIndex(l links.Link) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: l.Index}}
}

// checkBucket returns an error unless a device has the token bucket of the
// limit. It accepts a queue of another type that somebody else has put there
// instead. The kernel's own queue, which has no handle, means that the limit is
// gone.
func (q queues) checkBucket(link links.Link, l limit) error {
	name := link.Name
	qdiscs, err := q.nl.QdiscList(byIndex(link))
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

// checkShaped returns an error unless the ifb device is up and gets the packets
// that the host's end receives.
func (q queues) checkShaped(conn *links.Conn, host links.Link, l limit, name string) error {
	ifb, err := conn.Link(name)
	if err != nil {
		return err
	}
	if ifb.Kind != "ifb" || !ifb.Up() {
		return fmt.Errorf("interface %q of type %q is not an ifb that is up", name, ifb.Kind)
	}
	if err := q.checkBucket(ifb, l); err != nil {
		return err
	}
	filters, err := q.nl.FilterList(byIndex(host), netlink.MakeHandle(0xffff, 0))
	if err != nil {
		return fmt.Errorf("filters of interface %q: %w", host.Name, err)
	}
	for _, f := range filters {
		if u32, ok := f.(*netlink.U32); ok && redirects(u32, ifb) {
			return nil
		}
	}
	return fmt.Errorf("interface %q does not redirect its ingress to %q", host.Name, name)
}

func redirects(f *netlink.U32, to links.Link) bool {
	for _, a := range f.Actions {
		m, ok := a.(*netlink.MirredAction)
		if ok && m.MirredAction == netlink.TCA_EGRESS_REDIR && m.Ifindex == to.Index {
			return true
		}
	}
	return false
}

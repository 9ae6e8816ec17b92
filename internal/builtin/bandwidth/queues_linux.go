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

const ingressKind = "ingress" // of the queue of received packets

// ingress returns the queue of the packets that a device receives.
func ingress(index int) *netlink.Ingress {
	return &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index,
		Handle:    netlink.MakeHandle(0xffff, 0),
		Parent:    netlink.HANDLE_INGRESS,
	}}
}

// The form of the filter.
const (
	redirectPriority = 1
	redirectClass    = 1<<16 | 1 // 1:1
)

// redirect returns a filter that makes another device send the packets that a
// device receives.
func redirect(from, to links.Link) *netlink.U32 {
	return &netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: from.Index,
			Parent:    netlink.MakeHandle(0xffff, 0),
			Priority:  redirectPriority,
			Protocol:  unix.ETH_P_ALL,
		},
		ClassId:    redirectClass,
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
	if err := c.nl.QdiscAdd(q); err != nil {
		return addError(err, q, to)
	}
	c.undo = append(c.undo, func() error { return c.nl.QdiscDel(q) })
	return nil
}

// addError explains why a queue could not be added; nil stays nil.
func addError(err error, q netlink.Qdisc, to links.Link) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no queue %s: %w", q.Type(), err)
	}
	return fmt.Errorf("add queue %s to interface %q: %w", q.Type(), to.Name, err)
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
	if err != nil {
		return ifb, ifbError(err, name)
	}
	c.undo = append(c.undo, func() error { return c.conn.Delete(ifb.Index) })
	if err := c.add(ingress(host.Index), host); err != nil {
		return ifb, err
	}
	if err := redirectError(c.nl.FilterAdd(redirect(host, ifb)), host, name); err != nil {
		return ifb, err
	}
	return ifb, c.add(tbf(ifb.Index, l), ifb)
}

// ifbError explains why the ifb device could not be created.
func ifbError(err error, name string) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("egressRate needs an interface of type ifb, which this kernel does not have (CONFIG_IFB): %w", err)
	}
	return fmt.Errorf("add interface %q of type ifb: %w", name, err)
}

// redirectError explains why packets could not be redirected; nil stays nil.
func redirectError(err error, from links.Link, to string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("redirect from interface %q to %q: %w", from.Name, to, err)
}

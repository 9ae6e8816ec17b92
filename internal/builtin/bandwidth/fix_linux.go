package bandwidth

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
)

// change calls fn with the host's end as it is now, and with sockets for changes.
func (c *comparison) change(ctx context.Context, fn func(q queues, conn *links.Conn, host links.Link) error) (err error) {
	conn, host, err := hostEnd(ctx, c.request)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	q, err := openQueues(c.request.Host)
	if err != nil {
		return err
	}
	defer q.close()
	return fn(q, conn, host)
}

func (c *comparison) addToHost(l limit) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.change(ctx, func(q queues, conn *links.Conn, host links.Link) error {
			return q.addMissing(conn, tbf(host.Index, l), host)
		})
	}
}

func (c *comparison) addToIfb(name string, l limit) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.change(ctx, func(q queues, conn *links.Conn, _ links.Link) error {
			ifb, err := findIfb(conn, name)
			if err != nil {
				return err
			}
			return q.addMissing(conn, tbf(ifb.Index, l), ifb)
		})
	}
}

// addMissing adds a queue unless it is there.
func (q queues) addMissing(conn *links.Conn, want netlink.Qdisc, to links.Link) error {
	err := q.nl.QdiscAdd(want)
	if errors.Is(err, unix.EEXIST) {
		has, err := conn.Queues(to.Index)
		if err != nil {
			return err
		}
		if has.Root.Kind == want.Type() || has.Ingress.Kind == want.Type() {
			return nil
		}
	}
	return addError(err, want, to)
}

// makeIfb creates the device that the result names, with its hardware address, by
// which a DEL knows it.
func (c *comparison) makeIfb(made types100.Interface) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.change(ctx, func(_ queues, conn *links.Conn, host links.Link) error {
			device := links.Ifb{Name: made.Name, MTU: host.MTU}
			if made.Mac != "" {
				var err error
				if device.MAC, err = net.ParseMAC(made.Mac); err != nil {
					return fmt.Errorf("interface %q in the result: %w", made.Name, err)
				}
			}
			_, err := device.Create(conn)
			if errors.Is(err, unix.EEXIST) {
				_, err = findIfb(conn, made.Name)
			}
			if err != nil {
				return ifbError(err, made.Name)
			}
			return nil
		})
	}
}

func (c *comparison) setUp(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.change(ctx, func(_ queues, conn *links.Conn, _ links.Link) error {
			ifb, err := findIfb(conn, name)
			if err != nil {
				return err
			}
			do := conn.Requests()
			do.Up(ifb.Index)
			return do.Send()
		})
	}
}

// redirect adds the queue and the filter that lead the packets to the ifb device. A
// filter that led to an earlier one is changed: nothing can pass it.
func (c *comparison) redirect(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		return c.change(ctx, func(q queues, conn *links.Conn, host links.Link) error {
			ifb, err := findIfb(conn, name)
			if err != nil {
				return err
			}
			if err := q.addMissing(conn, ingress(host.Index), host); err != nil {
				return err
			}
			has, err := conn.Queues(host.Index)
			if err != nil || leads(has.Redirects, ifb.Index) {
				return err
			}
			filter, put := redirect(host, ifb), q.nl.FilterAdd
			if lost := slices.IndexFunc(has.Redirects, isLost); lost >= 0 {
				filter.Handle, put = has.Redirects[lost].Handle, q.nl.FilterReplace
			}
			return redirectError(put(filter), host, name)
		})
	}
}

// findIfb looks up the ifb device.
func findIfb(conn *links.Conn, name string) (links.Link, error) {
	ifb, err := conn.Link(name)
	if err == nil && ifb.Kind != "ifb" {
		err = fmt.Errorf("interface %q is of type %q, and not an ifb", name, ifb.Kind)
	}
	return ifb, err
}

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
)

// Await waits until neighbours can find the IPv6 addresses of an interface: the
// kernel answers for an address only after deferred work. If Await is called
// last, that is usually finished. A neighbour that asks earlier waits for a
// second. It passes over other addresses, and the zero Prefix.
func Await(ctx context.Context, c *links.Conn, index int, addrs []netip.Prefix) error {
	addrs = ofFamily(addrs, true)
	if len(addrs) == 0 {
		return nil
	}
	return wait(ctx, func() (bool, error) {
		groups, err := links.Groups(c, index)
		return !slices.ContainsFunc(addrs, func(a netip.Prefix) bool {
			return !slices.Contains(groups, links.Solicited(a.Addr()))
		}), err
	})
}

// Settle waits until no address of an interface but the kernel's own is tentative. As with Await,
// neighbours can then find them.
func Settle(ctx context.Context, c *links.Conn, index int) error {
	return wait(ctx, func() (bool, error) {
		addrs, err := c.Addresses(index)
		settled := true
		for _, a := range addrs {
			if a.Duplicate {
				return false, fmt.Errorf("address %s is another machine's too: the detection of duplicates failed", a.Prefix)
			}
			settled = settled && (!a.Tentative || a.Addr().IsLinkLocalUnicast())
		}
		return settled, err
	})
}

// The kernel sends no message when an address becomes usable. The detection
// takes a second with the default settings, and up to another one before it
// begins. On an overloaded machine, deferred work has taken seconds.
const (
	longestWait  = 10 * time.Second
	shortestWait = 50 * time.Microsecond
	waitsAtMost  = 20 * time.Millisecond
)

// wait calls ready until it returns true, or the caller's patience ends.
func wait(ctx context.Context, ready func() (bool, error)) error {
	ctx, stop := contract.From(ctx).Patience.Wait(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, longestWait)
	defer cancel()
	for pause := shortestWait; ; pause = min(2*pause, waitsAtMost) {
		if ok, err := ready(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait until the IPv6 addresses are usable: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Detect waits for the kernel's duplicate address detection (RFC 4862, section 5.4) of those
// addresses that are IPv6, and fails if another machine has one of them. They are on an
// interface of ns, to which c is connected. Detect also waits for the link-local address:
// without it, the kernel cannot ask for the neighbours of forwarded packets. It does not wait
// for addresses that come from routers.
//
// Detection needs a carrier. If none comes within the time carrier, or if it is lost, Detect
// returns nil and leaves the addresses to the kernel, which uses none before it has checked
// it. So it does if the caller's patience ends.
func Detect(ctx context.Context, ns *netns.Handle, c *links.Conn, index int, addrs []netip.Prefix, carrier time.Duration) (err error) {
	addrs = ofFamily(addrs, true)
	if len(addrs) == 0 {
		return nil
	}
	ctx, stop := contract.From(ctx).Patience.Wait(ctx)
	defer stop()
	watch, err := links.WatchAddresses(ns)
	if err != nil {
		return err
	}
	defer func() { err = joined.Errors(err, watch.Close()) }()
	d := &detection{c: c, watch: watch, index: index, wanted: addrs}
	there, err := d.awaitCarrier(ctx, carrier)
	if err == nil && there {
		err = d.awaitAnswers(ctx)
	}
	if errors.Is(err, contract.ErrEnough) {
		return nil
	}
	return err
}

// detection follows duplicate address detection on an interface. It looks
// whenever the kernel reports a change.
type detection struct {
	c      *links.Conn
	watch  *links.Socket
	index  int
	wanted []netip.Prefix

	link links.Link // as of the last look
	have []links.Address
}

// look reads the addresses, and then the interface. The kernel may report an
// address as usable before it has finished its work on it, but answers about
// the interface only after that work.
func (d *detection) look() (err error) {
	if d.have, err = d.c.Addresses(d.index); err == nil {
		d.link, err = d.c.LinkByIndex(d.index)
	}
	return err
}

// awaitCarrier reports whether the interface has a carrier within the given
// time.
func (d *detection) awaitCarrier(ctx context.Context, within time.Duration) (bool, error) {
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		if err := d.look(); err != nil || d.link.Carrier() {
			return err == nil, err
		}
		if err := d.watch.Wait(limited); err != nil {
			if ctx.Err() == nil && limited.Err() != nil {
				return false, nil
			}
			return false, err
		}
	}
}

// awaitAnswers waits until all addresses are usable, another machine has
// answered for one, or the carrier is lost. How long that takes the administrator decides
// (dad_transmits, retrans_time_ms).
func (d *detection) awaitAnswers(ctx context.Context) error {
	for {
		open, err := d.pending()
		if err != nil || !open.IsValid() || !d.link.Carrier() {
			return err
		}
		if err := d.watch.Wait(ctx); err != nil {
			return fmt.Errorf("address %s is not usable yet, because the kernel still looks for other machines that have it: %w", open, err)
		}
		if err := d.look(); err != nil {
			return err
		}
	}
}

// pending returns an address whose detection is not over, or the zero Prefix.
// It fails if another machine has an address, or if the kernel has removed one.
func (d *detection) pending() (netip.Prefix, error) {
	var open netip.Prefix
	for _, want := range d.wanted {
		at := slices.IndexFunc(d.have, func(a links.Address) bool { return a.Prefix == want })
		switch {
		case at < 0:
			return open, fmt.Errorf("address %s was removed while the kernel looked for other machines that have it", want)
		case d.have[at].Duplicate:
			return open, fmt.Errorf("address %s belongs to another machine on the network, which answered for it (duplicate address detection): "+
				"take it from that machine, or out of the range that the IPAM plugin allocates from", want)
		case d.have[at].Tentative:
			open = want
		}
	}
	if open.IsValid() {
		return open, nil
	}
	return d.linkLocal()
}

// linkLocal is pending for the link-local addresses, which the kernel gave the
// interface. If one is a duplicate, the kernel may add another.
func (d *detection) linkLocal() (open netip.Prefix, err error) {
	for _, a := range d.have {
		switch {
		case !a.Addr().Is6() || !a.Addr().IsLinkLocalUnicast():
		case a.Duplicate:
			err = fmt.Errorf("the link-local address %s belongs to another machine on the network (duplicate address detection), "+
				"which has the MAC address %s, too: give one of them another", a.Prefix, d.link.MAC)
		case a.Tentative:
			open = a.Prefix
		default:
			return netip.Prefix{}, nil
		}
	}
	if open.IsValid() {
		err = nil
	}
	return open, err
}

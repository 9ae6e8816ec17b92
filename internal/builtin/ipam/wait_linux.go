package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
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
	return wait(ctx, longestWait, func() (string, error) {
		groups, err := c.Groups(index)
		if slices.ContainsFunc(addrs, func(a netip.Prefix) bool { return !slices.Contains(groups, links.Solicited(a.Addr())) }) {
			return notUsable, err
		}
		return "", err
	})
}

// Settle waits until no address of an interface but the kernel's own is tentative. As with Await,
// neighbours can then find them.
func Settle(ctx context.Context, c *links.Conn, index int) error {
	return wait(ctx, longestWait, func() (open string, err error) {
		addrs, err := c.Addresses(index)
		for _, a := range addrs {
			switch {
			case a.Duplicate:
				return "", fmt.Errorf("address %s is another machine's too: the detection of duplicates failed", a.Prefix)
			case a.Tentative && !a.Addr().IsLinkLocalUnicast():
				open = notUsable
			}
		}
		return open, err
	})
}

const notUsable = "wait until the IPv6 addresses are usable"

// The detection of duplicates takes a second with the default settings, and up to another
// one before it begins. On an overloaded machine, deferred work has taken seconds.
const (
	longestWait  = 10 * time.Second
	shortestWait = 50 * time.Microsecond
	waitsAtMost  = 20 * time.Millisecond
)

// wait calls ready until it returns "", or an error, or the caller's patience or the time
// ends. The error then begins with what ready returned.
func wait(ctx context.Context, within time.Duration, ready func() (open string, err error)) error {
	ctx, stop := caller.From(ctx).Patience.Wait(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for pause := shortestWait; ; pause = min(2*pause, waitsAtMost) {
		open, err := ready()
		if open == "" || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", open, context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}

// Detect waits for the kernel's duplicate address detection (RFC 4862, section
// 5.4) of those addresses of an interface that are IPv6, and fails if another machine has
// one of them. It also waits for the link-local address: without it, the kernel cannot
// ask for the neighbours of forwarded packets. It does not wait for addresses
// that come from routers.
//
// Detection needs a carrier. If none comes within the time carrier, or if it is lost, Detect
// returns nil and leaves the addresses to the kernel, which uses none before it
// has checked it. So it does if the caller's patience ends. Detect allows longestWait more
// than the kernel plans.
func Detect(ctx context.Context, c *links.Conn, index int, addrs []netip.Prefix, carrier time.Duration) error {
	d := &detection{addrs: ofFamily(addrs, true)}
	if len(d.addrs) == 0 {
		return nil
	}
	link, err := c.LinkByIndex(index)
	if err != nil {
		return err
	}
	begun, had := time.Now(), false
	err = wait(ctx, carrier+link.DetectionTime()+longestWait, func() (string, error) {
		if err := d.look(c, index); err != nil {
			return "", err
		}
		if !d.link.Carrier() {
			if had || time.Since(begun) >= carrier {
				return "", nil
			}
			return "wait for the carrier", nil
		}
		had = true
		open, err := d.pending()
		if err != nil || !open.IsValid() {
			return "", err
		}
		return fmt.Sprintf("address %s is not usable yet, because the kernel still looks for other machines that have it", open), nil
	})
	if errors.Is(err, caller.ErrEnough) {
		return nil
	}
	return err
}

// detection is a look at duplicate address detection on an interface.
type detection struct {
	addrs []netip.Prefix
	have  []links.Address
	link  links.Link
}

// look reads the addresses, and then the interface. The kernel may report an
// address as usable before it has finished its work on it, but answers about
// the interface only after that work.
func (d *detection) look(c *links.Conn, index int) (err error) {
	if d.have, err = c.Addresses(index); err == nil {
		d.link, err = c.LinkByIndex(index)
	}
	return err
}

// pending returns an address whose detection is not over, or the zero Prefix.
// It fails if another machine has an address, or if the kernel has removed one.
func (d *detection) pending() (netip.Prefix, error) {
	var open netip.Prefix
	for _, want := range d.addrs {
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

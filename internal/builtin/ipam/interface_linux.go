package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

// HasIPv6 reports whether a result has an IPv6 address.
func HasIPv6(result *types100.Result) bool {
	return slices.ContainsFunc(result.IPs, func(ip *types100.IPConfig) bool { return ip != nil && ip.Address.IP.To4() == nil })
}

// Sysctls returns the settings that an interface in a container needs before it
// gets the addresses of a result: enabled IPv6, and addresses that stay when the
// interface is down.
func Sysctls(ifName string, result *types100.Result) ([]links.Sysctl, error) {
	w, err := plan(result)
	if err != nil || !w.ipv6() {
		return nil, err
	}
	const conf = "net/ipv6/conf/"
	return []links.Sysctl{
		// Without /proc/sys/net/ipv6 there is no IPv6; adding the address reports
		// that.
		{Path: conf + "lo/disable_ipv6", Value: "0", Optional: true},
		{Path: conf + ifName + "/disable_ipv6", Value: "0"},
		{Path: conf + ifName + "/keep_addr_on_down", Value: "1"},
	}, nil
}

// How configures the assignment of addresses.
type How struct {
	// Announce makes the kernel announce the addresses, because neighbours may
	// know an address as another's. The kernel announces an IPv4 address when the
	// interface comes up (arp_notify), and with [Announced] an IPv6 address when
	// it is added to an interface that is up and detects duplicates.
	Announce bool
	// Detect leaves duplicate detection of IPv6 addresses to the interface's
	// settings; [Detect] waits for it. Without Detect there is none: if nobody
	// else can have the address, detection would waste 1 to 2 s.
	Detect bool
	// Later leaves the announcement of the IPv4 addresses to the caller, until
	// packets can pass: see [links.Conn.Announce]. The kernel announces later
	// changes.
	Later bool
}

// Announced is the setting that makes the kernel announce IPv6 addresses. It
// announces those for which it detects duplicates, however shortly: the
// interface's setting accept_dad decides about detection.
func Announced(ifName string) links.Sysctl {
	return links.Sysctl{Path: "net/ipv6/conf/" + ifName + "/ndisc_notify", Value: "1", Optional: true}
}

// Configure assigns the addresses of a result to an interface, sets it up, and adds
// the routes. IPv6 addresses are usable after [Await]. With
// How.Detect they are usable after [Detect] if the interface detects duplicates,
// and after [Settle] if it does not. Call these last, because the kernel works
// on the addresses meanwhile.
func Configure(conn *links.Conn, index int, result *types100.Result, how How) error {
	w, err := plan(result)
	if err != nil {
		return err
	}
	// An interface with an MTU too small for IPv4 has no such setting.
	notify := func() error { return conn.Set4(index, "arp_notify", 1, unix.EAFNOSUPPORT) }
	if how.Announce && !how.Later {
		if err := notify(); err != nil {
			return err
		}
	}
	add := func(addrs []netip.Prefix) error {
		for _, a := range addrs {
			if err := conn.AddAddress(index, a, how.Detect); err != nil {
				return err
			}
		}
		return nil
	}
	v4 := slices.DeleteFunc(slices.Clone(w.addresses), func(a netip.Prefix) bool { return a.Addr().Is6() })
	v6 := slices.DeleteFunc(slices.Clone(w.addresses), func(a netip.Prefix) bool { return a.Addr().Is4() })
	if err := add(v4); err != nil {
		return err
	}
	later := how.Announce && how.Later
	if len(v4) > 0 && later {
		err = conn.UpThenSet4(index, "arp_notify", 1)
	} else if err = conn.Up(index); err == nil && later {
		err = notify()
	}
	if err != nil {
		return err
	}
	if err := add(v6); err != nil {
		return err
	}
	for _, r := range w.routes {
		if err := conn.AddRoute(index, r, true); err != nil {
			return err
		}
	}
	return nil
}

// IPv4 returns the IPv4 addresses of a result.
func IPv4(result *types100.Result) []netip.Addr {
	return slices.DeleteFunc(compare.AddressesOf(result), netip.Addr.Is6)
}

// Await waits until neighbours can find the IPv6 addresses of an interface: the
// kernel answers for an address only after deferred work. If Await is called
// last, that is usually finished. A neighbour that asks earlier waits for a
// second. It passes over other addresses, and the zero Prefix.
func Await(ctx context.Context, c *links.Conn, index int, addrs []netip.Prefix) error {
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Prefix) bool { return !a.Addr().Is6() })
	if len(addrs) == 0 {
		return nil
	}
	return wait(ctx, func() (bool, error) {
		groups, err := c.Groups(index)
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
	ctx, stop := caller.From(ctx).Patience.Wait(ctx)
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

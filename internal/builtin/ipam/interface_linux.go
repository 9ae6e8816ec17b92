package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
)

// Sysctls are the settings that an interface in a container needs before it
// gets the addresses of a result: IPv6 that is not disabled, and addresses
// that stay when the interface is down.
func Sysctls(ifName string, result *types100.Result) ([]links.Sysctl, error) {
	w, err := plan(result)
	if err != nil || !w.ipv6() {
		return nil, err
	}
	const conf = "net/ipv6/conf/"
	return []links.Sysctl{
		// Without /proc/sys/net/ipv6 there is no IPv6, which the address says.
		{Path: conf + "lo/disable_ipv6", Value: "0", Optional: true},
		{Path: conf + ifName + "/disable_ipv6", Value: "0"},
		{Path: conf + ifName + "/keep_addr_on_down", Value: "1"},
	}, nil
}

// Configure puts the addresses of a result on an interface, sets it up, and
// adds the routes. The addresses are usable when it returns: there is no
// detection of duplicates, as the IPAM plugin gave them to nobody else. With
// flags.Detect there is, and Configure waits for it, 1 to 2 s.
func Configure(ctx context.Context, c *links.Conn, index int, result *types100.Result, flags links.AddressFlag) error {
	w, err := plan(result)
	if err != nil {
		return err
	}
	for _, a := range w.addresses {
		if err := c.AddAddress(index, a, flags); err != nil {
			return err
		}
	}
	// Only now, as it is when it comes up that an interface announces its
	// addresses to neighbours that may know them as another's (arp_notify).
	if err := c.Change(index, links.Change{Up: true}); err != nil {
		return fmt.Errorf("set the interface up: %w", err)
	}
	if flags&links.Detect != 0 && w.ipv6() {
		if err := settle(ctx, c, index); err != nil {
			return err
		}
	}
	for _, r := range w.routes {
		if err := c.AddRoute(index, r, true); err != nil {
			return err
		}
	}
	return nil
}

// The kernel says by no message that the detection has ended. It takes a
// second with the default settings, and up to another one before it begins.
const (
	settleTime     = 5 * time.Second
	settleInterval = 20 * time.Millisecond
)

// settle waits until no address is tentative.
func settle(ctx context.Context, c *links.Conn, index int) error {
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	for {
		addrs, err := c.Addresses(index)
		if err != nil {
			return err
		}
		for _, a := range addrs {
			if a.Duplicate {
				return fmt.Errorf("address %s is another machine's too: the detection of duplicates failed", a.Prefix)
			}
		}
		if !slices.ContainsFunc(addrs, func(a links.Address) bool { return a.Tentative }) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the detection of duplicate addresses: %w", context.Cause(ctx))
		case <-time.After(settleInterval):
		}
	}
}

// Verify returns an error unless an interface has the addresses of a result,
// usable, and there are its routes, by this interface.
func Verify(c *links.Conn, index int, result *types100.Result) error {
	if len(result.IPs) == 0 {
		return nil
	}
	w, err := plan(result)
	if err != nil {
		return err
	}
	addrs, err := c.Addresses(index)
	if err != nil {
		return err
	}
	routes, err := c.Routes(index)
	if err != nil {
		return err
	}
	for _, want := range w.addresses {
		at := slices.IndexFunc(addrs, func(a links.Address) bool { return a.Prefix == want })
		if at < 0 {
			return fmt.Errorf("address %s is missing", want)
		}
		if addrs[at].Duplicate {
			return fmt.Errorf("address %s is another machine's too", want)
		}
		if !hasRoute(routes, links.Route{Dst: want.Masked()}) && want.Bits() < want.Addr().BitLen() {
			return fmt.Errorf("the route to the subnet of address %s is missing", want)
		}
	}
	for _, want := range w.routes {
		if !hasRoute(routes, want) {
			return fmt.Errorf("route %s is missing", want)
		}
	}
	return nil
}

// hasRoute looks for a route. What is not said about the one that is wanted
// may be anything; the kernel gives an IPv6 route a priority by itself.
func hasRoute(routes []links.Route, want links.Route) bool {
	return slices.ContainsFunc(routes, func(r links.Route) bool {
		return r.Dst == want.Dst &&
			(want.Via == netip.Addr{} || r.Via == want.Via) &&
			(want.Table == 0 || want.Table == unix.RT_TABLE_UNSPEC || r.Table == want.Table) &&
			(want.Priority == 0 || r.Priority == want.Priority)
	})
}

// HasRoute tells whether there is a route by way of an interface.
func HasRoute(c *links.Conn, index int, want links.Route) (bool, error) {
	routes, err := c.Routes(index)
	return hasRoute(routes, want), err
}

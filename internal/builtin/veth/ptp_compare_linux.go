package veth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless both ends of the pair, addresses, routes and
// rules are as Add made them. Unlike the reference plugin it checks the host's
// end too. It does not check whether the host forwards: that affects all of the
// host's containers, which would all fail at once.
func (p PTP) Check(ctx context.Context, r *plugin.Request) error {
	c, err := loadPTP(r)
	if err != nil {
		return err
	}
	return ipam.CheckWith(ctx, r, c.IPAM.Type, p)
}

// Compare compares both ends of the pair, addresses, routes and rules with the
// attachment that Add made. Routes of the container lead to its subnet through
// the host's end.
func (PTP) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	c, err := loadPTP(r)
	if err != nil {
		return nil, err
	}
	end := Container(true)
	end.LinkLocal, end.Routes = true, subnetRoutes
	container, all, err := end.Compare(r, v)
	if err != nil {
		return nil, err
	}
	host, onHost, err := compareHost(r, v, container)
	if err != nil {
		return nil, err
	}
	rules, err := c.CompareMasquerade(ctx, r, v)
	if err != nil {
		return nil, err
	}
	compare.Announced(onHost, func(ctx context.Context, unanswered bool) error { return announce(ctx, r, host, unanswered) })
	all = append(append(all, onHost...), rules...)
	if host.Exists {
		off, err := forwarding(v, host.Link, r)
		if err != nil {
			return nil, err
		}
		all = append(all, off...)
	}
	return compare.Of(r.Type, all), nil
}

// subnetRoutes returns the routes of the container's addresses.
func subnetRoutes(result *types100.Result) (all []ipam.SubnetRoutes, err error) {
	ends, err := endpoints(result)
	for _, e := range ends {
		toGateway, toSubnet := e.routes()
		all = append(all, ipam.SubnetRoutes{Address: e.address, Routes: []links.Route{toGateway, toSubnet}})
	}
	return all, err
}

// compareHost compares the host's end, and its addresses and routes.
func compareHost(r *plugin.Request, v *compare.View, container ipam.Found) (Host, []compare.Difference, error) {
	ends, err := endpoints(own(r.PrevResult))
	if err != nil {
		return Host{}, nil, err
	}
	host, all, err := CompareHost(r, v, container, func(_ context.Context, conn *links.Conn, link links.Link) error {
		return setUp(conn, r, link, ends)
	})
	if err != nil || !host.Exists {
		return host, all, err
	}
	have, err := v.Host.Addresses(host.Index)
	if err != nil {
		return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
	}
	has := make(map[netip.Addr]bool)
	for _, a := range have {
		has[a.Addr()] = true
	}
	add := func(kind compare.Kind, what netip.Prefix, err error, fix func(context.Context, *links.Conn, links.Link) error) {
		all = append(all, host.Place(r).Lacks(compare.Difference{
			Kind: kind, Object: fmt.Sprintf("%s on %s", what, host.Name), Wanted: what.String(),
			Err: fmt.Errorf("interface %q on the host: %w", host.Name, err),
		}, fix))
	}
	for _, e := range ends {
		if !has[e.gateway] {
			add(compare.Address, single(e.gateway), fmt.Errorf("the gateway's address %s is missing", e.gateway),
				func(ctx context.Context, conn *links.Conn, _ links.Link) error {
					return assign(ctx, conn, host.Index, single(e.gateway))
				})
		}
		want := single(e.address.Addr())
		ok, err := ipam.HasRoute(v.Host, host.Index, want)
		if err != nil {
			return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
		}
		if !ok {
			add(compare.Route, want, fmt.Errorf("route %s is missing", want),
				func(_ context.Context, conn *links.Conn, _ links.Link) error { return route(conn, host.Index, want) })
		}
	}
	return host, all, nil
}

// announce has the host and the container find each other.
func announce(ctx context.Context, r *plugin.Request, host Host, unanswered bool) error {
	return host.Place(r).Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
		return Resolve(ctx, r, conn, host.Index, host.Peer.Index, compare.AddressesOf(own(r.PrevResult)), unanswered)
	})
}

// setUp sets the host's end up. The link-local address, which went when it was
// set down, comes first, because the kernel would first look for duplicates.
func setUp(conn *links.Conn, r *plugin.Request, link links.Link, ends []endpoint) error {
	for _, e := range ends {
		if e.gateway.Is6() {
			if _, err := conn.LinkLocal(r.Host, link); err != nil {
				return err
			}
		}
	}
	return conn.Change(link.Index, links.Change{Set: unix.IFF_UP})
}

// assign adds the address of a gateway to the host's end.
func assign(ctx context.Context, conn *links.Conn, index int, p netip.Prefix) error {
	if err := conn.AddAddress(index, p, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	return ipam.Await(ctx, conn, index, []netip.Prefix{p})
}

// route adds the host's route to an address of the container. A route through
// another interface belongs to somebody else.
func route(conn *links.Conn, index int, to netip.Prefix) error {
	if err := conn.AddRoute(index, toContainer(to), false, unix.EEXIST); err != nil {
		return err
	}
	ok, err := ipam.HasRoute(conn, index, to)
	if err == nil && !ok {
		err = fmt.Errorf("route %s leads through another interface", to)
	}
	return err
}

// forwarding compares the setting that concerns the container's packets.
func forwarding(v *compare.View, host links.Link, r *plugin.Request) ([]compare.Difference, error) {
	var v4, v6 bool
	for _, ip := range own(r.PrevResult).IPs {
		v4, v6 = v4 || ip.Address.IP.To4() != nil, v6 || ip.Address.IP.To4() == nil
	}
	return CompareForwarding(v, host, v4, v6)
}

// own returns a result with only the addresses of the container's interface.
func own(result *types100.Result) *types100.Result {
	filtered := &types100.Result{}
	for _, ip := range result.IPs {
		if ip != nil && ip.Interface != nil && *ip.Interface == containerInterface {
			filtered.IPs = append(filtered.IPs, ip)
		}
	}
	return filtered
}

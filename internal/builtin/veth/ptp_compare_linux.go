package veth

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

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
	return ipam.CheckWith(ctx, r, p)
}

// Compare compares both ends of the pair, addresses, routes and rules with the
// attachment that Add made. Routes of the container lead to its subnet through
// the host's end.
func (PTP) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	if _, err := loadPTP(r); err != nil {
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
	compare.Announced(onHost, func(ctx context.Context, unanswered bool) error {
		return host.Place(r).Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
			return Resolve(ctx, r, conn, host.Index, host.Peer.Index, unanswered)
		})
	})
	rules, err := CompareMasquerade(ctx, r, v)
	if err != nil {
		return nil, err
	}
	var off []compare.Difference
	if host.Exists {
		off, err = CompareForwarding(v, host.Link, compare.PrefixesOf(compare.OwnResult(r)))
	}
	return slices.Concat(all, onHost, rules, off), err
}

// compareHost compares the host's end, and its addresses and routes.
func compareHost(r *plugin.Request, v *compare.View, container ipam.Found) (Host, []compare.Difference, error) {
	ends, err := endpoints(compare.OwnResult(r))
	if err != nil {
		return Host{}, nil, err
	}
	restore := func(ctx context.Context, conn *links.Conn, link links.Link) error {
		return restoreHost(ctx, conn, r, link, ends)
	}
	reroute := func(_ context.Context, conn *links.Conn, link links.Link) error {
		return restoreRoutes(conn, link.Index, ends)
	}
	host, all, err := CompareHost(r, v, container, restore)
	if err != nil || !host.Exists {
		return host, all, err
	}
	have, err := v.Host.Addresses(host.Index)
	if err != nil {
		return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
	}
	lacks := func(kind compare.Kind, what netip.Prefix, err error, fix func(context.Context, *links.Conn, links.Link) error) {
		all = append(all, host.Place(r).Lacks(compare.Difference{
			Kind: kind, Object: fmt.Sprintf("%s on %s", what, host.Name), Wanted: what.String(),
			Err: fmt.Errorf("interface %q on the host: %w", host.Name, err),
		}, fix))
	}
	for _, e := range ends {
		if !slices.ContainsFunc(have, func(a links.Address) bool { return a.Addr() == e.gateway }) {
			lacks(compare.Address, single(e.gateway), fmt.Errorf("the gateway's address %s is missing", e.gateway), restore)
		}
		want := single(e.address.Addr())
		ok, err := ipam.HasRoute(v.Host, host.Index, want)
		if err != nil {
			return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
		}
		if !ok {
			lacks(compare.Route, want, fmt.Errorf("route %s is missing", want), reroute)
		}
	}
	return host, all, nil
}

// restoreHost sets the host's end up and adds the addresses that it lacks. The link-local
// address, which goes when the end is set down, comes first, because the kernel would first
// look for duplicates.
func restoreHost(ctx context.Context, conn *links.Conn, r *plugin.Request, link links.Link, ends []endpoint) error {
	if !link.Up() && slices.ContainsFunc(ends, func(e endpoint) bool { return e.gateway.Is6() }) {
		if _, err := conn.LinkLocal(r.Host, link); err != nil {
			return err
		}
	}
	if err := conn.Change(link.Index, links.Change{Set: unix.IFF_UP}); err != nil {
		return err
	}
	gateways, err := addGateways(conn, link.Index, ends)
	if err != nil {
		return err
	}
	return ipam.Await(ctx, conn, link.Index, gateways)
}

// restoreRoutes adds the host's routes that are missing. A route through another interface
// belongs to somebody else.
func restoreRoutes(conn *links.Conn, index int, ends []endpoint) error {
	if err := addRoutes(conn, index, ends); err != nil {
		return err
	}
	for _, e := range ends {
		want := single(e.address.Addr())
		if ok, err := ipam.HasRoute(conn, index, want); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("route %s leads through another interface", want)
		}
	}
	return nil
}

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Interface describes the interface in the container that a plugin's ADD makes,
// for comparisons.
type Interface struct {
	Up bool // it should be up
	// Fits returns the differences from the interface that the ADD made. It sets Wanted,
	// Found and Err. An interface that differs may be another one, so that a repair makes
	// nothing in it.
	Fits func(own links.Link, said *types100.Interface) ([]compare.Difference, error)
	// Gone says why a missing interface cannot be made again.
	Gone string
	// Detect is [How.Detect].
	Detect bool
	// LinkLocal gives the interface its link-local address before it is set up;
	// see [links.Conn.LinkLocal].
	LinkLocal bool
	// Routes returns the routes that replace the one to the subnet of an address,
	// which the kernel adds with the address. If it is nil, none do.
	Routes func(own *types100.Result) ([]SubnetRoutes, error)
}

// Found is the attachment's interface in the container.
type Found struct {
	links.Link
	Exists bool
	Ours   bool // it fits
}

// Compare compares the interface, its addresses and routes with the previous
// result.
func (i Interface) Compare(r *plugin.Request, v *compare.View) (found Found, all []compare.Difference, err error) {
	said, err := compare.Reported(r)
	if err != nil {
		return found, nil, err
	}
	found.Link, err = v.Container.Link(r.IfName)
	if links.NotFound(err) {
		return found, []compare.Difference{{
			Kind: compare.Interface, Inside: true, Object: r.IfName, Wanted: said.Mac,
			Err: fmt.Errorf("in the container: %w", err), Why: i.Gone,
		}}, nil
	}
	if err != nil {
		return found, nil, fmt.Errorf("in the container: %w", err)
	}
	found.Exists = true
	mismatches, err := i.Fits(found.Link, said)
	if err != nil {
		return found, nil, inContainer(r, err)
	}
	found.Ours = len(mismatches) == 0
	for _, d := range mismatches {
		d.Kind, d.Inside, d.Object = compare.Interface, true, r.IfName
		d.Err, d.Why = inContainer(r, d.Err), "it differs, and may be another interface"
		all = append(all, d)
	}
	rest, err := (&inside{Interface: i, r: r, v: v, own: found}).compare()
	return found, append(all, rest...), err
}

func inContainer(r *plugin.Request, err error) error {
	return fmt.Errorf("interface %q in the container: %w", r.IfName, err)
}

// SameMAC returns a difference unless an interface has the reported hardware
// address.
func SameMAC(own links.Link, said *types100.Interface) []compare.Difference {
	if compare.SameMAC(said.Mac, own.MAC) {
		return nil
	}
	has := own.MAC.String()
	return []compare.Difference{{Wanted: said.Mac, Found: has, Err: fmt.Errorf("its MAC address is %s, not %s", has, said.Mac)}}
}

// inside compares an interface that exists.
type inside struct {
	Interface
	r   *plugin.Request
	v   *compare.View
	own Found
}

func (c *inside) compare() ([]compare.Difference, error) {
	var all []compare.Difference
	if c.Up && !c.own.Up() {
		all = append(all, c.lacks(compare.Interface, c.r.IfName, "up", "down", errors.New("it is down"), c.setUp))
	}
	result := compare.OwnResult(c.r)
	if len(result.IPs) == 0 {
		return all, nil
	}
	w, err := plan(result)
	if err != nil {
		return all, inContainer(c.r, err)
	}
	addresses, err := c.addresses(w)
	if err != nil {
		return all, inContainer(c.r, err)
	}
	routes, err := c.routes(w, result)
	if err != nil {
		return all, inContainer(c.r, err)
	}
	return append(append(all, addresses...), routes...), nil
}

// lacks returns the difference of an object that fix makes again.
func (c *inside) lacks(kind compare.Kind, object, wanted, found string, err error, fix func(context.Context, *links.Conn, links.Link) error) compare.Difference {
	place := &compare.Place{
		NS: c.r.Container, Inside: true, Name: fmt.Sprintf("interface %q in the container", c.r.IfName),
		Find: func(conn *links.Conn) (links.Link, error) { return conn.Link(c.r.IfName) },
		Same: func(now links.Link) bool { return now.Index == c.own.Index },
	}
	if !c.own.Ours {
		place.Whose = "the interface may be another one"
	}
	return place.Lacks(compare.Difference{Kind: kind, Object: object, Wanted: wanted, Found: found, Err: inContainer(c.r, err)}, fix)
}

// setUp sets the interface up, as the ADD did.
func (c *inside) setUp(ctx context.Context, conn *links.Conn, _ links.Link) error {
	result := compare.OwnResult(c.r)
	subnets, err := c.subnets(result)
	if err != nil {
		return err
	}
	if c.LinkLocal && HasIPv6(result) {
		if _, err := conn.LinkLocal(c.r.Container, c.own.Link); err != nil {
			return err
		}
	}
	if err := conn.Up(c.own.Index); err != nil {
		return err
	}
	for _, s := range subnets {
		if s.Address.Addr().Is6() {
			continue
		}
		if err := s.Replace(conn, c.own.Index, true); err != nil {
			return err
		}
	}
	return c.replaceKept(ctx, conn, subnets)
}

// replaceKept replaces the routes of IPv6 addresses that the interface kept while it
// was down. Usually it has lost them: they come back with their routes, see assign.
func (c *inside) replaceKept(ctx context.Context, conn *links.Conn, subnets []SubnetRoutes) error {
	have, err := conn.Addresses(c.own.Index)
	if err != nil {
		return err
	}
	for _, s := range subnets {
		kept := slices.ContainsFunc(have, func(a links.Address) bool { return a.Prefix == s.Address })
		if s.Address.Addr().Is4() || !kept {
			continue
		}
		if err := c.replaceUsable(ctx, conn, s); err != nil {
			return err
		}
	}
	return nil
}

// replaceUsable replaces the routes of an address when that is usable: before, no IPv6
// route can have it as its source. After an interface was set up, that takes until the
// kernel has noticed the carrier.
func (c *inside) replaceUsable(ctx context.Context, conn *links.Conn, s SubnetRoutes) error {
	if err := Await(ctx, conn, c.own.Index, []netip.Prefix{s.Address}); err != nil {
		return err
	}
	return s.Replace(conn, c.own.Index, true)
}

// subnets returns the routes that replace those of the kernel.
func (c *inside) subnets(result *types100.Result) ([]SubnetRoutes, error) {
	if c.Routes == nil || len(result.IPs) == 0 {
		return nil, nil
	}
	return c.Routes(result)
}

// addresses compares the addresses, which must be usable. Others are the
// container's own.
func (c *inside) addresses(w wanted) (all []compare.Difference, err error) {
	have, err := c.v.Container.Addresses(c.own.Index)
	if err != nil {
		return nil, err
	}
	for _, want := range w.addresses {
		object := fmt.Sprintf("%s on %s", want, c.r.IfName)
		at := slices.IndexFunc(have, func(a links.Address) bool { return a.Prefix == want })
		other := slices.IndexFunc(have, func(a links.Address) bool { return a.Addr() == want.Addr() })
		missing := fmt.Errorf("address %s is missing", want)
		switch {
		case at >= 0 && !have[at].Duplicate:
		case at >= 0:
			all = append(all, c.lacks(compare.Address, object, want.String(), "duplicate",
				fmt.Errorf("address %s is another machine's too", want), nil))
		case other >= 0:
			all = append(all, c.lacks(compare.Address, object, want.String(), have[other].Prefix.String(), missing, nil))
		default:
			all = append(all, c.lacks(compare.Address, object, want.String(), "", missing,
				func(ctx context.Context, conn *links.Conn, _ links.Link) error { return c.assign(ctx, conn, want) }))
		}
	}
	return all, nil
}

// assign adds an address, as the ADD did. It removes one that another machine
// has by now. If the detection takes longer than the caller's patience, it leaves that to
// the kernel.
func (c *inside) assign(ctx context.Context, conn *links.Conn, want netip.Prefix) error {
	subnets, err := c.subnets(compare.OwnResult(c.r))
	if err != nil {
		return err
	}
	if err := conn.AddAddress(c.own.Index, want, c.Detect); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return nil
		}
		return err
	}
	for _, s := range subnets {
		if s.Address != want || !c.Up {
			continue
		}
		if err := c.replaceUsable(ctx, conn, s); err != nil {
			return err
		}
	}
	if want.Addr().Is4() {
		return nil
	}
	if !c.Detect {
		return Await(ctx, conn, c.own.Index, []netip.Prefix{want})
	}
	// Without a carrier the kernel looks for duplicates later.
	err = DetectAll(ctx, c.r.Container, conn, c.own.Index, []netip.Prefix{want}, 0)
	if err == nil || errors.Is(err, caller.ErrEnough) {
		return nil
	}
	return errors.Join(err, conn.DeleteAddress(c.own.Index, want))
}

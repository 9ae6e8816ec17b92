package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
)

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

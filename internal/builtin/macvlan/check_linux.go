package macvlan

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the interface exists on its master, in its mode,
// with the addresses of the result. It does not compare the MTU: a later plugin
// may have changed it without a word in the result, and the kernel lowers it
// with the master's.
func (Plugin) Check(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	if err := ipam.Check(ctx, r, c.IPAM.Type); err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	_, err = ipam.CheckInterface(ctx, r, true, func(own links.Link, said *types100.Interface) error {
		if own.Kind != "macvlan" {
			return fmt.Errorf("it is of type %q, not macvlan", own.Kind)
		}
		if c.mode != links.MacvlanPassthru { // with passthru it has the master's address
			if err := ipam.CompareMAC(own, said); err != nil {
				return err
			}
		}
		if own.MacvlanMode != c.mode {
			return fmt.Errorf("its mode is not %q", c.Mode)
		}
		return c.checkMaster(ctx, r, own)
	})
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// checkMaster returns an error unless the interface is on the configured master.
// The kernel deletes the interface with its master, so the master exists,
// perhaps under another name. A master that is not configured was the interface
// of the default route at the time, which may have changed.
func (c *config) checkMaster(ctx context.Context, r *plugin.Request, own links.Link) (err error) {
	if c.Master == "" {
		return nil
	}
	outside, err := caller.From(ctx).Conns.Borrow(c.masterNS(r))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outside.Close()) }()
	master, err := outside.Link(c.Master)
	if links.NotFound(err) {
		return nil
	}
	if err == nil && own.Peer.Index != master.Index {
		return fmt.Errorf("its master is interface %d, not %d, which is %q", own.Peer.Index, master.Index, master.Name)
	}
	return err
}

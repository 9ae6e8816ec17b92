package macvlan

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/prevresult"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check makes sure that the interface is there, on its master, in its mode, and
// has what the result says. The MTU is not compared: a plugin further behind may
// have set another without a word in the result, and the kernel lowers it with
// the master's.
func (Plugin) Check(ctx context.Context, r *plugin.Request) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c, err := parse(r)
	if err != nil {
		return err
	}
	if err := ipam.Check(ctx, r, c.IPAM.Type); err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	said, err := prevresult.Interface(r)
	if err != nil {
		return err
	}
	if err := c.checkLink(ctx, r, said); err != nil {
		return fmt.Errorf("network %q: interface %q: %w", r.Name, r.IfName, err)
	}
	return nil
}

func (c *config) checkLink(ctx context.Context, r *plugin.Request, said *types100.Interface) (err error) {
	inside, err := links.Borrow(ctx, r.Container)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, inside.Close()) }()
	own, err := inside.Link(r.IfName)
	switch {
	case err != nil:
		return err
	case own.Kind != "macvlan":
		return fmt.Errorf("it is of type %q, not macvlan", own.Kind)
	case c.mode != links.MacvlanPassthru && !prevresult.SameMAC(said.Mac, own.MAC): // there it is the master's
		return fmt.Errorf("its MAC address is %s, not %s", own.MAC, said.Mac)
	case !own.Up():
		return errors.New("it is down")
	}
	if err := c.checkMaster(ctx, r, own); err != nil {
		return err
	}
	if own.MacvlanMode != c.mode {
		return fmt.Errorf("its mode is not %q", c.Mode)
	}
	return ipam.Verify(inside, own.Index, prevresult.Own(r))
}

// checkMaster makes sure that the interface is on the master that is configured.
// The kernel deletes it with its master, so that one is there, perhaps under
// another name. One that is not configured was the interface of the default route
// at the time, which may lead another way by now.
func (c *config) checkMaster(ctx context.Context, r *plugin.Request, own links.Link) (err error) {
	if c.Master == "" {
		return nil
	}
	outside, err := links.Borrow(ctx, c.masterNS(r))
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

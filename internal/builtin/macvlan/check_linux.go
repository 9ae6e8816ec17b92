package macvlan

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check makes sure that the interface is there, on its master, in its mode, and
// has what the result says.
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
	reported, err := reportedInterface(r)
	if err != nil {
		return err
	}
	if err := c.checkLink(r, reported); err != nil {
		return fmt.Errorf("network %q: interface %q: %w", r.Name, r.IfName, err)
	}
	return nil
}

// reportedInterface is what the result says of the interface.
func reportedInterface(r *plugin.Request) (*types100.Interface, error) {
	if r.PrevResult == nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "there is no previous result")
	}
	for _, i := range r.PrevResult.Interfaces {
		if i.Name == r.IfName && i.Sandbox == r.NetNS {
			return i, nil
		}
	}
	return nil, fmt.Errorf("interface %q of namespace %q is not in the previous result", r.IfName, r.NetNS)
}

func (c *config) checkLink(r *plugin.Request, reported *types100.Interface) (err error) {
	outside, err := links.Dial(c.masterNS(r))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, outside.Close()) }()
	master, err := c.master(r, outside)
	if err != nil {
		return err
	}
	inside, err := links.Dial(r.Container)
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
	case own.Peer != master.Index:
		return fmt.Errorf("its master is interface %d, not %d, which is %q", own.Peer, master.Index, master.Name)
	case reported.Mac != "" && own.MAC.String() != reported.Mac:
		return fmt.Errorf("its MAC address is %s, not %s", own.MAC, reported.Mac)
	case c.MTU != 0 && own.MTU != c.MTU:
		return fmt.Errorf("its MTU is %d, not %d", own.MTU, c.MTU)
	case !own.Up():
		return errors.New("it is down")
	}
	if err := c.checkMode(r); err != nil {
		return err
	}
	return ipam.Verify(inside, own.Index, r.PrevResult)
}

func (c *config) checkMode(r *plugin.Request) error {
	handle, err := links.Open(r.Container)
	if err != nil {
		return err
	}
	defer handle.Close()
	link, err := handle.LinkByName(r.IfName)
	if err != nil {
		return err
	}
	has, ok := link.(*netlink.Macvlan)
	if want := modeOf(c.mode); !ok || has.Mode != want {
		return fmt.Errorf("its mode is not %q", c.Mode)
	}
	return nil
}

// modeOf is a mode as the netlink package counts them.
func modeOf(mode uint32) netlink.MacvlanMode {
	switch mode {
	case nl.MACVLAN_MODE_PRIVATE:
		return netlink.MACVLAN_MODE_PRIVATE
	case nl.MACVLAN_MODE_VEPA:
		return netlink.MACVLAN_MODE_VEPA
	case nl.MACVLAN_MODE_PASSTHRU:
		return netlink.MACVLAN_MODE_PASSTHRU
	}
	return netlink.MACVLAN_MODE_BRIDGE
}

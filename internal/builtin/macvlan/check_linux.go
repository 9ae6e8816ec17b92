package macvlan

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the interface exists on its master, in its mode,
// with the addresses of the result. It does not compare the MTU: a later plugin
// may have changed it without a word in the result, and the kernel lowers it
// with the master's.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error {
	c, err := parse(r)
	if err != nil {
		return err
	}
	err = ipam.Check(ctx, r, c.IPAM.Type)
	if err == nil {
		err = compare.Check(ctx, r, p)
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// Compare compares the interface, its master, its mode and its addresses with
// the attachment that Add made.
func (Plugin) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	c, err := parse(r)
	if err != nil {
		return nil, err
	}
	own := ipam.Interface{
		Up: true, Detect: true, Gone: "it is gone, perhaps with its master: a new one needs Remove and Setup",
		Fits: func(own links.Link, said *types100.Interface) ([]ipam.Mismatch, error) {
			return c.mismatches(v, own, said)
		},
	}
	_, all, err := own.Compare(r, v)
	return compare.Of(r.Type, all), err
}

func (c *config) mismatches(v *compare.View, own links.Link, said *types100.Interface) ([]ipam.Mismatch, error) {
	if own.Kind != "macvlan" {
		return []ipam.Mismatch{{Wanted: "macvlan", Found: own.Kind, Err: fmt.Errorf("it is of type %q, not macvlan", own.Kind)}}, nil
	}
	var all []ipam.Mismatch
	if c.mode != links.MacvlanPassthru { // with passthru it has the master's address
		all = ipam.SameMAC(own, said)
	}
	if own.MacvlanMode != c.mode {
		all = append(all, ipam.Mismatch{Wanted: "mode " + modeName(c.mode), Found: "mode " + modeName(own.MacvlanMode), Err: fmt.Errorf("its mode is not %q", c.Mode)})
	}
	other, err := c.otherMaster(v, own)
	return append(all, other...), err
}

// otherMaster returns a mismatch unless the interface is on the configured
// master. The kernel deletes the interface with its master, so the master
// exists, perhaps under another name. A master that is not configured was the
// interface of the default route at the time, which may have changed.
func (c *config) otherMaster(v *compare.View, own links.Link) ([]ipam.Mismatch, error) {
	if c.Master == "" {
		return nil, nil
	}
	outside := v.Host
	if c.InNetNS {
		outside = v.Container
	}
	master, err := outside.Link(c.Master)
	if links.NotFound(err) {
		return nil, nil
	}
	if err != nil || own.Peer.Index == master.Index {
		return nil, err
	}
	return []ipam.Mismatch{{
		Wanted: fmt.Sprint("master ", master.Name), Found: fmt.Sprint("master ", own.Peer.Index),
		Err: fmt.Errorf("its master is interface %d, not %d, which is %q", own.Peer.Index, master.Index, master.Name),
	}}, nil
}

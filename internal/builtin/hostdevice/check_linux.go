package hostdevice

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the interface exists with the addresses of the
// result. It ignores the alias, which DEL needs but the container does not.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Check(ctx, r, c.IPAM.Type)
	if err == nil {
		err = compare.Check(ctx, r, p)
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
}

// Compare compares the interface and its addresses with the attachment that Add
// made.
func (p Plugin) Compare(_ context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	var c config
	if err := r.Decode(&c); err != nil {
		return nil, err
	}
	said, err := compare.Reported(r)
	if err != nil || p.inUserSpace(r, &c, said) {
		return nil, err
	}
	own := ipam.Interface{
		Up: true, Detect: true, Gone: "the device is not in the container: moving it there again needs Remove and Setup",
		Fits: func(own links.Link, said *types100.Interface) ([]ipam.Mismatch, error) {
			return ipam.SameMAC(own, said), nil
		},
	}
	_, all, err := own.Compare(r, v)
	return compare.Of(r.Type, all), err
}

// inUserSpace reports whether the device has no interface that could be missing.
// Either Add found none, and reported no hardware address of a device on a bus,
// whatever /sys shows now; or a driver of user space has taken it since.
func (p Plugin) inUserSpace(r *plugin.Request, c *config, said *types100.Interface) bool {
	onBus := c.PCIBusID != "" || c.RuntimeConfig.DeviceID != ""
	if onBus && said.Mac == "" {
		return true
	}
	now, err := p.parse(r)
	return err == nil && now.userSpace
}

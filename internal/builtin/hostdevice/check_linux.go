package hostdevice

import (
	"context"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/prevresult"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the interface exists with the addresses of the
// result. It ignores the alias, which DEL needs but the container does not.
func (p Plugin) Check(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	if err := ipam.Check(ctx, r, c.IPAM.Type); err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	said, err := prevresult.Interface(r)
	if err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	if p.inUserSpace(r, &c, said) {
		return nil
	}
	if _, err := ipam.CheckInterface(ctx, r, true, ipam.CompareMAC); err != nil {
		return fmt.Errorf("network %q: %w", r.Name, err)
	}
	return nil
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

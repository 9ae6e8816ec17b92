package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the bridge, both ends of the pair, addresses,
// routes, gateway and rules are what Add made. It is stricter than the
// reference plugin, which does not look at what is the host's.
func (*Plugin) Check(ctx context.Context, r *plugin.Request) (err error) {
	c, err := load(r)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := ipam.Check(ctx, r, c.IPAM.Type); err != nil {
		return err
	}
	container, err := c.Check(ctx, r, !c.DisableContainerInterface)
	if err != nil {
		return err
	}
	host, err := links.Borrow(ctx, r.Host)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	br, err := c.checkBridge(host, r.PrevResult)
	if err != nil {
		return err
	}
	if err := c.checkPort(host, r, br, container); err != nil {
		return err
	}
	if err := c.checkGateway(host, r, br); err != nil {
		return err
	}
	if c.MACSpoofChk {
		if err := newSpoofCheck(r).check(ctx); err != nil {
			return err
		}
	}
	if c.IPAM.Type == "" {
		return nil
	}
	return c.CheckMasquerade(ctx, r, r.PrevResult)
}

func (c *config) checkBridge(host *links.Conn, result *types100.Result) (links.Link, error) {
	at := slices.IndexFunc(result.Interfaces, func(i *types100.Interface) bool { return i != nil && i.Name == c.Bridge && i.Sandbox == "" })
	if at < 0 {
		return links.Link{}, fmt.Errorf("prevResult has no bridge %q", c.Bridge)
	}
	br, err := host.Link(c.Bridge)
	switch said := result.Interfaces[at]; {
	case err != nil:
		return br, fmt.Errorf("bridge: %w", err)
	case br.Kind != "bridge":
		return br, fmt.Errorf("interface %q is not a bridge, but %q", c.Bridge, br.Kind)
	case !br.Up():
		return br, fmt.Errorf("bridge %q is down", c.Bridge)
	case said.Mac != "" && said.Mac != br.MAC.String():
		return br, fmt.Errorf("bridge %q has the MAC address %s, not %s", c.Bridge, br.MAC, said.Mac)
	case br.Promiscuous != c.PromiscMode:
		return br, fmt.Errorf(`"promiscMode": that of bridge %q is %t, not %t`, c.Bridge, br.Promiscuous, c.PromiscMode)
	case c.filtersVLANs() && !br.VLANFiltering:
		return br, fmt.Errorf(`"vlan", "vlanTrunk": bridge %q does not keep VLANs apart`, c.Bridge)
	}
	return br, nil
}

func (c *config) checkPort(host *links.Conn, r *plugin.Request, br, container links.Link) error {
	port, err := c.CheckHost(host, r, container)
	switch {
	case err != nil:
		return err
	case port.Master != br.Index:
		return fmt.Errorf("interface %q is not on bridge %q", port.Name, br.Name)
	case port.Hairpin != c.HairpinMode:
		return fmt.Errorf(`"hairpinMode": that of interface %q is %t, not %t`, port.Name, port.Hairpin, c.HairpinMode)
	case port.Isolated != c.PortIsolation:
		return fmt.Errorf(`"portIsolation": that of interface %q is %t, not %t`, port.Name, port.Isolated, c.PortIsolation)
	}
	return nil
}

// checkGateway looks for the addresses that the containers send to.
func (c *config) checkGateway(host *links.Conn, r *plugin.Request, br links.Link) error {
	if !c.IsGateway || c.IPAM.Type == "" {
		return nil
	}
	wanted, err := gateways(r.PrevResult)
	if err != nil {
		return err
	}
	on := br
	if c.VLAN != 0 {
		if on, err = host.Link(fmt.Sprintf("%s.%d", br.Name, c.VLAN)); err != nil {
			return fmt.Errorf("gateway of the VLAN: %w", err)
		}
	}
	have, err := host.Addresses(on.Index)
	if err != nil {
		return err
	}
	for _, want := range wanted {
		if !slices.ContainsFunc(have, func(a links.Address) bool { return a.Prefix == want }) {
			return fmt.Errorf("interface %q lacks the gateway's address %s", on.Name, want)
		}
	}
	return links.CheckForwarding(host, forwarding(wanted))
}

// gateways are the addresses that the bridge has for a result.
func gateways(result *types100.Result) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, ip := range result.IPs {
		if ip == nil || ip.Gateway == nil || ip.Interface == nil || *ip.Interface != containerInterface {
			continue
		}
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return nil, err
		}
		if gateway, ok := netip.AddrFromSlice(ip.Gateway); ok {
			all = append(all, netip.PrefixFrom(gateway.Unmap(), p.Bits()))
		}
	}
	return all, nil
}

package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter/nftform"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the bridge, both ends of the pair, addresses,
// routes, gateway and rules are as Add made them. Unlike the reference plugin it
// checks the host's end, the gateway and the rules too.
func (*Plugin) Check(ctx context.Context, r *plugin.Request) error {
	c, err := load(r)
	if err != nil {
		return err
	}
	err = c.Check(ctx, r, !c.DisableContainerInterface, func(host *links.Conn, container links.Link) error {
		br, err := c.checkBridge(host, r.PrevResult)
		if err != nil {
			return err
		}
		if err := c.checkPort(host, r, br, container); err != nil {
			return err
		}
		return c.checkGateway(host, r, br)
	})
	if err != nil {
		return err
	}
	if c.MACSpoofChk {
		err := spoofCheck(caller.From(ctx), r, func(s nftform.SpoofCheck) error { return s.Check(ctx) })
		if err != nil {
			return err
		}
	}
	if c.IPAM.Type == "" {
		return nil
	}
	return c.CheckMasquerade(ctx, r)
}

// checkBridge checks the properties of the bridge that every attachment needs,
// and the mode that Add has set. The rest belongs to the host: the bridge's MAC
// address follows its ports unless somebody sets it, and VLAN filtering and MTU
// are shared by all of its ports, some of which may be an administrator's.
func (c *config) checkBridge(host *links.Conn, result *types100.Result) (links.Link, error) {
	if !slices.ContainsFunc(result.Interfaces, func(i *types100.Interface) bool { return i != nil && i.Name == c.Bridge && i.Sandbox == "" }) {
		return links.Link{}, fmt.Errorf("prevResult has no bridge %q", c.Bridge)
	}
	br, err := host.Link(c.Bridge)
	switch {
	case err != nil:
		return br, fmt.Errorf("bridge: %w", err)
	case br.Kind != "bridge":
		return br, fmt.Errorf("interface %q is not a bridge, but %q", c.Bridge, br.Kind)
	case !br.Up():
		return br, fmt.Errorf("bridge %q is down", c.Bridge)
	case c.PromiscMode && !br.Promiscuous():
		return br, fmt.Errorf(`"promiscMode": bridge %q is not in promiscuous mode`, c.Bridge)
	}
	return br, nil
}

// checkPort returns an error unless the host's end is on the bridge, in the
// configured modes. Other programs may set more: the kubelet used to set hairpin
// mode.
func (c *config) checkPort(host *links.Conn, r *plugin.Request, br, container links.Link) error {
	port, err := c.CheckHost(host, r, container)
	switch {
	case err != nil:
		return err
	case port.Port.Master != br.Index:
		return fmt.Errorf("interface %q is not on bridge %q", port.Name, br.Name)
	case c.HairpinMode && !port.Port.Hairpin:
		return fmt.Errorf(`"hairpinMode": interface %q is not in hairpin mode`, port.Name)
	case c.PortIsolation && !port.Port.Isolated:
		return fmt.Errorf(`"portIsolation": interface %q is not isolated`, port.Name)
	}
	return nil
}

// checkGateway checks the addresses that the containers send to. It does not
// check whether the host forwards: if not, somebody has turned it off for all.
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
		if !slices.ContainsFunc(have, func(a links.Address) bool { return c.serves(a, want) }) {
			return fmt.Errorf("interface %q lacks the gateway's address %s", on.Name, want)
		}
	}
	return nil
}

// serves reports whether an address of the bridge is the wanted gateway. Its
// subnet may be wider by now. With forceAddress, an address of another range or
// network may replace one of the same family.
func (c *gatewayConfig) serves(a links.Address, want netip.Prefix) bool {
	if a.Addr() == want.Addr() {
		return true
	}
	return c.ForceAddress && a.Addr().Is4() == want.Addr().Is4() && !a.Addr().IsLinkLocalUnicast()
}

// gateways returns the addresses of the bridge for a result.
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

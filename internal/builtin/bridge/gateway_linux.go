package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// setGateways completes the IPAM plugin's result. The addresses are those of the
// container's interface, which is the third. If the bridge is the gateway, the
// gateway of a subnet is its first address unless the plugin named another; if
// it is the default gateway, each family gets a default route. setGateways
// returns the addresses for the bridge.
func (c *config) setGateways(result *types100.Result) ([]netip.Prefix, error) {
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(containerInterface)
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return nil, err
		}
		if !c.IsGateway {
			continue
		}
		if ip.Gateway == nil {
			ip.Gateway = p.Masked().Addr().Next().AsSlice()
		}
		if _, ok := netip.AddrFromSlice(ip.Gateway); !ok {
			return nil, fmt.Errorf(`"isGateway": there is no address for the gateway of %s`, p)
		}
		if c.IsDefaultGateway {
			addDefault(result, p.Addr().Is4(), ip.Gateway)
		}
	}
	return c.gateways(result)
}

// gateways returns the addresses of the bridge for a result.
func (c *config) gateways(result *types100.Result) (all []netip.Prefix, err error) {
	for _, ip := range result.IPs {
		if !c.IsGateway || ip == nil || ip.Gateway == nil || ip.Interface == nil || *ip.Interface != containerInterface {
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

// addDefault adds a default route unless the family has one.
func addDefault(result *types100.Result, v4 bool, gateway net.IP) {
	for _, r := range result.Routes {
		if r == nil {
			continue
		}
		if ones, _ := r.Dst.Mask.Size(); ones == 0 && (r.Dst.IP.To4() != nil) == v4 {
			return
		}
	}
	dst := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if v4 {
		dst = net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	}
	result.Routes = append(result.Routes, &types.Route{Dst: dst, GW: gateway})
}

// ensureAddresses assigns the missing addresses of gateways to the bridge. A
// bridge has one IPv4 address, and IPv6 addresses of subnets that do not
// overlap; another one is an error, or is deleted if the configuration forces
// it. Many attachments may do this at once. It returns the addresses that it
// added; if detect is set, the kernel detects their duplicates.
func (c *config) ensureAddresses(conn *links.Conn, br links.Link, have []links.Address, wanted []netip.Prefix, detect bool) (added []netip.Prefix, err error) {
	for _, want := range wanted {
		present, others := conflicts(have, want)
		if present {
			continue
		}
		for _, other := range others {
			if !c.ForceAddress {
				return nil, plugin.Errorf(types.ErrInvalidNetworkConfig,
					`interface %q has the address %s already, and not %s: set "forceAddress" to replace it`, br.Name, other, want)
			}
			if err := conn.DeleteAddress(br.Index, other); err != nil {
				return nil, err
			}
		}
		if err := conn.AddAddress(br.Index, want, detect); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("interface %q: %w", br.Name, err)
		}
		have = append(have, links.Address{Prefix: want})
		added = append(added, want)
	}
	if len(added) == 0 {
		return nil, nil
	}
	// The MAC address of a bridge that somebody else made may change with its
	// ports, and containers that know it would lose their gateway. A fixed
	// address stays.
	if err := conn.Change(br.Index, links.Change{MAC: br.MAC}); err != nil {
		return nil, fmt.Errorf("pin the MAC address of interface %q: %w", br.Name, err)
	}
	return added, nil
}

// conflicts reports whether an address already exists, or else returns the
// addresses that exclude it.
func conflicts(have []links.Address, want netip.Prefix) (present bool, others []netip.Prefix) {
	for _, a := range have {
		switch {
		case a.Prefix == want:
			return true, nil
		case a.Addr().Is4() != want.Addr().Is4():
		case want.Addr().Is4(), a.Overlaps(want):
			others = append(others, a.Prefix)
		}
	}
	return false, others
}

// Gateways completes a result of the IPAM plugin as Add does. It reports whether the
// bridge has the addresses of the gateways.
func (*Plugin) Gateways(r *plugin.Request, result *types100.Result) (onHost bool, err error) {
	c, err := load(r)
	if err != nil {
		return false, err
	}
	_, err = c.setGateways(result)
	return c.IsGateway, err
}

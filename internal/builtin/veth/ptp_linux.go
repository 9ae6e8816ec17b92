package veth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// PTP is the plugin "ptp": it connects a container to the host by a veth
// pair without any other machine. The host routes to each address of the
// container, which sends everything to the host.
//
// It takes the configuration of the reference plugin, and returns the same
// result. IPv6 addresses, including the link-local ones, are usable at once:
// there is no duplicate address detection, because nobody else is on the link.
type PTP struct{ ipam.Collector }

// containerInterface is the index of the container's interface in the result,
// after the host's.
const containerInterface = 1

func loadPTP(r *plugin.Request) (*Config, error) {
	var c Config
	if err := r.Decode(&c); err != nil {
		return nil, err
	}
	return &c, c.Validate()
}

// OnlyExecutable returns an error if only the executable carries out a configuration.
func (PTP) OnlyExecutable(config json.RawMessage) error {
	return OnlyExecutable(known.PTP, config)
}

// load reads a configuration for an ADD of this plugin.
func (p PTP) load(r *plugin.Request) (*Config, error) {
	c, err := loadPTP(r)
	if err == nil {
		err = p.OnlyExecutable(r.Config)
	}
	if err == nil {
		err = ipam.Named(r, c.IPAM.Type)
	}
	return c, err
}

// Add connects the container.
func (p PTP) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.load(r)
	if err != nil {
		return nil, err
	}
	return Add(ctx, r, c.IPAM.Type, func(e *Ends) ipam.Maker { return &pointToPoint{Config: c, Ends: e} })
}

// pointToPoint is an attachment in progress.
type pointToPoint struct {
	*Config
	*Ends
	// linkLocal holds the link-local addresses of the ends; see
	// [links.Conn.LinkLocal].
	linkLocal struct{ host, container netip.Prefix }
}

// Make creates the pair, and gives the host's end its link-local address while
// it has no carrier: the container's end is still down.
func (a *pointToPoint) Make(context.Context) (err error) {
	a.Pair, err = links.Veth{Name: a.Request.IfName, MTU: a.MTU}.Create(a.OnHost, a.Request.Container)
	if err != nil {
		return err
	}
	a.linkLocal.host, err = a.OnHost.LinkLocal(a.Request.Host, a.Host)
	return err
}

// Configure assigns addresses and routes to both ends.
func (a *pointToPoint) Configure(ctx context.Context, result *types100.Result) error {
	host, container := a.Interfaces()
	result.Interfaces = []*types100.Interface{host, container}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(containerInterface)
	}
	a.SetDNS(result)
	ends, err := endpoints(result)
	if err != nil {
		return err
	}
	if err := a.configureContainer(ctx, result); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	if err := a.configureHost(ends); err != nil {
		return fmt.Errorf("interface %q on the host: %w", a.Host.Name, err)
	}
	if err := a.settle(ctx, result, ends); err != nil {
		return err
	}
	return a.Masquerade(ctx, a.Request, result)
}

// settle waits until packets pass.
func (a *pointToPoint) settle(ctx context.Context, result *types100.Result, ends []endpoint) error {
	var container, host []netip.Prefix
	if ipam.HasIPv6(result) {
		container, host = []netip.Prefix{a.linkLocal.container}, []netip.Prefix{a.linkLocal.host}
	}
	for _, e := range ends {
		container = append(container, e.address)
		host = append(host, single(e.gateway))
	}
	if err := ipam.Await(ctx, a.InContainer, a.Container.Index, container); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	if err := ipam.Await(ctx, a.OnHost, a.Host.Index, host); err != nil {
		return fmt.Errorf("interface %q on the host: %w", a.Host.Name, err)
	}
	return a.AwaitRunning(ctx)
}

// endpoint is an address of the container, in its subnet, with its gateway on
// the host.
type endpoint struct {
	address netip.Prefix
	gateway netip.Addr
}

// endpoints reads the addresses of a result.
func endpoints(result *types100.Result) ([]endpoint, error) {
	var all []endpoint
	for _, ip := range result.IPs {
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return nil, err
		}
		gateway, ok := netip.AddrFromSlice(ip.Gateway)
		if !ok {
			return nil, plugin.Errorf(types.ErrInvalidNetworkConfig,
				`"ipam": address %s has no gateway, which is the address of the host's end`, p)
		}
		all = append(all, endpoint{p, gateway.Unmap()})
	}
	return all, nil
}

// subnetRoutes returns the container's routes to the gateways and, through them, to the
// rest of the subnets, whose addresses are on other links.
func subnetRoutes(result *types100.Result) (all []ipam.SubnetRoutes, err error) {
	ends, err := endpoints(result)
	for _, e := range ends {
		toGateway := links.Route{Dst: single(e.gateway), Src: e.address.Addr(), Scope: unix.RT_SCOPE_LINK}
		toSubnet := links.Route{Dst: e.address.Masked(), Via: e.gateway, Src: e.address.Addr()}
		all = append(all, ipam.SubnetRoutes{Address: e.address, Routes: []links.Route{toGateway, toSubnet}})
	}
	return all, err
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// configureContainer sets the container's end up. An address adds a route to its
// subnet, as if the subnet were on the link. The kernel may require it for the
// routes of the IPAM plugin; it is replaced afterwards.
func (a *pointToPoint) configureContainer(ctx context.Context, result *types100.Result) error {
	sysctls, err := ipam.Sysctls(a.Request.IfName, result)
	if err != nil {
		return err
	}
	if err := a.EnterContainer(ctx, sysctls...); err != nil {
		return err
	}
	conn, index := a.InContainer, a.Container.Index
	if ipam.HasIPv6(result) {
		own, err := conn.LinkByIndex(index)
		if err != nil {
			return err
		}
		if a.linkLocal.container, err = conn.LinkLocal(a.Request.Container, own); err != nil {
			return err
		}
	}
	if err := ipam.Configure(conn, index, result, ipam.How{}); err != nil {
		return err
	}
	subnets, err := subnetRoutes(result)
	for _, s := range subnets {
		if err := s.Replace(conn, index, false); err != nil {
			return err
		}
	}
	return err
}

// configureHost assigns the addresses of the gateways to the host's end, adds
// routes to the container's addresses, and makes the host forward.
func (a *pointToPoint) configureHost(ends []endpoint) error {
	gateways, err := addGateways(a.OnHost, a.Host.Index, ends)
	if err == nil {
		err = addRoutes(a.OnHost, a.Host.Index, ends)
	}
	if err != nil {
		return err
	}
	settings := MissingForwarding(a.OnHost, gateways)
	link, err := a.OnHost.LinkByIndex(a.Host.Index)
	if err != nil {
		return err
	}
	a.Host.OperState = link.OperState
	if ra := NoRA(link.Name); !link.Has(ra) {
		settings = append(settings, ra)
	}
	return links.WriteSysctls(a.Request.Host, settings...)
}

// addGateways adds the addresses of the gateways, as far as they are missing, and returns
// them.
func addGateways(conn *links.Conn, index int, ends []endpoint) (gateways []netip.Prefix, err error) {
	for _, e := range ends {
		gateways = append(gateways, single(e.gateway))
		if err := conn.AddAddress(index, single(e.gateway), false, unix.EEXIST); err != nil {
			return nil, err
		}
	}
	return gateways, nil
}

// addRoutes adds the host's routes to the addresses of the container, unless there are some.
func addRoutes(conn *links.Conn, index int, ends []endpoint) error {
	for _, e := range ends {
		err := conn.AddRoute(index, links.Route{Dst: single(e.address.Addr()), Scope: unix.RT_SCOPE_HOST}, false, unix.EEXIST)
		if err != nil {
			return err
		}
	}
	return nil
}

// Del disconnects the container.
func (PTP) Del(ctx context.Context, r *plugin.Request) error {
	var c Config
	if err := r.Decode(&c); err != nil {
		return err
	}
	return c.Delete(ctx, r)
}

// Status asks the IPAM plugin.
func (p PTP) Status(ctx context.Context, r *plugin.Request) error {
	c, err := p.load(r)
	if err != nil {
		return err
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// Gateways reports that the host's end of the pair has the addresses of the gateways.
func (PTP) Gateways(_ *plugin.Request, result *types100.Result) (onHost bool, err error) {
	_, err = endpoints(result)
	return true, err
}

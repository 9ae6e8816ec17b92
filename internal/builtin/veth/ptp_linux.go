package veth

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
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
	return OnlyExecutable(conflist.PTP, config)
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
	return Add(ctx, r, c.IPAM.Type, func(e *Ends) ipam.Maker { return &pointToPoint{conf: c, ends: e} })
}

// pointToPoint is an attachment in progress.
type pointToPoint struct {
	conf      *Config
	ends      *Ends
	linkLocal netip.Prefix   // of the host's end; see [links.LinkLocal]
	inside    []netip.Prefix // the addresses of the container's end, with its link-local one
	gateways  []netip.Prefix // that were added to the host's end
}

// Make creates the pair, and gives the host's end its link-local address while
// it has no carrier: the container's end is still down.
func (a *pointToPoint) Make(context.Context) (err error) {
	a.ends.Pair, err = links.Veth{Name: a.ends.Request.IfName, MTU: a.conf.MTU}.Create(a.ends.OnHost, a.ends.Request.Container)
	if err != nil {
		return err
	}
	a.linkLocal, err = links.LinkLocal(a.ends.OnHost, a.ends.Request.Host, a.ends.Host)
	return err
}

// Configure assigns addresses and routes to both ends.
func (a *pointToPoint) Configure(ctx context.Context, result *types100.Result) error {
	host, container := a.ends.Interfaces()
	result.Interfaces = []*types100.Interface{host, container}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(containerInterface)
	}
	a.conf.SetDNS(result)
	ends, err := endpoints(result)
	if err != nil {
		return err
	}
	if a.inside, err = a.ends.MakeContainer(ctx, end(), result); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.ends.Request.IfName, err)
	}
	if err := a.configureHost(ends); err != nil {
		return fmt.Errorf("interface %q on the host: %w", a.ends.Host.Name, err)
	}
	if err := a.settle(ctx, result); err != nil {
		return err
	}
	return a.conf.Masquerade(ctx, a.ends.Request, result)
}

// settle waits until packets pass.
func (a *pointToPoint) settle(ctx context.Context, result *types100.Result) error {
	if err := ipam.Await(ctx, a.ends.InContainer, a.ends.Container.Index, a.inside); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.ends.Request.IfName, err)
	}
	if ipam.HasIPv6(result) {
		if err := ipam.Await(ctx, a.ends.OnHost, a.ends.Host.Index, append(a.gateways, a.linkLocal)); err != nil {
			return fmt.Errorf("interface %q on the host: %w", a.ends.Host.Name, err)
		}
	}
	return a.ends.AwaitRunning(ctx)
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

// end describes the container's end.
func end() ipam.Interface {
	i := Container(true)
	i.LinkLocal, i.Routes = true, subnetRoutes
	return i
}

// Undo deletes the pair, if it was made.
func (a *pointToPoint) Undo(ctx context.Context) error { return a.ends.Undo(ctx) }

// configureHost assigns the addresses of the gateways to the host's end, adds
// routes to the container's addresses, and makes the host forward.
func (a *pointToPoint) configureHost(ends []endpoint) error {
	link, err := a.ends.OnHost.LinkByIndex(a.ends.Host.Index)
	if err != nil {
		return err
	}
	a.ends.Host.OperState = link.OperState
	if a.gateways, err = hostEnd().Fill(a.ends.Request.Host, a.ends.OnHost, link, gatewaysOf(ends)); err != nil {
		return err
	}
	if err := addRoutes(a.ends.OnHost, link.Index, ends); err != nil {
		return err
	}
	settings := MissingForwarding(a.ends.OnHost, gatewaysOf(ends))
	if ra := NoRA(link.Name); !link.Has(ra) {
		settings = append(settings, ra)
	}
	return links.WriteSysctls(a.ends.Request.Host, settings...)
}

// gatewaysOf returns the addresses of the host's end.
func gatewaysOf(ends []endpoint) (all []netip.Prefix) {
	for _, e := range ends {
		all = append(all, single(e.gateway))
	}
	return all
}

// hostEnd describes the end on the host.
func hostEnd() ipam.Interface { return ipam.Interface{Up: true, LinkLocal: true} }

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

// Check returns an error unless both ends of the pair, addresses, routes and
// rules are as Add made them. Unlike the reference plugin it checks the host's
// end too. It does not check whether the host forwards: that affects all of the
// host's containers, which would all fail at once.
func (p PTP) Check(ctx context.Context, r *plugin.Request) error {
	return ipam.CheckWith(ctx, r, p)
}

// Compare compares both ends of the pair, addresses, routes and rules with the
// attachment that Add made. Routes of the container lead to its subnet through
// the host's end.
func (PTP) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	if _, err := loadPTP(r); err != nil {
		return nil, err
	}
	container, all, err := end().Compare(r, v)
	if err != nil {
		return nil, err
	}
	host, onHost, err := compareHost(r, v, container)
	if err != nil {
		return nil, err
	}
	contract.Announced(onHost, func(ctx context.Context, unanswered bool) error {
		return host.Place(r).Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
			return Resolve(ctx, r, conn, host.Index, host.Peer.Index, unanswered)
		})
	})
	rules, err := CompareMasquerade(ctx, r, v)
	if err != nil {
		return nil, err
	}
	var off []contract.Difference
	if host.Exists {
		off, err = CompareForwarding(v, host.Link, contract.PrefixesOf(contract.OwnResult(r)))
	}
	return slices.Concat(all, onHost, rules, off), err
}

// compareHost compares the host's end, and its addresses and routes.
func compareHost(r *plugin.Request, v *contract.View, container ipam.Found) (Host, []contract.Difference, error) {
	ends, err := endpoints(contract.OwnResult(r))
	if err != nil {
		return Host{}, nil, err
	}
	restore := func(ctx context.Context, conn *links.Conn, link links.Link) error {
		return hostEnd().Complete(ctx, r.Host, conn, link, gatewaysOf(ends))
	}
	reroute := func(_ context.Context, conn *links.Conn, link links.Link) error {
		return restoreRoutes(conn, link.Index, ends)
	}
	host, all, err := CompareHost(r, v, container, restore)
	if err != nil || !host.Exists {
		return host, all, err
	}
	have, err := v.Host.Addresses(host.Index)
	if err != nil {
		return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
	}
	lacks := func(kind contract.Kind, what netip.Prefix, err error, fix contract.Make) {
		all = append(all, host.Place(r).Lacks(contract.Difference{
			Kind: kind, Object: fmt.Sprintf("%s on %s", what, host.Name), Wanted: what.String(),
			Err: fmt.Errorf("interface %q on the host: %w", host.Name, err),
		}, fix))
	}
	for _, e := range ends {
		if !slices.ContainsFunc(have, func(a links.Address) bool { return a.Addr() == e.gateway }) {
			lacks(contract.Address, single(e.gateway), fmt.Errorf("the gateway's address %s is missing", e.gateway), restore)
		}
		want := single(e.address.Addr())
		ok, err := ipam.HasRoute(v.Host, host.Index, want)
		if err != nil {
			return host, nil, fmt.Errorf("interface %q on the host: %w", host.Name, err)
		}
		if !ok {
			lacks(contract.Route, want, fmt.Errorf("route %s is missing", want), reroute)
		}
	}
	return host, all, nil
}

// restoreRoutes adds the host's routes that are missing. A route through another interface
// belongs to somebody else.
func restoreRoutes(conn *links.Conn, index int, ends []endpoint) error {
	if err := addRoutes(conn, index, ends); err != nil {
		return err
	}
	for _, e := range ends {
		want := single(e.address.Addr())
		if ok, err := ipam.HasRoute(conn, index, want); err != nil {
			return err
		} else if !ok {
			return fmt.Errorf("route %s leads through another interface", want)
		}
	}
	return nil
}

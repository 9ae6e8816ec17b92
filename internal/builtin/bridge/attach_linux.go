package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
)

// containerInterface is the index of the container's interface in the result,
// behind the bridge and the host's end.
const containerInterface = 2

// attachment is one that is being made.
type attachment struct {
	*config
	*veth.Ends
	plugin *Plugin
	bridge links.Link
	made   bool // this attachment created the bridge
	lan    bool // machines other than containers may have its addresses
	detect bool // detect duplicates of the container's IPv6 addresses
	aside  bool // addresses are announced beside the rest of Add
	result *types100.Result
}

// Make makes the bridge and the pair, which need no address.
func (a *attachment) Make(context.Context) (err error) {
	if a.bridge, a.made, err = a.ensureBridge(a.OnHost, a.Request.Host); err != nil {
		return err
	}
	a.Pair, err = links.Veth{
		Name: a.Request.IfName, MAC: a.mac, MTU: a.MTU, Master: a.bridge.Index,
	}.Create(a.OnHost, a.Request.Container)
	if err != nil {
		return err
	}
	a.aside = a.plugin.crowded(a.place())
	return a.configurePort(a.OnHost, a.bridge, a.Host)
}

// place is which bridge it is, on which host.
func (a *attachment) place() place { return place{a.Request.Host.ID(), a.bridge.Index} }

// Configure gives the pair and the bridge their addresses.
func (a *attachment) Configure(ctx context.Context, result *types100.Result) error {
	a.result = result
	host, container := a.Interfaces()
	br := &types100.Interface{Name: a.bridge.Name}
	a.result.Interfaces = []*types100.Interface{br, host, container}
	a.SetDNS(a.result)

	addrs, gateways, err := a.setGateways(a.result)
	if err != nil {
		return err
	}
	if err := a.decideDetection(); err != nil {
		return err
	}
	if a.MACSpoofChk { // before it can send
		err := spoofCheck(ctx, a.Request, func(s netfilter.SpoofCheck) error {
			return s.Add(ctx, a.Host.Name, a.Container.MAC)
		})
		if err != nil {
			return err
		}
	}
	if err := a.configureContainer(ctx); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	if err := a.makeGateway(ctx, gateways, br); err != nil {
		return err
	}
	if err := a.settle(ctx, addrs); err != nil {
		return err
	}
	if a.IPAM.Type == "" { // as where the container's end is down
		return nil
	}
	if err := a.announce(ctx); err != nil {
		return err
	}
	return a.Masquerade(ctx, a.Request, a.result)
}

// announce tells neighbours, who may have known another container by them, of
// the IPv4 addresses. Packets pass.
func (a *attachment) announce(ctx context.Context) error {
	addrs := ipam.IPv4(a.result)
	if a.aside {
		return a.InContainer.AnnounceAside(ctx, a.Request.Container, a.Container, addrs)
	}
	if len(addrs) == 0 {
		return nil
	}
	return a.InContainer.Announce(a.Container)
}

// configureContainer sets the container's end up, with its addresses if there
// are any.
func (a *attachment) configureContainer(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	var sysctls []links.Sysctl
	if a.IPAM.Type != "" {
		more, err := ipam.Sysctls(a.Request.IfName, a.result)
		if err != nil {
			return err
		}
		sysctls = append(a.detection(), more...)
	}
	if err := a.EnterContainer(ctx, sysctls...); err != nil {
		return err
	}
	do, index := a.InContainer.Requests(), a.Container.Index
	if a.IPAM.Type == "" {
		do.Up(index)
	} else if err := ipam.Configure(do, index, a.result, ipam.How{Announce: true, Later: true, Detect: true}); err != nil {
		return err
	}
	return do.Send()
}

// detection are the settings about IPv6 neighbours: whether duplicates are
// looked for, also of the address that the kernel gives the interface by
// itself, and that addresses are announced. A container that gets no IPv6
// address keeps the namespace's, which costs nothing.
func (a *attachment) detection() []links.Sysctl {
	if !a.detect && !ipam.HasIPv6(a.result) {
		return nil
	}
	v6 := "net/ipv6/conf/" + a.Request.IfName
	all := []links.Sysctl{ipam.Announced(a.Request.IfName)}
	switch {
	case !a.detect:
		return append(all, links.Sysctl{Path: v6 + "/accept_dad", Value: "0", Optional: true})
	case a.EnableDAD == nil: // the interface's settings decide
		return all
	}
	return append(all,
		links.Sysctl{Path: v6 + "/enhanced_dad", Value: "1", Optional: true},
		links.Sysctl{Path: v6 + "/accept_dad", Value: "1", Optional: true})
}

// makeGateway gives the bridge, or its interface in the VLAN, the addresses of
// the gateways, and has the host forward. It completes the result by the
// bridge's address, which changes with its ports if somebody else made it, and
// sees packets pass. What it asks it asks at once.
func (a *attachment) makeGateway(ctx context.Context, addrs []netip.Prefix, br *types100.Interface) error {
	on := a.bridge
	if a.VLAN != 0 && len(addrs) > 0 {
		var err error
		if on, err = a.ensureVLANInterface(a.OnHost, a.Request, a.bridge); err != nil {
			return err
		}
		a.result.Interfaces = append(a.result.Interfaces, &types100.Interface{Name: on.Name, Mac: on.MAC.String()})
	}
	ask := a.OnHost.Requests()
	families := forwarding(addrs)
	forwards := make([]*bool, len(families))
	for i, v6 := range families {
		forwards[i] = ask.Forwarding(v6)
	}
	end, bridge := ask.LinkByIndex(a.Host.Index), ask.LinkByIndex(a.bridge.Index)
	known := a.knownAs(ask, on.Index)
	have := new([]links.Address) // a list, which is asked for last
	if len(addrs) > 0 {
		have = ask.Addresses(on.Index)
	}
	if err := ask.Send(); err != nil {
		return err
	}
	if err := a.correct(on.Index, known); err != nil {
		return err
	}
	a.Host.OperState = end.OperState
	a.plugin.remember(a.place(), end.Port.Number)
	br.Mac = bridge.MAC.String()
	added, err := a.ensureAddresses(a.OnHost, on, *have, addrs, a.lan)
	if err != nil {
		return err
	}
	if len(added) > 0 && on.Index == a.bridge.Index {
		br.Mac = on.MAC.String() // which it has been given for good
	}
	for i, v6 := range families {
		if !*forwards[i] {
			if err := links.WriteSysctls(a.Request.Host, links.Forward(v6)); err != nil {
				return err
			}
		}
	}
	return a.awaitGateways(ctx, on, added)
}

// knownAs asks which neighbour the host takes the container's addresses for.
func (a *attachment) knownAs(ask *links.Requests, index int) map[netip.Addr]*links.Neighbour {
	known := make(map[netip.Addr]*links.Neighbour)
	for _, addr := range ipam.IPv4(a.result) {
		known[addr] = ask.Neighbour(index, addr)
	}
	return known
}

// correct has the host know the container by its addresses when Add returns,
// where it knew another one by them. It may hear the announcement later than
// that, like everybody else.
func (a *attachment) correct(index int, known map[netip.Addr]*links.Neighbour) error {
	do := a.OnHost.Requests()
	for addr, neighbour := range known {
		if neighbour.Wrong(a.Container.MAC) {
			do.SetNeighbour(index, addr, a.Container.MAC)
		}
	}
	return do.Send()
}

// settle waits until packets pass.
func (a *attachment) settle(ctx context.Context, addrs []netip.Prefix) error {
	var err error
	switch {
	case !slices.ContainsFunc(addrs, func(p netip.Prefix) bool { return p.Addr().Is6() }):
	case a.detect:
		err = ipam.Detect(ctx, a.Request.Container, a.InContainer, a.Container.Index, a.result, carrierTime)
	default:
		err = ipam.Settle(ctx, a.InContainer, a.Container.Index)
	}
	if err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	if a.DisableContainerInterface {
		return nil
	}
	return a.AwaitRunning(ctx)
}

// Undo deletes the pair and its rules. The bridge stays: it may be others' by now.
func (a *attachment) Undo(ctx context.Context) error {
	err := a.Ends.Undo(ctx)
	if a.MACSpoofChk {
		err = errors.Join(err, removeSpoofCheck(context.WithoutCancel(ctx), a.Request))
	}
	return err
}

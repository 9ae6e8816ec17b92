package veth

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/netns"
)

// bridgedInterface is the index of the container's interface in the result,
// after the bridge and the host's end.
const bridgedInterface = 2

// bridged is an attachment in progress.
type bridged struct {
	conf   *bridgeConfig
	ends   *Ends
	plugin *Bridge
	bridge links.Link
	lan    bool // machines other than containers may have its addresses
	detect bool // detect duplicates of the container's IPv6 addresses
	aside  bool // the bridge has many ports: announce addresses in parallel with the rest of Add
	result *types100.Result
}

// Make creates the bridge and the pair, which need no address.
func (a *bridged) Make(ctx context.Context) (err error) {
	if a.bridge, err = a.ensureBridge(ctx, a.ends.OnHost, a.ends.Request.Host); err != nil {
		return err
	}
	a.ends.Pair, err = links.Veth{
		Name: a.ends.Request.IfName, MAC: a.conf.mac, MTU: a.conf.shared.MTU, Master: a.bridge.Index, Mode: a.conf.port.mode(),
	}.Create(a.ends.OnHost, a.ends.Request.Container)
	if err != nil {
		return err
	}
	return a.conf.port.join(a.ends.OnHost, a.bridge, a.ends.Host, true)
}

// Configure assigns the addresses of the pair and the bridge.
func (a *bridged) Configure(ctx context.Context, result *types100.Result) error {
	a.result = result
	host, container := a.ends.Interfaces()
	br := &types100.Interface{Name: a.bridge.Name}
	a.result.Interfaces = []*types100.Interface{br, host, container}
	a.conf.shared.SetDNS(a.result)

	gateways, err := a.conf.setGateways(a.result)
	if err != nil {
		return err
	}
	if err := a.decideDetection(); err != nil {
		return err
	}
	if a.conf.MACSpoofChk { // before it can send
		if err := atOnce(ctx, a.ends.Request).Add(ctx, spoofRule(a.ends.Request, a.ends.Host.Name, a.ends.Container.MAC)); err != nil {
			return spoofError(err)
		}
	}
	if err := a.configureContainer(ctx); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.ends.Request.IfName, err)
	}
	if err := a.makeGateway(ctx, gateways, br); err != nil {
		return err
	}
	if err := a.settle(ctx); err != nil {
		return err
	}
	if a.conf.shared.IPAM.Type == "" { // also if the container's end is down
		return nil
	}
	if err := a.announce(ctx); err != nil {
		return err
	}
	return a.conf.shared.Masquerade(ctx, a.ends.Request, a.result)
}

// announce announces the IPv4 addresses to neighbours, which may know them as
// another container's. Packets pass by now.
func (a *bridged) announce(ctx context.Context) error {
	addrs := ipam.IPv4(a.result)
	if a.aside {
		return links.AnnounceAside(a.ends.InContainer, contract.From(ctx).Conns, a.ends.Request.Container, a.ends.Container, addrs)
	}
	if len(addrs) == 0 {
		return nil
	}
	return links.Announce(a.ends.InContainer, a.ends.Container)
}

// configureContainer sets the container's end up, with its addresses if there
// are any.
func (a *bridged) configureContainer(ctx context.Context) error {
	if a.conf.DisableContainerInterface {
		return nil
	}
	end := a.conf.end()
	end.Announce, end.Later = true, true
	_, err := a.ends.MakeContainer(ctx, end, a.result, a.detection()...)
	return err
}

// detection returns the settings for IPv6 neighbours: whether to detect
// duplicates, of the kernel's own address too, and that addresses are announced.
// A container without an IPv6 address keeps the namespace's settings, which
// costs nothing.
func (a *bridged) detection() []links.Sysctl {
	if a.conf.shared.IPAM.Type == "" || !a.detect && !ipam.HasIPv6(a.result) {
		return nil
	}
	v6 := "net/ipv6/conf/" + a.ends.Request.IfName
	all := []links.Sysctl{ipam.Announced(a.ends.Request.IfName)}
	switch {
	case !a.detect:
		return append(all, links.Sysctl{Path: v6 + "/accept_dad", Value: "0", Optional: true})
	case a.conf.EnableDAD == nil: // the interface's settings decide
		return all
	}
	return append(all,
		links.Sysctl{Path: v6 + "/enhanced_dad", Value: "1", Optional: true},
		links.Sysctl{Path: v6 + "/accept_dad", Value: "1", Optional: true})
}

// makeGateway assigns the addresses of the gateways to the bridge, or to its
// interface in the VLAN, and makes the host forward. It adds the bridge's
// hardware address to the result, because the address of a bridge that somebody
// else made changes with its ports, and waits until packets pass.
func (a *bridged) makeGateway(ctx context.Context, addrs []netip.Prefix, br *types100.Interface) error {
	end, err := a.ends.OnHost.LinkByIndex(a.ends.Host.Index)
	if err != nil {
		return err
	}
	if end.Port.Master != a.bridge.Index { // deleted, or somebody has moved the port
		return fmt.Errorf("interface %s is no longer a port of bridge %s", a.ends.Host.Name, a.bridge.Name)
	}
	a.ends.Host.OperState = end.OperState
	a.aside = end.Port.Number > many
	// If the bridge has no carrier yet, the question makes the kernel notice its first port.
	// The ADD of another process may just have made the bridge, and marks it only now.
	now, err := a.ends.OnHost.LinkByIndex(a.bridge.Index)
	if err != nil {
		return err
	}
	br.Mac = now.MAC.String()
	if err := note(contract.From(ctx).Record, now); err != nil {
		return err
	}
	on := a.bridge
	if a.conf.port.VLAN != 0 && len(addrs) > 0 {
		if on, err = a.conf.ensureVLANInterface(a.ends.OnHost, a.ends.Request, a.bridge, nil); err != nil {
			return err
		}
		a.result.Interfaces = append(a.result.Interfaces, &types100.Interface{Name: on.Name, Mac: on.MAC.String()})
	}
	if err := a.correct(on.Index); err != nil {
		return err
	}
	added, err := a.conf.ensureAddresses(a.ends.OnHost, on, addrs, a.lan)
	if err != nil {
		return err
	}
	if len(added) > 0 && on.Index == a.bridge.Index {
		br.Mac = on.MAC.String() // the bridge keeps the address that it had before the port
	}
	if err := links.WriteSysctls(a.ends.Request.Host, MissingForwarding(a.ends.OnHost, addrs)...); err != nil {
		return err
	}
	return awaitGateways(ctx, a.ends.Request.Host, a.ends.OnHost, on, added, a.lan)
}

// correct updates the host's neighbour entries that name another container, so
// that they are right when Add returns. The host may hear the announcement
// later, like everybody else.
func (a *bridged) correct(index int) error {
	for _, addr := range ipam.IPv4(a.result) {
		known, err := links.NeighbourAt(a.ends.OnHost, index, addr)
		if err == nil && known.Wrong(a.ends.Container.MAC) {
			err = links.SetNeighbour(a.ends.OnHost, index, addr, a.ends.Container.MAC)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settle waits until packets pass.
func (a *bridged) settle(ctx context.Context) error {
	if a.conf.DisableContainerInterface {
		return nil
	}
	var err error
	switch {
	case a.detect:
		err = ipam.Detect(ctx, a.ends.Request.Container, a.ends.InContainer, a.ends.Container.Index, contract.PrefixesOf(a.result), carrierTime)
	case ipam.HasIPv6(a.result):
		err = ipam.Settle(ctx, a.ends.InContainer, a.ends.Container.Index)
	}
	if err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.ends.Request.IfName, err)
	}
	return a.ends.AwaitRunning(ctx)
}

// Undo deletes the pair and its rules. The bridge stays, because others may use
// it by now.
func (a *bridged) Undo(ctx context.Context) error {
	err := a.ends.Undo(ctx)
	if a.conf.MACSpoofChk {
		err = joined.Errors(err, spoofError(atOnce(ctx, a.ends.Request).Remove(context.WithoutCancel(ctx), spoofRule(a.ends.Request, "", nil))))
	}
	return err
}

// decideDetection decides whether to detect duplicate IPv6 addresses. By
// default it does so on a bridge with an uplink, as machines other than
// containers may be on its network. The setting enabledad forbids detection, or
// demands it for the container's addresses on every bridge. The gateways'
// addresses are checked only if there is an uplink.
func (a *bridged) decideDetection() (err error) {
	asked := a.conf.EnableDAD != nil && *a.conf.EnableDAD
	if (asked || a.conf.EnableDAD == nil) && ipam.HasIPv6(a.result) {
		a.lan, err = a.plugin.hasUplink(a.ends.OnHost, place{a.ends.Request.Host.ID(), a.bridge.Index}, a.conf.IsGateway)
	}
	a.detect = asked || a.lan
	return err
}

// place identifies a bridge on a host.
type place struct {
	host   netns.ID
	bridge int
}

const (
	// uplinkTime is how long the plugin remembers that a bridge has no uplink. Looking takes
	// longer the more ports there are: 4 ms for 300.
	uplinkTime = time.Second
	// mostBridges limits the remembered bridges.
	mostBridges = 1000
)

// hasUplink reports whether a bridge has an uplink, or had none within
// uplinkTime. A bridge that routes for its containers and had no uplink is not
// looked at again: it is the host's own network, and may have a thousand
// containers.
func (p *Bridge) hasUplink(host *links.Conn, b place, routes bool) (bool, error) {
	p.mu.Lock()
	at, seen := p.alone[b]
	p.mu.Unlock()
	if seen && (routes || time.Since(at) < uplinkTime) {
		return false, nil
	}
	at = time.Now()
	has, err := links.HasUplink(host, b.bridge)
	if has || err != nil {
		return has, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alone == nil || len(p.alone) > mostBridges {
		p.alone = make(map[place]time.Time)
	}
	p.alone[b] = at
	return false, nil
}

// carrierTime is how long the kernel may take to notice that a pair's ends, or a
// bridge and its first port, are up.
const carrierTime = 5 * time.Second

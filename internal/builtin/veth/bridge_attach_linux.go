package veth

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/caller"
	"github.com/embedcni/cni/internal/run/compare"
	"github.com/embedcni/cni/netns"
)

// bridgedInterface is the index of the container's interface in the result,
// after the bridge and the host's end.
const bridgedInterface = 2

// bridged is an attachment in progress.
type bridged struct {
	*bridgeConfig
	*Ends
	plugin *Bridge
	bridge links.Link
	lan    bool // machines other than containers may have its addresses
	detect bool // detect duplicates of the container's IPv6 addresses
	aside  bool // the bridge has many ports: announce addresses in parallel with the rest of Add
	result *types100.Result
}

// Make creates the bridge and the pair, which need no address.
func (a *bridged) Make(ctx context.Context) (err error) {
	if a.bridge, err = a.ensureBridge(ctx, a.OnHost, a.Request.Host); err != nil {
		return err
	}
	a.Pair, err = links.Veth{
		Name: a.Request.IfName, MAC: a.mac, MTU: a.MTU, Master: a.bridge.Index, Mode: a.mode(),
	}.Create(a.OnHost, a.Request.Container)
	if err != nil {
		return err
	}
	return a.join(a.OnHost, a.bridge, a.Host, true)
}

// Configure assigns the addresses of the pair and the bridge.
func (a *bridged) Configure(ctx context.Context, result *types100.Result) error {
	a.result = result
	host, container := a.Interfaces()
	br := &types100.Interface{Name: a.bridge.Name}
	a.result.Interfaces = []*types100.Interface{br, host, container}
	a.SetDNS(a.result)

	gateways, err := a.setGateways(a.result)
	if err != nil {
		return err
	}
	if err := a.decideDetection(); err != nil {
		return err
	}
	if a.MACSpoofChk { // before it can send
		if err := atOnce(ctx, a.Request).Add(ctx, spoofRule(a.Request, a.Host.Name, a.Container.MAC)); err != nil {
			return spoofError(err)
		}
	}
	if err := a.configureContainer(ctx); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	if err := a.makeGateway(ctx, gateways, br); err != nil {
		return err
	}
	if err := a.settle(ctx); err != nil {
		return err
	}
	if a.IPAM.Type == "" { // also if the container's end is down
		return nil
	}
	if err := a.announce(ctx); err != nil {
		return err
	}
	return a.Masquerade(ctx, a.Request, a.result)
}

// announce announces the IPv4 addresses to neighbours, which may know them as
// another container's. Packets pass by now.
func (a *bridged) announce(ctx context.Context) error {
	addrs := ipam.IPv4(a.result)
	if a.aside {
		return a.InContainer.AnnounceAside(caller.From(ctx).Conns, a.Request.Container, a.Container, addrs)
	}
	if len(addrs) == 0 {
		return nil
	}
	return a.InContainer.Announce(a.Container)
}

// configureContainer sets the container's end up, with its addresses if there
// are any.
func (a *bridged) configureContainer(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	end := a.end()
	end.Announce, end.Later = true, true
	_, err := a.MakeContainer(ctx, end, a.result, a.detection()...)
	return err
}

// detection returns the settings for IPv6 neighbours: whether to detect
// duplicates, of the kernel's own address too, and that addresses are announced.
// A container without an IPv6 address keeps the namespace's settings, which
// costs nothing.
func (a *bridged) detection() []links.Sysctl {
	if a.IPAM.Type == "" || !a.detect && !ipam.HasIPv6(a.result) {
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

// makeGateway assigns the addresses of the gateways to the bridge, or to its
// interface in the VLAN, and makes the host forward. It adds the bridge's
// hardware address to the result, because the address of a bridge that somebody
// else made changes with its ports, and waits until packets pass.
func (a *bridged) makeGateway(ctx context.Context, addrs []netip.Prefix, br *types100.Interface) error {
	end, err := a.OnHost.LinkByIndex(a.Host.Index)
	if err != nil {
		return err
	}
	if end.Port.Master != a.bridge.Index { // deleted, or somebody has moved the port
		return fmt.Errorf("interface %s is no longer a port of bridge %s", a.Host.Name, a.bridge.Name)
	}
	a.Host.OperState = end.OperState
	a.aside = end.Port.Number > many
	// If the bridge has no carrier yet, the question makes the kernel notice its first port.
	// The ADD of another process may just have made the bridge, and marks it only now.
	now, err := a.OnHost.LinkByIndex(a.bridge.Index)
	if err != nil {
		return err
	}
	br.Mac = now.MAC.String()
	if err := note(caller.From(ctx).Record, now); err != nil {
		return err
	}
	on := a.bridge
	if a.VLAN != 0 && len(addrs) > 0 {
		if on, err = a.ensureVLANInterface(a.OnHost, a.Request, a.bridge, nil); err != nil {
			return err
		}
		a.result.Interfaces = append(a.result.Interfaces, &types100.Interface{Name: on.Name, Mac: on.MAC.String()})
	}
	if err := a.correct(on.Index); err != nil {
		return err
	}
	added, err := a.ensureAddresses(a.OnHost, on, addrs, a.lan)
	if err != nil {
		return err
	}
	if len(added) > 0 && on.Index == a.bridge.Index {
		br.Mac = on.MAC.String() // the bridge keeps the address that it had before the port
	}
	if err := links.WriteSysctls(a.Request.Host, MissingForwarding(a.OnHost, addrs)...); err != nil {
		return err
	}
	return awaitGateways(ctx, a.Request.Host, a.OnHost, on, added, a.lan)
}

// correct updates the host's neighbour entries that name another container, so
// that they are right when Add returns. The host may hear the announcement
// later, like everybody else.
func (a *bridged) correct(index int) error {
	for _, addr := range ipam.IPv4(a.result) {
		known, err := a.OnHost.Neighbour(index, addr)
		if err == nil && known.Wrong(a.Container.MAC) {
			err = a.OnHost.SetNeighbour(index, addr, a.Container.MAC)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// settle waits until packets pass.
func (a *bridged) settle(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	var err error
	switch {
	case a.detect:
		err = ipam.Detect(ctx, a.Request.Container, a.InContainer, a.Container.Index, compare.PrefixesOf(a.result), carrierTime)
	case ipam.HasIPv6(a.result):
		err = ipam.Settle(ctx, a.InContainer, a.Container.Index)
	}
	if err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.Request.IfName, err)
	}
	return a.AwaitRunning(ctx)
}

// Undo deletes the pair and its rules. The bridge stays, because others may use
// it by now.
func (a *bridged) Undo(ctx context.Context) error {
	err := a.Ends.Undo(ctx)
	if a.MACSpoofChk {
		err = errors.Join(err, spoofError(atOnce(ctx, a.Request).Remove(context.WithoutCancel(ctx), spoofRule(a.Request, "", nil))))
	}
	return err
}

// decideDetection decides whether to detect duplicate IPv6 addresses. By
// default it does so on a bridge with an uplink, as machines other than
// containers may be on its network. The setting enabledad forbids detection, or
// demands it for the container's addresses on every bridge. The gateways'
// addresses are checked only if there is an uplink.
func (a *bridged) decideDetection() (err error) {
	asked := a.EnableDAD != nil && *a.EnableDAD
	if (asked || a.EnableDAD == nil) && ipam.HasIPv6(a.result) {
		a.lan, err = a.plugin.hasUplink(a.OnHost, place{a.Request.Host.ID(), a.bridge.Index}, a.IsGateway)
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
	has, err := host.HasUplink(b.bridge)
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

// Package bridge is the plugin "bridge": it connects a container to a bridge of
// the host by a veth pair.
//
// It takes the configuration of the reference plugin, and returns what that one
// would. What is different:
//   - IPv6 addresses are usable and announced when Add returns, including the
//     link-local one of a bridge that is made here. Duplicate address detection,
//     which costs 1 to 2 s, is off: the IPAM plugin gives an address to one
//     container only. It is on if the bridge has a port that is neither a veth nor
//     a dummy: others may be on its network, and a duplicate is an error. The
//     setting enabledad overrides this.
//   - A bridge that is made here has a MAC address of its own, which does not
//     change as containers come and go.
//   - The pair's ends have one queue for each direction, and cannot be given more;
//     the reference plugin's have one for each CPU there can be, of which the
//     kernel uses one.
//   - IPv4 addresses are announced when the port passes on packets, not when the
//     interface is set up, which may be before; and on a bridge of many ports beside
//     what is done yet, as the kernel delivers the packet to each of a thousand
//     before it goes on. The host itself knows them when Add returns.
//   - The host's end has no link-local IPv6 address: as a port it has no use for one.
//   - VLANs on a bridge that does not keep them apart are an error.
//   - The host's end keeps its setting of accept_ra: what arrives at a port is
//     the bridge's, which ignores router advertisements.
//   - A container that gets no IPv6 address keeps its namespace's settings of
//     IPv6 (accept_dad, ndisc_notify), unless enabledad asks for them: they can
//     be set in /proc/sys only, where it takes the longer the more there are.
//   - A default route of the IPAM plugin without a gateway is enough for
//     isDefaultGateway; the reference plugin adds a second one, and fails.
package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/batch"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
	"github.com/embedcni/cni/plugin"
)

// Plugin is the plugin "bridge". Whoever keeps one spares it waiting for packets
// to many ports; see [Plugin.crowded].
type Plugin struct {
	mu      sync.Mutex
	ports   map[port]int // the number of the last one
	uplinks map[port]uplink
}

// New returns a plugin that knows nothing yet.
func New() *Plugin { return &Plugin{} }

// port is which bridge of which host it is of.
type port struct {
	host   netns.ID
	bridge int
}

const (
	// many is how many ports of a bridge are too many to wait for a packet that
	// goes to all of them: at 3 µs each it is a tenth of what the rest takes.
	many = 64
	// mostBridges is how many are remembered.
	mostBridges = 1000
)

// crowded tells whether a bridge has many ports. A port has the lowest number
// that is free, so that the last one's says how many there are, or were once. The
// first on a bridge is taken for one of few.
func (p *Plugin) crowded(b port) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ports[b] > many
}

func (p *Plugin) remember(b port, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports == nil || len(p.ports) > mostBridges {
		p.ports = make(map[port]int)
	}
	p.ports[b] = number
}

// containerInterface is the index of the container's interface in the result,
// behind the bridge and the host's end.
const containerInterface = 2

// Add connects the container.
func (p *Plugin) Add(ctx context.Context, r *plugin.Request) (result *types100.Result, err error) {
	c, err := load(r)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	host, err := links.Borrow(ctx, r.Host)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, host.Close()) }()
	a := &attachment{config: c, r: r, host: host, plugin: p}
	defer func() { err = errors.Join(err, a.close()) }()
	if err := a.make(ctx); err != nil {
		return nil, errors.Join(err, a.undo(ctx))
	}
	return a.result, nil
}

// attachment is one that is being made.
type attachment struct {
	*config
	r      *plugin.Request
	host   *links.Conn
	plugin *Plugin
	bridge links.Link
	made   bool       // this attachment created the bridge
	lan    bool       // machines other than containers may have its addresses
	detect bool       // detect duplicates of the container's IPv6 addresses
	aside  bool       // addresses are announced beside what is done yet
	pair   links.Pair // made if the index is not 0
	leased bool       // there are addresses to give back
	result *types100.Result

	container *links.Conn // nil before it is needed
}

func (a *attachment) close() error {
	if a.container == nil {
		return nil
	}
	return a.container.Close()
}

// make does what Add is to do. The kernel makes the interfaces while the IPAM
// plugin looks for an address.
func (a *attachment) make(ctx context.Context) error {
	if a.IPAM.Type == "" {
		if err := a.connect(); err != nil {
			return err
		}
		a.result = &types100.Result{}
	} else {
		leased, err := ipam.Add(ctx, a.r, a.IPAM.Type, a.connect)
		if err != nil {
			return err
		}
		a.leased = true
		a.result = &types100.Result{IPs: leased.IPs, Routes: leased.Routes, DNS: leased.DNS}
	}
	a.result.CNIVersion = types100.ImplementedSpecVersion
	return a.configure(ctx)
}

// configure gives the pair its addresses, and completes the result.
func (a *attachment) configure(ctx context.Context) error {
	host, container := veth.Interfaces(a.r, a.pair)
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
		if err := newSpoofCheck(a.r).add(ctx, a.pair.Host.Name, a.pair.Container.MAC); err != nil {
			return err
		}
	}
	if err := a.configureContainer(ctx); err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.r.IfName, err)
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
	return a.Masquerade(ctx, a.r, a.result)
}

// announce tells neighbours, who may have known another container by them, of
// the IPv4 addresses. Packets pass.
func (a *attachment) announce(ctx context.Context) error {
	addrs := ipam.IPv4(a.result)
	if a.aside {
		return a.container.AnnounceAside(ctx, a.r.Container, a.pair.Container, addrs)
	}
	if len(addrs) == 0 {
		return nil
	}
	return a.container.Announce(a.pair.Container)
}

// connect makes what needs no address: the bridge and the pair.
func (a *attachment) connect() (err error) {
	if a.bridge, a.made, err = a.ensureBridge(a.host, a.r.Host); err != nil {
		return err
	}
	a.pair, err = links.Veth{
		Name: a.r.IfName, MAC: a.mac, MTU: a.MTU, Master: a.bridge.Index,
	}.Create(a.host, a.r.Container)
	if err != nil {
		return err
	}
	a.aside = a.plugin.crowded(port{a.r.Host.ID(), a.bridge.Index})
	return a.setPort(a.host, a.bridge, a.pair.Host)
}

// configureContainer sets the container's end up, with its addresses if there
// are any.
func (a *attachment) configureContainer(ctx context.Context) error {
	if a.DisableContainerInterface {
		return nil
	}
	var sysctls []links.Sysctl
	if a.IPAM.Type != "" {
		more, err := ipam.Sysctls(a.r.IfName, a.result)
		if err != nil {
			return err
		}
		sysctls = append(a.detection(), more...)
	}
	var err error
	if a.container, err = links.Borrow(ctx, a.r.Container, sysctls...); err != nil {
		return err
	}
	do, index := a.container.Requests(), a.pair.Container.Index
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
	v6 := "net/ipv6/conf/" + a.r.IfName
	all := []links.Sysctl{ipam.Announced(a.r.IfName)}
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
		if on, err = a.ensureVLANInterface(a.host, a.r, a.bridge); err != nil {
			return err
		}
		a.result.Interfaces = append(a.result.Interfaces, &types100.Interface{Name: on.Name, Mac: on.MAC.String()})
	}
	ask := a.host.Requests()
	families := forwarding(addrs)
	forwards := make([]*bool, len(families))
	for i, v6 := range families {
		forwards[i] = ask.Forwarding(v6)
	}
	end, bridge := ask.LinkByIndex(a.pair.Host.Index), ask.LinkByIndex(a.bridge.Index)
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
	a.pair.Host.OperState = end.OperState
	a.plugin.remember(port{a.r.Host.ID(), a.bridge.Index}, end.Port.Number)
	br.Mac = bridge.MAC.String()
	added, err := a.ensureAddresses(a.host, on, *have, addrs, a.lan)
	if err != nil {
		return err
	}
	if len(added) > 0 && on.Index == a.bridge.Index {
		br.Mac = on.MAC.String() // which it has been given for good
	}
	for i, v6 := range families {
		if !*forwards[i] {
			if err := links.WriteSysctls(a.r.Host, links.Forward(v6)); err != nil {
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
	do := a.host.Requests()
	for addr, neighbour := range known {
		if neighbour.Wrong(a.pair.Container.MAC) {
			do.SetNeighbour(index, addr, a.pair.Container.MAC)
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
		err = ipam.Detect(ctx, a.r.Container, a.container, a.pair.Container.Index, a.result, carrierTime)
	default:
		err = ipam.Settle(ctx, a.container, a.pair.Container.Index)
	}
	if err != nil {
		return fmt.Errorf("interface %q in the container: %w", a.r.IfName, err)
	}
	if a.DisableContainerInterface || a.pair.Host.Running() {
		return nil
	}
	_, err = veth.AwaitRunning(ctx, a.host, a.pair.Host.Index)
	return err
}

// undo takes back what a failed make did, also when the context has ended. The
// bridge stays: it may be others' by now.
func (a *attachment) undo(ctx context.Context) error {
	var errs []error
	if a.pair.Host.Index != 0 {
		errs = append(errs, a.host.Delete(a.pair.Host.Index))
	}
	if a.leased {
		errs = append(errs, ipam.Release(ctx, a.r, a.IPAM.Type))
	}
	if a.MACSpoofChk {
		errs = append(errs, newSpoofCheck(a.r).remove(context.WithoutCancel(ctx)))
	}
	return errors.Join(errs...)
}

// Del disconnects the container. The bridge stays.
func (*Plugin) Del(ctx context.Context, r *plugin.Request) error {
	var c config
	if err := r.Decode(&c); err != nil {
		return err
	}
	// Without an IPAM plugin there was nothing to masquerade.
	c.IPMasq = c.IPMasq && c.IPAM.Type != ""
	err := c.Delete(ctx, r)
	if !c.MACSpoofChk {
		return err
	}
	// The host's namespace outlives the request: the runtime has opened it.
	return errors.Join(err, batch.Later(ctx, newSpoofCheck(r).remove))
}

// Status asks the IPAM plugin.
func (*Plugin) Status(ctx context.Context, r *plugin.Request) error {
	c, err := load(r)
	if err != nil {
		return err
	}
	host, err := links.Dial(r.Host)
	if err != nil {
		return err
	}
	br, err := host.Link(c.Bridge)
	if links.NotFound(err) {
		err = nil // the first Add creates it
	} else if err == nil {
		err = c.fits(br)
	}
	if err := errors.Join(err, host.Close()); err != nil {
		return err
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// GC has the IPAM plugin collect what is no longer valid.
func (*Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	c, err := load(r)
	if err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}

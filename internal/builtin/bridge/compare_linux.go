package bridge

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the bridge, both ends of the pair, addresses,
// routes, gateway and rules are as Add made them. Unlike the reference plugin it
// checks the host's end, the gateway and the rules too.
func (p *Plugin) Check(ctx context.Context, r *plugin.Request) error {
	return ipam.CheckWith(ctx, r, p)
}

// Compare compares the bridge, both ends of the pair, addresses, routes, gateway
// and rules with the attachment that Add made.
//
// A missing bridge is made again if an ADD made it, of this plugin or of an executable,
// and set up, and gets its addresses. Of a bridge that somebody else made, only the port and
// the rules come back: the rest is the owner's decision.
func (*Plugin) Compare(ctx context.Context, r *plugin.Request, v *compare.View) ([]compare.Difference, error) {
	conf, err := load(r)
	if err != nil {
		return nil, err
	}
	c := &comparison{config: conf, r: r, v: v}
	for _, part := range []func(context.Context) error{
		c.container, c.bridge, c.port, c.gateway, c.spoofing,
	} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	if c.IsGateway {
		compare.Announced(c.found, c.announce)
	}
	rules, err := veth.CompareMasquerade(ctx, r, v)
	return append(c.found, rules...), err
}

// announce has the host, which is the gateway, and the container find each other.
func (c *comparison) announce(ctx context.Context, unanswered bool) error {
	return c.onHost().Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
		gateway, err := conn.Link(c.gatewayName())
		if links.NotFound(err) {
			return nil // gone again
		}
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return veth.Resolve(ctx, c.r, conn, gateway.Index, c.inside.Index, unanswered)
	})
}

// comparison is the comparison of one attachment.
type comparison struct {
	*config
	r     *plugin.Request
	v     *compare.View
	found []compare.Difference

	inside ipam.Found
	host   veth.Host
	br     links.Link
	exists bool  // the bridge does, and is one
	made   *made // by an ADD, or nil
	hosts  bool  // the record says that the bridge is the host's
	other  bool  // an interface that is no bridge has its name now
}

func (c *comparison) container(context.Context) (err error) {
	end := veth.Container(!c.DisableContainerInterface)
	end.Detect = true
	c.inside, c.found, err = end.Compare(c.r, c.v)
	return err
}

// bridge compares the properties of the bridge that every attachment needs, and
// the mode that Add has set. The rest belongs to the host: the bridge's MAC
// address follows its ports unless somebody sets it, and VLAN filtering and MTU
// are shared by all of its ports, some of which may be an administrator's.
func (c *comparison) bridge(ctx context.Context) (err error) {
	said := compare.OnHost(c.r, c.Bridge)
	if said == nil {
		return fmt.Errorf("prevResult has no bridge %q", c.Bridge)
	}
	record := caller.From(ctx).Record
	if c.made, err = madeBy(record); err != nil {
		return err
	}
	c.hosts = string(record.Fact(hostsNote)) == "true"
	lacks := func(wanted, found string, err error) {
		c.lacks(compare.Difference{Kind: compare.Bridge, Object: c.Bridge, Wanted: wanted, Found: found, Err: err}, c.restoreBridge)
	}
	c.br, err = c.v.Host.Link(c.Bridge)
	switch {
	case links.NotFound(err):
		lacks(said.Mac, "", fmt.Errorf("bridge: %w", err))
		return nil
	case err != nil:
		return fmt.Errorf("bridge: %w", err)
	case c.br.Kind != "bridge":
		c.other = true
		c.lacks(compare.Difference{
			Kind: compare.Bridge, Object: c.Bridge, Wanted: "bridge", Found: c.br.Kind, Why: "it differs",
			Err: fmt.Errorf("interface %q is not a bridge, but %q", c.Bridge, c.br.Kind),
		}, nil)
		return nil
	}
	c.exists = true
	if !c.br.Up() {
		lacks("up", "down", fmt.Errorf("bridge %q is down", c.Bridge))
	}
	if c.PromiscMode && !c.br.Promiscuous() {
		lacks("promiscuous", "", fmt.Errorf(`"promiscMode": bridge %q is not in promiscuous mode`, c.Bridge))
	}
	return nil
}

// fix makes a part again.
type fix = func(context.Context, *links.Conn, links.Link) error

// lacks adds a difference of the bridge, its addresses or its interface in a VLAN, which
// fix repairs if an ADD made the bridge.
func (c *comparison) lacks(d compare.Difference, fix fix) {
	c.found = append(c.found, c.onHost().Lacks(d, fix))
}

// onHost is the place of the bridge, its addresses and its interface in a VLAN.
func (c *comparison) onHost() *compare.Place {
	p := &compare.Place{NS: c.r.Host, Shared: true}
	if !c.ours() {
		p.Whose = c.whose()
	}
	return p
}

// ours reports whether an ADD made the bridge: the one that
// exists, or else the one of the record. An administrator, or another program,
// may have deleted ours and made another.
func (c *comparison) ours() bool {
	return c.made != nil && !c.other && (!c.exists || c.made.is(c.br))
}

// whose says why a bridge is not ours.
func (c *comparison) whose() string {
	switch {
	case c.made != nil:
		return "somebody else replaced the bridge of the ADD: it is the host's"
	case c.hosts:
		return "the bridge was there before the ADD: it is the host's"
	}
	return "the record does not say whether an ADD made the bridge, so it counts as the host's"
}

// restoreBridge makes the bridge again, with its hardware address, and sets it up,
// unless somebody else made it. Many attachments may do this at once. It completes one
// whose maker was killed. The link-local address, which goes when it is set down, comes
// first, because the kernel would first look for duplicates.
func (c *comparison) restoreBridge(_ context.Context, conn *links.Conn, _ links.Link) error {
	br, err := conn.Link(c.Bridge)
	if links.NotFound(err) {
		br, _, err = c.createBridge(conn, c.r.Host, c.made.bridge(c.config))
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if !c.made.is(br) {
		return nil
	}
	if br.Alias == "" {
		if err := mark(conn, br.Index); err != nil {
			return err
		}
	}
	if !br.Up() {
		uplink, err := conn.HasUplink(br.Index)
		if err == nil && !uplink {
			_, err = conn.LinkLocal(c.r.Host, br)
		}
		if err != nil {
			return err
		}
	}
	return c.prepareBridge(conn, c.r.Host, br)
}

// port compares the host's end, which is on the bridge, in the configured modes.
// Other programs may set more: the kubelet used to set hairpin mode.
func (c *comparison) port(context.Context) error {
	host, found, err := veth.CompareHost(c.r, c.v, c.inside, c.restorePort)
	c.host, c.found = host, append(c.found, found...)
	if err != nil || !host.Exists {
		return err
	}
	return c.onBridge(host.Link, host.Place(c.r), c.config, c.restorePort)
}

// onBridge compares an interface as a port of the bridge, in the modes and VLANs of a
// configuration.
func (c *comparison) onBridge(port links.Link, place *compare.Place, as *config, restore fix) error {
	lacks := func(wanted, found, why string, err error) {
		d := compare.Difference{Kind: compare.BridgePort, Object: port.Name, Wanted: wanted, Found: found, Err: err, Why: why}
		c.found = append(c.found, place.Lacks(d, restore))
	}
	if port.Port.Master == 0 || !c.exists || port.Port.Master != c.br.Index {
		master, why, err := c.master(port)
		lacks(c.Bridge, master, why, fmt.Errorf("interface %q is not on bridge %q", port.Name, c.Bridge))
		return err
	}
	if as.HairpinMode && !port.Port.Hairpin {
		lacks("hairpin", "", "", fmt.Errorf(`"hairpinMode": interface %q is not in hairpin mode`, port.Name))
	}
	if as.PortIsolation && !port.Port.Isolated {
		lacks("isolated", "", "", fmt.Errorf(`"portIsolation": interface %q is not isolated`, port.Name))
	}
	lost, err := as.portVLANs(c.v.VLANs, port, place, restore)
	c.found = append(c.found, lost...)
	return err
}

// master returns the name of the bridge on which the host's end is instead, and
// why it does not come back.
func (c *comparison) master(port links.Link) (name, why string, err error) {
	if port.Port.Master == 0 {
		if !c.exists && !c.ours() {
			why = "the bridge is missing"
		}
		return "", why, nil
	}
	other, err := c.v.Host.LinkByIndex(port.Port.Master)
	if links.NotFound(err) {
		return "", "", nil // it goes at this moment
	}
	return other.Name, "somebody put it there", err
}

// restorePort makes the interface again a port of the bridge, in its modes and its VLANs,
// unless it is a port of another one by now. One that is down it only sets up: what else
// it lacks is another difference.
func (c *config) restorePort(_ context.Context, conn *links.Conn, port links.Link) error {
	if !port.Up() { // wherever it is
		return conn.Change(port.Index, links.Change{Set: unix.IFF_UP})
	}
	br, err := conn.Link(c.Bridge)
	if err == nil {
		err = c.fits(br)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	off := port.Port.Master == 0
	if !off && port.Port.Master != br.Index {
		return errors.New("it is on another bridge by now")
	}
	if off {
		if err := conn.Enslave(port.Index, br.Index); err != nil {
			return fmt.Errorf("put it on bridge %q: %w", c.Bridge, err)
		}
	}
	if err := conn.SetPortMode(port.Index, c.mode()); err != nil {
		return err
	}
	if off {
		return c.join(conn, br, port)
	}
	return c.rejoin(conn, port)
}

// spoofing compares the rules against other MAC addresses. They name the host's
// end, so they have no effect once that is renamed. Without that end, or the
// recorded address, it is not known which rules there should be; what differs then is the
// pair.
func (c *comparison) spoofing(ctx context.Context) error {
	if !c.MACSpoofChk || !c.host.Ours || !c.inside.Ours {
		return nil
	}
	all, err := compare.MissingRules(ctx, c.r, c.v, []netfilter.Rule{spoofRule(c.r, c.host.Name, c.inside.MAC)}, spoofError)
	c.found = append(c.found, all...)
	return err
}

// Excuse knows two faults of the reference plugin's CHECK. It asks the IPAM plugin even if
// there is none. And it compares the hardware address of the bridge, which follows its ports
// unless somebody sets it, and is another one after somebody has made the bridge again.
// Containers ask for the address when they need it.
func (*Plugin) Excuse(r *plugin.Request, v *compare.View) (e compare.Excuse, err error) {
	c, err := load(r)
	if err != nil {
		return e, err
	}
	if c.IPAM.Type == "" {
		return compare.Excuse{Why: "the CHECK of the plugin fails for every container without an IPAM plugin", Blind: true}, nil
	}
	br, err := v.Host.Link(c.Bridge)
	if links.NotFound(err) {
		return e, nil // gone since the comparison
	}
	if err != nil {
		return e, fmt.Errorf("bridge: %w", err)
	}
	said := compare.OnHost(r, c.Bridge)
	if said == nil || compare.SameMAC(said.Mac, br.MAC) {
		return e, nil
	}
	return compare.Excuse{Why: fmt.Sprintf("bridge %q has the hardware address %v, and had %s after the ADD, which does not matter", c.Bridge, br.MAC, said.Mac)}, nil
}

package bridge

import (
	"context"
	"errors"
	"fmt"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

// Check returns an error unless the bridge, both ends of the pair, addresses,
// routes, gateway and rules are as Add made them. Unlike the reference plugin it
// checks the host's end, the gateway and the rules too.
func (p *Plugin) Check(ctx context.Context, r *plugin.Request) error {
	c, err := load(r)
	if err != nil {
		return err
	}
	return ipam.CheckWith(ctx, r, c.IPAM.Type, p)
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
	var all []compare.Difference
	for _, part := range []func(context.Context) ([]compare.Difference, error){
		c.container, c.bridge, c.port, c.gateway, c.spoofing, c.masquerading,
	} {
		found, err := part(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	if c.IsGateway {
		compare.Announced(all, c.announce)
	}
	return compare.Of(r.Type, all), nil
}

// announce has the host, which is the gateway, and the container find each other.
func (c *comparison) announce(ctx context.Context, unanswered bool) error {
	return c.onHost().Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
		name := c.Bridge
		if c.VLAN != 0 {
			name = vlanName(c.Bridge, c.VLAN)
		}
		gateway, err := conn.Link(name)
		if links.NotFound(err) {
			return nil // gone again
		}
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return veth.Resolve(ctx, c.r, conn, gateway.Index, c.inside.Index, compare.AddressesOf(compare.OwnResult(c.r)), unanswered)
	})
}

// comparison is the comparison of one attachment.
type comparison struct {
	*config
	r *plugin.Request
	v *compare.View

	inside ipam.Found
	host   veth.Host
	br     links.Link
	exists bool  // the bridge does, and is one
	made   *made // by an ADD, or nil
	hosts  bool  // the record says that the bridge is the host's
	other  bool  // an interface that is no bridge has its name now
}

func (c *comparison) container(context.Context) (all []compare.Difference, err error) {
	end := veth.Container(!c.DisableContainerInterface)
	end.Detect = true
	c.inside, all, err = end.Compare(c.r, c.v)
	return all, err
}

// bridge compares the properties of the bridge that every attachment needs, and
// the mode that Add has set. The rest belongs to the host: the bridge's MAC
// address follows its ports unless somebody sets it, and VLAN filtering and MTU
// are shared by all of its ports, some of which may be an administrator's.
func (c *comparison) bridge(ctx context.Context) (all []compare.Difference, err error) {
	said := reported(c.r, c.Bridge)
	if said == nil {
		return nil, fmt.Errorf("prevResult has no bridge %q", c.Bridge)
	}
	record := caller.From(ctx).Record
	if c.made, err = madeBy(record); err != nil {
		return nil, err
	}
	c.hosts = isHosts(record)
	c.br, err = c.v.Host.Link(c.Bridge)
	switch {
	case links.NotFound(err):
		return []compare.Difference{c.ofBridge(said.Mac, "", fmt.Errorf("bridge: %w", err), c.remake)}, nil
	case err != nil:
		return nil, fmt.Errorf("bridge: %w", err)
	case c.br.Kind != "bridge":
		c.other = true
		return []compare.Difference{{
			Kind: compare.Bridge, Object: c.Bridge, Wanted: "bridge", Found: c.br.Kind, Why: "it differs",
			Err: fmt.Errorf("interface %q is not a bridge, but %q", c.Bridge, c.br.Kind),
		}}, nil
	}
	c.exists = true
	if !c.br.Up() {
		all = append(all, c.ofBridge("up", "down", fmt.Errorf("bridge %q is down", c.Bridge), c.raise))
	}
	if c.PromiscMode && !c.br.Promiscuous() {
		all = append(all, c.ofBridge("promiscuous", "", fmt.Errorf(`"promiscMode": bridge %q is not in promiscuous mode`, c.Bridge), c.raise))
	}
	return all, nil
}

// reported returns an interface of the host in the result, or nil.
func reported(r *plugin.Request, name string) *types100.Interface {
	for _, i := range r.PrevResult.Interfaces {
		if i != nil && i.Name == name && i.Sandbox == "" {
			return i
		}
	}
	return nil
}

// ofBridge is a difference of the bridge, which fix repairs if an ADD made it.
func (c *comparison) ofBridge(wanted, found string, err error, fix fix) compare.Difference {
	return c.onHost().Lacks(compare.Difference{Kind: compare.Bridge, Object: c.Bridge, Wanted: wanted, Found: found, Err: err}, fix)
}

// fix makes a part again.
type fix = func(context.Context, *links.Conn, links.Link) error

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

// remake makes the bridge again, with its hardware address. Many attachments may
// do this at once.
func (c *comparison) remake(_ context.Context, conn *links.Conn, _ links.Link) error {
	br, err := conn.Link(c.Bridge)
	if links.NotFound(err) {
		br, _, err = c.createBridge(conn, c.r.Host, c.made.bridge(c.config))
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	return c.restore(conn, br)
}

// raise sets the bridge up, unless somebody else made it. The link-local address,
// which went when it was set down, comes first, because the kernel would first
// look for duplicates.
func (c *comparison) raise(_ context.Context, conn *links.Conn, _ links.Link) error {
	br, err := conn.Link(c.Bridge)
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	uplink, err := conn.HasUplink(br.Index)
	if err != nil {
		return err
	}
	if c.made.is(br) && !br.Up() && !uplink {
		if _, err := conn.LinkLocal(c.r.Host, br); err != nil {
			return err
		}
	}
	return c.restore(conn, br)
}

// restore sets the bridge up, unless it is another one by now. It completes one
// whose maker was killed.
func (c *comparison) restore(conn *links.Conn, br links.Link) error {
	if !c.made.is(br) {
		return nil
	}
	if br.Alias == "" {
		if err := mark(conn, br.Index); err != nil {
			return err
		}
	}
	return c.prepareBridge(conn, c.r.Host, br)
}

// port compares the host's end, which is on the bridge, in the configured modes.
// Other programs may set more: the kubelet used to set hairpin mode.
func (c *comparison) port(context.Context) ([]compare.Difference, error) {
	host, all, err := veth.CompareHost(c.r, c.v, c.inside, func(_ context.Context, conn *links.Conn, port links.Link) error {
		return conn.Change(port.Index, links.Change{Set: unix.IFF_UP})
	})
	c.host = host
	if err != nil || !host.Exists {
		return all, err
	}
	place := host.Place(c.r)
	add := func(wanted, found, why string, err error, fix fix) {
		all = append(all, place.Lacks(compare.Difference{Kind: compare.BridgePort, Object: host.Name, Wanted: wanted, Found: found, Err: err, Why: why}, fix))
	}
	if host.Port.Master == 0 || !c.exists || host.Port.Master != c.br.Index {
		master, why, err := c.master(host.Link)
		if err != nil {
			return nil, err
		}
		add(c.Bridge, master, why, fmt.Errorf("interface %q is not on bridge %q", host.Name, c.Bridge), c.enslave)
		return all, nil
	}
	modes := func(_ context.Context, conn *links.Conn, port links.Link) error {
		return conn.SetPortMode(port.Index, c.mode())
	}
	if c.HairpinMode && !host.Port.Hairpin {
		add("hairpin", "", "", fmt.Errorf(`"hairpinMode": interface %q is not in hairpin mode`, host.Name), modes)
	}
	if c.PortIsolation && !host.Port.Isolated {
		add("isolated", "", "", fmt.Errorf(`"portIsolation": interface %q is not isolated`, host.Name), modes)
	}
	lost, err := c.portVLANs(c.v.VLANs, host.Link, place)
	return append(all, lost...), err
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

// enslave makes the host's end a port of the bridge again, unless it is one of
// another.
func (c *comparison) enslave(_ context.Context, conn *links.Conn, port links.Link) error {
	br, err := conn.Link(c.Bridge)
	if err == nil {
		err = c.fits(br)
	}
	if err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if port.Port.Master != 0 && port.Port.Master != br.Index {
		return errors.New("it is on another bridge by now")
	}
	if port.Port.Master == 0 {
		if err := conn.Enslave(port.Index, br.Index); err != nil {
			return fmt.Errorf("put it on bridge %q: %w", c.Bridge, err)
		}
	}
	if err := conn.SetPortMode(port.Index, c.mode()); err != nil {
		return err
	}
	return c.join(conn, br, port)
}

// spoofing compares the rules against other MAC addresses. They name the host's
// end, so they have no effect once that is renamed. Without that end, or the
// recorded address, it is not known which rules there should be; what differs then is the
// pair.
func (c *comparison) spoofing(ctx context.Context) ([]compare.Difference, error) {
	if !c.MACSpoofChk || !c.host.Ours || !c.inside.Ours {
		return nil, nil
	}
	return compare.MissingRules(ctx, c.r, c.v, compare.Rule, spoofRules(c.r, c.host.Name, c.inside.MAC), spoofError)
}

func (c *comparison) masquerading(ctx context.Context) ([]compare.Difference, error) {
	if c.IPAM.Type == "" {
		return nil, nil
	}
	return c.CompareMasquerade(ctx, c.r, c.v)
}

package veth

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// Bridge is the plugin "bridge": it connects a container to a bridge of the host by a veth
// pair.
//
// It takes the configuration of the reference plugin, and returns the same
// result. The differences:
//   - IPv6 addresses are usable and announced when Add returns, including the
//     link-local address of a bridge that Add has created. Duplicate address
//     detection, which takes 1 to 2 s, is off, because the IPAM plugin assigns an
//     address to one container only. It is on if the bridge has a port that is
//     neither a veth nor a dummy, because other machines may be on its network; a
//     duplicate is then an error. The setting enabledad overrides this.
//   - A bridge that Add creates has a MAC address of its own, which does not
//     change as containers come and go, and the alias "embedcni", by which later
//     Adds see who made it: only such a bridge is made again if it is gone.
//   - The pair's ends have one fixed queue for each direction. The reference
//     plugin's have one for each possible CPU, of which the kernel uses one.
//   - IPv4 addresses are announced when the port forwards packets, rather than
//     when the interface is set up, which may be earlier. On a bridge with many
//     ports, this runs in parallel with the rest of Add, because the kernel
//     delivers the packet to every port before it continues. The host itself
//     knows the addresses when Add returns.
//   - The host's end has no link-local IPv6 address, which a port does not need.
//   - VLANs on a bridge without VLAN filtering are an error.
//   - The host's end keeps its setting of accept_ra: packets at a port belong to
//     the bridge, which ignores router advertisements.
//   - A container without an IPv6 address keeps its namespace's IPv6 settings
//     (accept_dad, ndisc_notify), unless enabledad asks for others: they can be
//     changed only in /proc/sys, which gets slower with the number of namespaces.
//   - A default route of the IPAM plugin without a gateway satisfies
//     isDefaultGateway; the reference plugin adds a second one, and fails.
type Bridge struct {
	ipam.Collector

	making sync.Mutex // held while a bridge is made

	mu       sync.Mutex
	alone    map[place]time.Time // when a bridge had no uplink; see [Bridge.hasUplink]
	upcoming map[upcoming]int    // executables that run, and found no bridge; see [Bridge.Witness]
}

// many is the number of ports from which Add does not wait for a packet to
// all of them: at 3 µs each, that takes a tenth of the rest. A port gets the
// lowest free number, so the number of a new one shows how many there are.
const many = 64

// OnlyExecutable returns an error if only the executable carries out a configuration.
func (*Bridge) OnlyExecutable(config json.RawMessage) error {
	return OnlyExecutable(conflist.Bridge, config)
}

// load reads a configuration for an ADD of this plugin.
func (p *Bridge) load(r *plugin.Request) (*bridgeConfig, error) {
	c, err := loadBridge(r)
	if err != nil {
		return nil, err
	}
	return c, p.OnlyExecutable(r.Config)
}

// Add connects the container.
func (p *Bridge) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := p.load(r)
	if err != nil {
		return nil, err
	}
	return Add(ctx, r, c.shared.IPAM.Type, func(e *Ends) ipam.Maker { return &bridged{conf: c, ends: e, plugin: p} })
}

// Del disconnects the container. The bridge stays.
func (*Bridge) Del(ctx context.Context, r *plugin.Request) error {
	var c bridgeConfig
	if _, err := c.decode(r); err != nil {
		return err
	}
	// Without an IPAM plugin nothing was masqueraded.
	c.shared.IPMasq = c.shared.IPMasq && c.shared.IPAM.Type != ""
	err := c.shared.Delete(ctx, r)
	if !c.MACSpoofChk {
		return err
	}
	return joined.Errors(err, spoofError(contract.From(ctx).Firewalls(r.Host).Remove(ctx, spoofRule(r, "", nil))))
}

// Status asks the IPAM plugin.
func (p *Bridge) Status(ctx context.Context, r *plugin.Request) error {
	c, err := p.load(r)
	if err != nil {
		return err
	}
	br, err := find(ctx, r.Host, c.Bridge)
	if err == nil && br.Index != 0 { // otherwise the first Add creates it
		err = c.fits(br)
	}
	if err != nil {
		return err
	}
	return ipam.Status(ctx, r, c.shared.IPAM.Type)
}

// Check returns an error unless the bridge, both ends of the pair, addresses,
// routes, gateway and rules are as Add made them. Unlike the reference plugin it
// checks the host's end, the gateway and the rules too.
func (p *Bridge) Check(ctx context.Context, r *plugin.Request) error {
	return ipam.CheckWith(ctx, r, p)
}

// Compare compares the bridge, both ends of the pair, addresses, routes, gateway
// and rules with the attachment that Add made.
//
// A missing bridge is made again if an ADD made it, of this plugin or of an executable,
// and set up, and gets its addresses. Of a bridge that somebody else made, only the port and
// the rules come back: the rest is the owner's decision.
func (*Bridge) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	conf, err := loadBridge(r)
	if err != nil {
		return nil, err
	}
	c := &comparison{conf: conf, r: r, v: v}
	for _, part := range []func(context.Context) error{
		c.container, c.bridge, c.port, c.gateway, c.spoofing,
	} {
		if err := part(ctx); err != nil {
			return nil, err
		}
	}
	if c.conf.IsGateway {
		contract.Announced(c.found, c.announce)
	}
	rules, err := CompareMasquerade(ctx, r, v)
	return append(c.found, rules...), err
}

// comparison is the comparison of one attachment.
type comparison struct {
	conf  *bridgeConfig
	r     *plugin.Request
	v     *contract.View
	found []contract.Difference

	inside ipam.Found
	host   Host
	br     links.Link // the bridge; zero if there is none
	made   *made      // by an ADD, or nil
	hosts  bool       // the record says that the bridge is the host's
	other  bool       // an interface that is no bridge has its name now
}

// end describes the container's end.
func (c *bridgeConfig) end() ipam.Interface {
	i := Container(!c.DisableContainerInterface)
	i.Detect = true
	return i
}

func (c *comparison) container(context.Context) (err error) {
	c.inside, c.found, err = c.conf.end().Compare(c.r, c.v)
	return err
}

// lacks adds a difference of the bridge, its addresses or its interface in a VLAN, which
// fix repairs if an ADD made the bridge.
func (c *comparison) lacks(d contract.Difference, fix contract.Make) {
	c.found = append(c.found, c.onHost().Lacks(d, fix))
}

// onHost is the place of the bridge, its addresses and its interface in a VLAN.
func (c *comparison) onHost() *contract.Place {
	p := &contract.Place{NS: c.r.Host, Shared: true}
	if !c.ours() {
		p.Whose = c.whose()
	}
	return p
}

// announce has the host, which is the gateway, and the container find each other.
func (c *comparison) announce(ctx context.Context, unanswered bool) error {
	return c.onHost().Do(ctx, func(ctx context.Context, conn *links.Conn, _ links.Link) error {
		gateway, err := conn.Link(c.conf.gatewayName())
		if links.NotFound(err) {
			return nil // gone again
		}
		if err != nil {
			return fmt.Errorf("gateway: %w", err)
		}
		return Resolve(ctx, c.r, conn, gateway.Index, c.inside.Index, unanswered)
	})
}

// spoofing compares the rules against other MAC addresses. They name the host's
// end, so they have no effect once that is renamed. Without that end, or the
// recorded address, it is not known which rules there should be; what differs then is the
// pair.
func (c *comparison) spoofing(ctx context.Context) error {
	if !c.conf.MACSpoofChk || !c.host.Ours || !c.inside.Ours {
		return nil
	}
	all, err := contract.MissingRules(ctx, c.r, c.v, []netfilter.Rule{spoofRule(c.r, c.host.Name, c.inside.MAC)}, spoofError)
	c.found = append(c.found, all...)
	return err
}

// spoofRule is the rule against other MAC addresses than that of the container's
// interface. To remove them, port and address need not be known.
func spoofRule(r *plugin.Request, port string, mac net.HardwareAddr) netfilter.Rule {
	owner := netfilter.Owner{Network: r.Name, ContainerID: r.ContainerID, IfName: r.IfName}
	return netfilter.Rule{Owner: owner, Kind: netfilter.Spoof, Link: port, MAC: mac}
}

// spoofError names the field of the configuration in an error.
func spoofError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(`"macspoofchk": %w`, err)
}

// atOnce returns the packet filters of the host without the batch, which would have rules
// made and deleted at the end of the ADD.
func atOnce(ctx context.Context, r *plugin.Request) *netfilter.Firewalls {
	fw := contract.From(ctx).Firewalls(r.Host)
	fw.Batch = nil
	return fw
}

// Excuse knows two faults of the reference plugin's CHECK. It asks the IPAM plugin even if
// there is none. And it compares the hardware address of the bridge, which follows its ports
// unless somebody sets it, and is another one after somebody has made the bridge again.
// Containers ask for the address when they need it.
func (*Bridge) Excuse(r *plugin.Request, v *contract.View) (e contract.Excuse, err error) {
	c, err := loadBridge(r)
	if err != nil {
		return e, err
	}
	if c.shared.IPAM.Type == "" {
		return contract.Excuse{Why: "the CHECK of the plugin fails for every container without an IPAM plugin", Blind: true}, nil
	}
	br, err := v.Host.Link(c.Bridge)
	if links.NotFound(err) {
		return e, nil // gone since the comparison
	}
	if err != nil {
		return e, fmt.Errorf("bridge: %w", err)
	}
	said := contract.OnHost(r, c.Bridge)
	if said == nil || contract.SameMAC(said.Mac, br.MAC) {
		return e, nil
	}
	return contract.Excuse{Why: fmt.Sprintf("bridge %q has the hardware address %v, and had %s after the ADD, which does not matter", c.Bridge, br.MAC, said.Mac)}, nil
}

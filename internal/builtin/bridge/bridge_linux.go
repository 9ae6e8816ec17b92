// Package bridge is the plugin "bridge": it connects a container to a bridge of
// the host by a veth pair.
//
// It takes the configuration of the reference plugin, and returns the same
// result. The differences:
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
//     the rest of Add, as the kernel delivers the packet to each of a thousand
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
	ports   map[place]int // the number of the last one
	uplinks map[place]uplink
}

// New returns a plugin that knows nothing yet.
func New() *Plugin { return &Plugin{} }

// place is which bridge it is, on which host.
type place struct {
	host   netns.ID
	bridge int
}

const (
	// many is how many ports of a bridge are too many to wait for a packet that
	// goes to all of them: at 3 µs each it takes a tenth of the rest.
	many = 64
	// mostBridges is how many are remembered.
	mostBridges = 1000
)

// crowded reports whether a bridge has many ports. A port has the lowest number
// that is free, so that the last one's says how many there are, or were once. The
// first on a bridge is taken for one of few.
func (p *Plugin) crowded(b place) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ports[b] > many
}

func (p *Plugin) remember(b place, number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ports == nil || len(p.ports) > mostBridges {
		p.ports = make(map[place]int)
	}
	p.ports[b] = number
}

// Add connects the container.
func (p *Plugin) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := load(r)
	if err != nil {
		return nil, err
	}
	return veth.Add(ctx, r, c.IPAM.Type, func(e *veth.Ends) ipam.Maker { return &attachment{config: c, Ends: e, plugin: p} })
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
	return errors.Join(err, batch.Later(ctx, func(ctx context.Context) error { return removeSpoofCheck(ctx, r) }))
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

// GC has the IPAM plugin release the addresses of no attachment.
func (*Plugin) GC(ctx context.Context, r *plugin.Request, _ []types.GCAttachment) error {
	c, err := load(r)
	if err != nil {
		return err
	}
	return ipam.GC(ctx, r, c.IPAM.Type)
}

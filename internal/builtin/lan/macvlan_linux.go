// Package lan has the plugins that connect a container to a network of the host as a machine
// of its own: macvlan and host-device. They take the configuration of the reference plugins
// (v1.9.1).
//
// Other machines are on that network, and one of them may have an address that
// the IPAM plugin considers free. The kernel detects duplicate IPv6 addresses,
// which takes 1 to 2 s. Add waits for that, and fails if an address is taken.
package lan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/kernel/joined"
	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// MACVLAN is the plugin "macvlan", which gives a container an interface of its own on a
// network of the host: it shares the host's interface, the master, under another MAC address.
type MACVLAN struct{ ipam.Collector }

// Add makes the interface, and gives it addresses if there is an IPAM plugin.
func (MACVLAN) Add(ctx context.Context, r *plugin.Request) (*types100.Result, error) {
	c, err := parseMACVLAN(r)
	if err != nil {
		return nil, err
	}
	return attach(ctx, r, c.IPAM.Type, &macvlan{macvlanConfig: c, r: r})
}

// macvlan is an attachment in progress.
type macvlan struct {
	*macvlanConfig
	r    *plugin.Request
	made bool
}

// Make creates the interface, down.
func (a *macvlan) Make(ctx context.Context) error {
	ns := a.r.Host
	if a.InNetNS {
		ns = a.r.Container
	}
	return contract.On(ctx, ns, func(conn *links.Conn) error {
		master, err := a.master(conn)
		if err != nil {
			return err
		}
		err = links.Macvlan{
			Name: a.r.IfName, Parent: master.Index, Mode: a.mode, MAC: a.mac, MTU: a.MTU, BroadcastQueue: a.BcQueueLen,
		}.Create(conn, a.r.Container)
		a.made = err == nil
		return err
	})
}

// Configure sets the interface up. The master existed before: if it has no
// carrier, it is not plugged in, and nobody can have the addresses.
func (a *macvlan) Configure(ctx context.Context, result *types100.Result) error {
	if err := (ipam.Interface{Up: true, Announce: true, Detect: true}).Apply(ctx, a.r, result, 0); err != nil {
		return fmt.Errorf("interface %q: %w", a.r.IfName, err)
	}
	result.DNS = a.DNS
	return nil
}

// Undo deletes the interface.
func (a *macvlan) Undo(ctx context.Context) error {
	if !a.made {
		return nil
	}
	remove, err := removal(ctx, a.r)
	if remove == nil {
		return err
	}
	return remove(ctx)
}

// Del releases the addresses and deletes the interface.
func (MACVLAN) Del(ctx context.Context, r *plugin.Request) error {
	var c ipam.Config
	if err := r.Decode(&c); err != nil {
		return err
	}
	err := ipam.Del(ctx, r, c.IPAM.Type)
	if r.Container != nil {
		remove, missed := removal(ctx, r)
		if remove != nil {
			missed = contract.From(ctx).Batch.Later(ctx, remove)
		}
		err = joined.Errors(err, missed)
	}
	return inNetwork(r, err)
}

// removal returns the function that deletes the interface, or nil if it is no macvlan.
func removal(ctx context.Context, r *plugin.Request) (func(context.Context) error, error) {
	return contract.Removal(ctx, r.Container, r.IfName, func(own links.Link) bool { return own.Kind == "macvlan" })
}

// Status fails if the master is missing, or the IPAM plugin has no addresses.
func (MACVLAN) Status(ctx context.Context, r *plugin.Request) error {
	c, err := parseMACVLAN(r)
	if err != nil {
		return err
	}
	if !c.InNetNS {
		err := contract.On(ctx, r.Host, func(conn *links.Conn) error {
			_, err := c.master(conn)
			return err
		})
		if err != nil {
			return plugin.Errorf(ipam.ErrNotAvailable, "network %q: %w", r.Name, err)
		}
	}
	return ipam.Status(ctx, r, c.IPAM.Type)
}

// Check returns an error unless the interface exists on its master, in its mode,
// with the addresses of the result. It does not compare the MTU: a later plugin
// may have changed it without a word in the result, and the kernel lowers it
// with the master's.
func (p MACVLAN) Check(ctx context.Context, r *plugin.Request) error {
	return inNetwork(r, ipam.CheckWith(ctx, r, p))
}

// Compare compares the interface, its master, its mode and its addresses with
// the attachment that Add made.
func (MACVLAN) Compare(ctx context.Context, r *plugin.Request, v *contract.View) ([]contract.Difference, error) {
	c, err := parseMACVLAN(r)
	if err != nil {
		return nil, err
	}
	own := ipam.Interface{
		Up: true, Detect: true, Gone: "it is gone, perhaps with its master: a new one needs Remove and Setup",
		Fits: func(own links.Link, said *types100.Interface) ([]contract.Difference, error) {
			return c.mismatches(v, own, said)
		},
	}
	_, all, err := own.Compare(r, v)
	return all, err
}

func (c *macvlanConfig) mismatches(v *contract.View, own links.Link, said *types100.Interface) ([]contract.Difference, error) {
	if own.Kind != "macvlan" {
		return []contract.Difference{{Wanted: "macvlan", Found: own.Kind, Err: fmt.Errorf("it is of type %q, not macvlan", own.Kind)}}, nil
	}
	var all []contract.Difference
	if c.mode != nl.MACVLAN_MODE_PASSTHRU { // with passthru it has the master's address
		all = ipam.SameMAC(own, said)
	}
	if own.MacvlanMode != c.mode {
		all = append(all, contract.Difference{Wanted: "mode " + modeName(c.mode), Found: "mode " + modeName(own.MacvlanMode), Err: fmt.Errorf("its mode is not %q", c.Mode)})
	}
	other, err := c.otherMaster(v, own)
	return append(all, other...), err
}

// otherMaster returns a difference unless the interface is on the configured
// master. The kernel deletes the interface with its master, so the master
// exists, perhaps under another name. A master that is not configured was the
// interface of the default route at the time, which may have changed.
func (c *macvlanConfig) otherMaster(v *contract.View, own links.Link) ([]contract.Difference, error) {
	if c.Master == "" {
		return nil, nil
	}
	outside := contract.Net(v.Host)
	if c.InNetNS {
		outside = v.Container
	}
	master, err := outside.Link(c.Master)
	if links.NotFound(err) {
		return nil, nil
	}
	if err != nil || own.Peer.Index == master.Index {
		return nil, err
	}
	return []contract.Difference{{
		Wanted: fmt.Sprint("master ", master.Name), Found: fmt.Sprint("master ", own.Peer.Index),
		Err: fmt.Errorf("its master is interface %d, not %d, which is %q", own.Peer.Index, master.Index, master.Name),
	}}, nil
}

// macvlanConfig is a configuration, validated as far as possible without looking at the
// master.
type macvlanConfig struct {
	Master     string `json:"master"` // empty: the interface of the default route
	Mode       string `json:"mode"`
	MTU        int    `json:"mtu"`
	Mac        string `json:"mac"`
	InNetNS    bool   `json:"linkInContainer"` // the master is in the container
	BcQueueLen uint32 `json:"bcqueuelen"`
	ipam.Config
	RuntimeConfig struct {
		Mac string `json:"mac"`
	} `json:"runtimeConfig"`

	mode uint32
	mac  net.HardwareAddr
}

// parseMACVLAN reads the configuration of a request. The capability "mac" overrides
// CNI_ARGS, which override the rest.
func parseMACVLAN(r *plugin.Request) (*macvlanConfig, error) {
	c := &macvlanConfig{}
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	mac, err := contract.MAC(r)
	if err != nil {
		return nil, err
	}
	c.Mac = cmp.Or(c.RuntimeConfig.Mac, mac, c.Mac)
	if err := c.check(); err != nil {
		return nil, plugin.Errorf(types.ErrInvalidNetworkConfig, "network %q: %w", r.Name, err)
	}
	return c, nil
}

func (c *macvlanConfig) check() (err error) {
	known := false
	if c.mode, known = modes[cmp.Or(c.Mode, "bridge")]; !known {
		return fmt.Errorf(`mode: %q is none of "bridge", "private", "vepa", "passthru"`, c.Mode)
	}
	if c.Mac != "" {
		if c.mac, err = net.ParseMAC(c.Mac); err != nil {
			return fmt.Errorf("mac: %w", err)
		}
	}
	if c.MTU < 0 {
		return fmt.Errorf("mtu: %d is negative", c.MTU)
	}
	return nil
}

// modes are the modes, which decide how containers on the same master reach each
// other. They are never changed.
var modes = map[string]uint32{
	"bridge": nl.MACVLAN_MODE_BRIDGE, "private": nl.MACVLAN_MODE_PRIVATE, "vepa": nl.MACVLAN_MODE_VEPA, "passthru": nl.MACVLAN_MODE_PASSTHRU,
}

// modeName returns the name of a mode, or its number.
func modeName(mode uint32) string {
	for name, n := range modes {
		if n == mode {
			return name
		}
	}
	return fmt.Sprint(mode)
}

// master looks the master up. Its MTU limits that of its macvlans.
func (c *macvlanConfig) master(conn *links.Conn) (links.Link, error) {
	var master links.Link
	var err error
	if c.Master != "" {
		master, err = conn.Link(c.Master)
	} else if master, err = defaultInterface(conn); err != nil {
		return links.Link{}, fmt.Errorf("master is not set: %w", err)
	}
	if err != nil {
		return links.Link{}, fmt.Errorf("master: %w", err)
	}
	if c.MTU > master.MTU {
		return links.Link{}, plugin.Errorf(types.ErrInvalidNetworkConfig, "mtu: %d is more than the %d of the master %q", c.MTU, master.MTU, master.Name)
	}
	return master, nil
}

// defaultInterface returns the interface of the default route, of IPv4 before
// IPv6.
func defaultInterface(conn *links.Conn) (links.Link, error) {
	routes, err := conn.Routes(0)
	if err != nil {
		return links.Link{}, fmt.Errorf("look for the default route: %w", err)
	}
	for _, route := range routes {
		if route.Dst.Bits() == 0 && route.Table == unix.RT_TABLE_MAIN {
			link, err := conn.LinkByIndex(route.Interface)
			if err != nil {
				return links.Link{}, fmt.Errorf("interface of the default route: %w", err)
			}
			return link, nil
		}
	}
	return links.Link{}, errors.New("there is no default route whose interface it could be")
}

func attach(ctx context.Context, r *plugin.Request, typ string, m ipam.Maker) (*types100.Result, error) {
	result, err := ipam.Attach(ctx, r, typ, m)
	return result, inNetwork(r, err)
}

// inNetwork names the network in an error, as the reference plugins do.
func inNetwork(r *plugin.Request, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("network %q: %w", r.Name, err)
}

package lan

import (
	"cmp"
	"errors"
	"fmt"
	"net"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/plugin"
)

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
	mac, err := caller.MAC(r)
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

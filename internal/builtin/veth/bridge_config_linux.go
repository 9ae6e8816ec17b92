package veth

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/kernel/links"
	"github.com/embedcni/cni/internal/run/contract"
	"github.com/embedcni/cni/plugin"
)

// bridgeConfig is the plugin's configuration.
type bridgeConfig struct {
	shared Config
	port   portConfig
	mac    net.HardwareAddr // of the container's end; nil: a random one

	Bridge      string `json:"bridge"`
	PromiscMode bool   `json:"promiscMode"`
	MACSpoofChk bool   `json:"macspoofchk"`
	EnableDAD   *bool  `json:"enabledad"` // nil: see decideDetection
	// DisableContainerInterface leaves the container's end down.
	DisableContainerInterface bool `json:"disableContainerInterface"`
	// The bridge is the containers' gateway.
	IsGateway        bool `json:"isGateway"`
	IsDefaultGateway bool `json:"isDefaultGateway"`
	ForceAddress     bool `json:"forceAddress"`
}

// portConfig is the part that concerns the host's end as a port of the bridge.
type portConfig struct {
	HairpinMode         bool        `json:"hairpinMode"`
	PortIsolation       bool        `json:"portIsolation"`
	VLAN                int         `json:"vlan"`
	VLANTrunk           []vlanRange `json:"vlanTrunk"`
	PreserveDefaultVLAN bool        `json:"preserveDefaultVlan"`

	trunk []uint16 // sorted
}

// vlanRange is one ID, or those from MinID to MaxID, or both.
type vlanRange struct {
	MinID *int `json:"minID"`
	MaxID *int `json:"maxID"`
	ID    *int `json:"id"`
}

// defaultBridge is the bridge if the configuration names none.
const defaultBridge = "cni0"

// The VLAN identifiers that IEEE 802.1Q leaves to users.
const firstVLAN, lastVLAN = 1, 4094

// load reads and validates the configuration. Errors have the code 7, "invalid
// network config", and name the field.
func loadBridge(r *plugin.Request) (*bridgeConfig, error) {
	c := &bridgeConfig{Bridge: defaultBridge}
	mac, err := c.decode(r)
	if err != nil {
		return nil, err
	}
	if err := c.shared.Validate(); err != nil {
		return nil, err
	}
	if c.Bridge == "" || len(c.Bridge) >= unix.IFNAMSIZ {
		return nil, invalid(`"bridge": %q is no name of an interface: 1 to %d characters`, c.Bridge, unix.IFNAMSIZ-1)
	}
	if strings.Contains(c.Bridge, "%") {
		return nil, invalid(`"bridge": %q contains %%, which the kernel replaces by a number`, c.Bridge)
	}
	if id := c.port.VLAN; id != 0 && (id < firstVLAN || id > lastVLAN) {
		return nil, invalid(`"vlan": %d is not between %d and %d`, id, firstVLAN, lastVLAN)
	}
	if c.port.trunk, err = trunk(c.port.VLANTrunk); err != nil {
		return nil, err
	}
	if c.port.HairpinMode && c.PromiscMode {
		return nil, invalid(`"hairpinMode" and "promiscMode" exclude each other`)
	}
	if c.DisableContainerInterface && c.shared.IPAM.Type != "" {
		return nil, invalid(`"disableContainerInterface" excludes "ipam": an interface that is down has no use for addresses`)
	}
	c.IsGateway = c.IsGateway || c.IsDefaultGateway
	c.mac, err = mac.choose(r)
	return c, err
}

// decode reads all parts of the configuration at once, and what can set the MAC address.
func (c *bridgeConfig) decode(r *plugin.Request) (mac macConfig, err error) {
	err = r.Decode(&struct {
		*Config
		*portConfig
		*macConfig
		*bridgeConfig
	}{&c.shared, &c.port, &mac, c})
	return mac, err
}

func invalid(format string, args ...any) error {
	return plugin.Errorf(types.ErrInvalidNetworkConfig, format, args...)
}

// trunk returns the VLANs of the ranges, each once, sorted.
func trunk(ranges []vlanRange) ([]uint16, error) {
	var all []uint16
	for i, r := range ranges {
		if (r.MinID == nil) != (r.MaxID == nil) {
			return nil, invalid(`"vlanTrunk": entry %d has one of minID and maxID: it needs both, or neither`, i)
		}
		var from, to int
		if r.MinID != nil {
			if from, to = *r.MinID, *r.MaxID; from > to {
				return nil, invalid(`"vlanTrunk": entry %d has minID %d above maxID %d`, i, from, to)
			}
			if from < firstVLAN || to > lastVLAN {
				return nil, invalid(`"vlanTrunk": entry %d: %d to %d is not within %d and %d`, i, from, to, firstVLAN, lastVLAN)
			}
			for id := from; id <= to; id++ {
				all = append(all, uint16(id))
			}
		}
		if r.ID != nil {
			if *r.ID < firstVLAN || *r.ID > lastVLAN {
				return nil, invalid(`"vlanTrunk": entry %d: id %d is not between %d and %d`, i, *r.ID, firstVLAN, lastVLAN)
			}
			all = append(all, uint16(*r.ID))
		}
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// filtersVLANs reports whether the bridge must filter VLANs.
func (c portConfig) filtersVLANs() bool { return c.VLAN != 0 || c.VLANTrunk != nil }

// vlans returns the VLANs of a port. A port with only a trunk gets the first
// VLAN for untagged packets.
func (c portConfig) vlans() []links.VLAN {
	var all []links.VLAN
	if c.VLAN != 0 {
		all = append(all, links.VLAN{ID: uint16(c.VLAN), Access: true})
	}
	for _, id := range c.trunk {
		all = append(all, links.VLAN{ID: id})
	}
	if c.VLAN == 0 && len(c.trunk) > 0 {
		all = append(all, links.VLAN{ID: 1, Access: true})
	}
	return all
}

// macConfig has the fields, besides CNI_ARGS, that can set the MAC address of
// the container's end.
type macConfig struct {
	Args struct {
		CNI struct {
			MAC string `json:"mac"`
		} `json:"cni"`
	} `json:"args"`
	RuntimeConfig struct {
		MAC string `json:"mac"`
	} `json:"runtimeConfig"`
}

// choose returns the address from the runtime, the arguments in the configuration, or
// CNI_ARGS, in this order, or nil.
func (c macConfig) choose(r *plugin.Request) (net.HardwareAddr, error) {
	arg, err := contract.MAC(r)
	if err != nil {
		return nil, err
	}
	for _, from := range []struct{ field, mac string }{
		{"runtimeConfig.mac", c.RuntimeConfig.MAC},
		{"args.cni.mac", c.Args.CNI.MAC},
		{"MAC in CNI_ARGS", arg},
	} {
		if from.mac == "" {
			continue
		}
		mac, err := net.ParseMAC(from.mac)
		if err != nil || len(mac) != 6 {
			return nil, invalid(`%q: %q is not the MAC address of an Ethernet interface`, from.field, from.mac)
		}
		return mac, nil
	}
	return nil, nil
}

// mode returns the mode of the bridge port.
func (c portConfig) mode() links.PortMode {
	return links.PortMode{Hairpin: c.HairpinMode, Isolated: c.PortIsolation}
}

// gatewayName returns the name of the interface that has the addresses of gateways: the
// bridge, or in a VLAN one of its own.
func (c *bridgeConfig) gatewayName() string {
	if c.port.VLAN == 0 {
		return c.Bridge
	}
	return fmt.Sprintf("%s.%d", c.Bridge, c.port.VLAN)
}

// access is the configuration of the port that leads to the gateway of a VLAN.
func (c *bridgeConfig) access() *bridgeConfig {
	return &bridgeConfig{Bridge: c.Bridge, port: portConfig{VLAN: c.port.VLAN, PreserveDefaultVLAN: c.port.PreserveDefaultVLAN}}
}

// setGateways completes the IPAM plugin's result. The addresses are those of the
// container's interface, which is the third. If the bridge is the gateway, the
// gateway of a subnet is its first address unless the plugin named another; if
// it is the default gateway, each family gets a default route. setGateways
// returns the addresses for the bridge.
func (c *bridgeConfig) setGateways(result *types100.Result) ([]netip.Prefix, error) {
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(bridgedInterface)
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return nil, err
		}
		if !c.IsGateway {
			continue
		}
		if ip.Gateway == nil {
			ip.Gateway = p.Masked().Addr().Next().AsSlice()
		}
		if _, ok := netip.AddrFromSlice(ip.Gateway); !ok {
			return nil, fmt.Errorf(`"isGateway": there is no address for the gateway of %s`, p)
		}
		if c.IsDefaultGateway {
			addDefault(result, p.Addr().Is4(), ip.Gateway)
		}
	}
	return c.gateways(result)
}

// gateways returns the addresses of the bridge for a result.
func (c *bridgeConfig) gateways(result *types100.Result) (all []netip.Prefix, err error) {
	for _, ip := range result.IPs {
		if !c.IsGateway || ip == nil || ip.Gateway == nil || ip.Interface == nil || *ip.Interface != bridgedInterface {
			continue
		}
		p, err := links.Prefix(ip.Address)
		if err != nil {
			return nil, err
		}
		if gateway, ok := netip.AddrFromSlice(ip.Gateway); ok {
			all = append(all, netip.PrefixFrom(gateway.Unmap(), p.Bits()))
		}
	}
	return all, nil
}

// addDefault adds a default route unless the family has one.
func addDefault(result *types100.Result, v4 bool, gateway net.IP) {
	for _, r := range result.Routes {
		if r == nil {
			continue
		}
		if ones, _ := r.Dst.Mask.Size(); ones == 0 && (r.Dst.IP.To4() != nil) == v4 {
			return
		}
	}
	dst := net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
	if v4 {
		dst = net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
	}
	result.Routes = append(result.Routes, &types.Route{Dst: dst, GW: gateway})
}

// Gateways completes a result of the IPAM plugin as Add does. It reports whether the
// bridge has the addresses of the gateways.
func (*Bridge) Gateways(r *plugin.Request, result *types100.Result) (onHost bool, err error) {
	c, err := loadBridge(r)
	if err != nil {
		return false, err
	}
	_, err = c.setGateways(result)
	return c.IsGateway, err
}

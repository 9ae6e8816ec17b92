package builtin

import (
	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/builtin/firewall"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/lan"
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/run/known"
	"github.com/embedcni/cni/plugin"
)

// Loopback returns the plugin loopback for its type, and nil for any other. A program that
// names no option of the built-in plugins has that one alone.
func Loopback(typ string) plugin.Plugin {
	if typ == known.Loopback {
		return loopback{}
	}
	return nil
}

// plugins returns a new plugin of each type.
func plugins() map[string]plugin.Plugin {
	return map[string]plugin.Plugin{
		known.Bandwidth:  bandwidth.Plugin{},
		known.Bridge:     &veth.Bridge{},
		known.Firewall:   firewall.Plugin{},
		known.HostDevice: lan.HostDevice{},
		known.HostLocal:  ipam.SharedHostLocal(),
		known.Loopback:   loopback{},
		known.MACVLAN:    lan.MACVLAN{},
		known.Portmap:    portmap.Plugin{},
		known.PTP:        veth.PTP{},
		known.Static:     ipam.Static{},
		known.Tuning:     tuning.Plugin{},
	}
}

// Wants returns an attachment's rules of one plugin that the reference plugins
// name after the network and the container alone.
// Only portmap, bridge and ptp have such rules. The previous result must be the
// result of the ADD.
func Wants(r *plugin.Request) ([]netfilter.Rule, error) {
	if r.PrevResult == nil {
		return nil, nil // the ADD did not get that far
	}
	switch known.Of(r.Type).Rules {
	case known.HostPorts:
		return portmap.Wants(r)
	case known.Masquerade:
		return veth.Wants(r)
	}
	return nil, nil
}

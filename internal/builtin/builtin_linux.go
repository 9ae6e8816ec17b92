package builtin

import (
	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/builtin/firewall"
	"github.com/embedcni/cni/internal/builtin/flannel"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/lan"
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/kernel/netfilter"
	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// Loopback returns the plugin loopback for its type, and nil for any other. A program that
// names no option of the built-in plugins has that one alone.
func Loopback(typ string) plugin.Plugin {
	if typ == conflist.Loopback {
		return loopback{}
	}
	return nil
}

// plugins returns a new plugin of each type.
func plugins() map[string]plugin.Plugin {
	return map[string]plugin.Plugin{
		conflist.Bandwidth:  bandwidth.Plugin{},
		conflist.Bridge:     &veth.Bridge{},
		conflist.Firewall:   firewall.Plugin{},
		conflist.Flannel:    &flannel.Plugin{},
		conflist.HostDevice: lan.HostDevice{},
		conflist.HostLocal:  ipam.SharedHostLocal(),
		conflist.Loopback:   loopback{},
		conflist.MACVLAN:    lan.MACVLAN{},
		conflist.Portmap:    portmap.Plugin{},
		conflist.PTP:        veth.PTP{},
		conflist.Static:     ipam.Static{},
		conflist.Tuning:     tuning.Plugin{},
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
	switch conflist.Known(r.Type).Rules {
	case conflist.HostPorts:
		return portmap.Wants(r)
	case conflist.Masquerade:
		return veth.Wants(r)
	}
	return nil, nil
}

package builtin

import (
	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/builtin/bridge"
	"github.com/embedcni/cni/internal/builtin/firewall"
	"github.com/embedcni/cni/internal/builtin/hostlocal"
	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/builtin/lan"
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/plugin"
)

// plugins makes the plugin of each type. It is never changed.
var plugins = map[string]func() plugin.Plugin{
	known.Bandwidth:  func() plugin.Plugin { return bandwidth.Plugin{} },
	known.Bridge:     func() plugin.Plugin { return bridge.New() },
	known.Firewall:   func() plugin.Plugin { return firewall.Plugin{} },
	known.HostDevice: func() plugin.Plugin { return lan.HostDevice{} },
	known.HostLocal:  func() plugin.Plugin { return hostlocal.Shared() },
	known.Loopback:   func() plugin.Plugin { return loopback{} },
	known.MACVLAN:    func() plugin.Plugin { return lan.MACVLAN{} },
	known.Portmap:    func() plugin.Plugin { return portmap.Plugin{} },
	known.PTP:        func() plugin.Plugin { return veth.PTP{} },
	known.Static:     func() plugin.Plugin { return ipam.Static{} },
	known.Tuning:     func() plugin.Plugin { return tuning.Plugin{} },
}

// Lookup returns the plugin of a type, or nil. It is a new one each time, with
// empty memory; see [New].
func Lookup(typ string) plugin.Plugin {
	if make, ok := plugins[typ]; ok {
		return make()
	}
	return nil
}

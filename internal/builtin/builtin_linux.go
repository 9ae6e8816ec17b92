package builtin

import (
	"github.com/embedcni/cni/internal/builtin/bandwidth"
	"github.com/embedcni/cni/internal/builtin/bridge"
	"github.com/embedcni/cni/internal/builtin/firewall"
	"github.com/embedcni/cni/internal/builtin/hostdevice"
	"github.com/embedcni/cni/internal/builtin/hostlocal"
	"github.com/embedcni/cni/internal/builtin/loopback"
	"github.com/embedcni/cni/internal/builtin/macvlan"
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/ptp"
	"github.com/embedcni/cni/internal/builtin/static"
	"github.com/embedcni/cni/internal/builtin/tuning"
	"github.com/embedcni/cni/plugin"
)

// Lookup returns the plugin of a type, or nil. It is a new one each time, which
// remembers nothing; see [New].
func Lookup(typ string) plugin.Plugin {
	switch typ {
	case "bandwidth":
		return bandwidth.Plugin{}
	case "bridge":
		return bridge.New()
	case "host-device":
		return hostdevice.Plugin{}
	case "host-local":
		return hostlocal.New()
	case "loopback":
		return loopback.Plugin{}
	case "macvlan":
		return macvlan.Plugin{}
	case "ptp":
		return ptp.Plugin{}
	case "static":
		return static.Plugin{}
	case "portmap":
		return portmap.Plugin{}
	case "firewall":
		return firewall.Plugin{}
	case "tuning":
		return tuning.Plugin{}
	}
	return nil
}

package builtin

import (
	"github.com/embedcni/cni/internal/builtin/bridge"
	"github.com/embedcni/cni/internal/builtin/loopback"
	"github.com/embedcni/cni/internal/builtin/ptp"
	"github.com/embedcni/cni/internal/builtin/static"
	"github.com/embedcni/cni/plugin"
)

// Lookup returns the plugin of a type, or nil.
func Lookup(typ string) plugin.Plugin {
	switch typ {
	case "bridge":
		return bridge.Plugin{}
	case "loopback":
		return loopback.Plugin{}
	case "ptp":
		return ptp.Plugin{}
	case "static":
		return static.Plugin{}
	}
	return nil
}

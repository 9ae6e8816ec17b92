package builtin

import (
	"github.com/embedcni/cni/internal/builtin/firewall"
	"github.com/embedcni/cni/internal/builtin/loopback"
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/plugin"
)

// Lookup returns the plugin of a type, or nil.
func Lookup(typ string) plugin.Plugin {
	switch typ {
	case "loopback":
		return loopback.Plugin{}
	case "portmap":
		return portmap.Plugin{}
	case "firewall":
		return firewall.Plugin{}
	}
	return nil
}

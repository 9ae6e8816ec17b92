package builtin

import (
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

// Wants returns the rules of an attachment's plugin that have the names of network
// and container alone in the forms of the reference plugins, and the backend that
// the configuration names. The previous result is that of the ADD. Other plugins
// than portmap, bridge and ptp have none.
func Wants(r *plugin.Request) (netfilter.Backend, netfilter.Rules, error) {
	if r.PrevResult == nil {
		return "", netfilter.Rules{}, nil // it has not got so far
	}
	switch r.Type {
	case "portmap":
		return portmap.Wants(r)
	case "bridge", "ptp":
		return veth.Wants(r)
	}
	return "", netfilter.Rules{}, nil
}

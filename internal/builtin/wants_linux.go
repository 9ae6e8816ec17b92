package builtin

import (
	"github.com/embedcni/cni/internal/builtin/portmap"
	"github.com/embedcni/cni/internal/builtin/veth"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/plugin"
)

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

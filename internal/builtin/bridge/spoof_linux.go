package bridge

import (
	"context"
	"fmt"
	"net"

	"github.com/embedcni/cni/internal/caller"
	"github.com/embedcni/cni/internal/netfilter"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
	"github.com/embedcni/cni/plugin"
)

// spoofRules are the rules against other MAC addresses than that of the container's
// interface. To remove them, port and address need not be known.
func spoofRules(r *plugin.Request, port string, mac net.HardwareAddr) fwrules.Rules {
	owner := fwrules.Owner{Network: r.Name, ContainerID: r.ContainerID, IfName: r.IfName}
	return fwrules.Rules{Spoof: []fwrules.SpoofCheck{{Owner: owner, Port: port, MAC: mac}}}
}

// spoofError names the field of the configuration in an error.
func spoofError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf(`"macspoofchk": %w`, err)
}

// atOnce returns the packet filters of the host without the batch, which would have rules
// made and deleted at the end of the ADD.
func atOnce(ctx context.Context, r *plugin.Request) *netfilter.Firewalls {
	fw := caller.From(ctx).Firewalls(r.Host)
	fw.Batch = nil
	return fw
}

package netfilter

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// forgetFlows makes conntrack forget the UDP flows to forwarded ports of the
// host. Only the first packet of a flow passes the rules: without this, a flow
// that continues would go on to its old destination. If restored, the rules were
// missing for a while: flows that began before are translated, and go on.
func (fw *Firewalls) forgetFlows(ctx context.Context, all []fwrules.HostPorts, restored bool) error {
	for _, v6 := range []bool{false, true} {
		flows := flowsTo(all, v6)
		for i := range flows {
			flows[i].Untranslated = restored
		}
		if len(flows) == 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_, err := links.Forget(fw.sockets.NS, v6, flows...)
		// An interrupted list was still read to its end, and a flow that was added
		// meanwhile has seen the rules. A kernel without ctnetlink refuses the
		// request as invalid; nobody can delete its flows.
		if err != nil && !errors.Is(err, links.ErrInterrupted) && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("forget the UDP flows to the host's ports: %w", err)
		}
	}
	return nil
}

// flowsTo returns the flows of a family that are to be forgotten.
func flowsTo(all []fwrules.HostPorts, v6 bool) (flows []links.Flows) {
	for _, h := range all {
		to := h.V4
		if v6 {
			to = h.V6
		}
		// Without any address it is not known which families there were.
		if !to.IsValid() && (h.V4.IsValid() || h.V6.IsValid()) {
			continue
		}
		for _, p := range h.Ports {
			if p.Protocol == "udp" && (!p.HostIP.IsValid() || p.HostIP.Is6() == v6) {
				flows = append(flows, links.Flows{Port: p.HostPort})
			}
		}
	}
	return flows
}

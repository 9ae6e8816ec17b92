package bridge

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/embedcni/cni/internal/builtin/ipam"
	"github.com/embedcni/cni/internal/links"
	"github.com/embedcni/cni/netns"
)

// uplinkTime is how long the plugin remembers whether a bridge has an uplink.
// Looking takes longer the more ports there are, so containers that come at the
// same time share one look. After this time a new uplink is noticed, unless the
// bridge routes; see hasUplink.
const uplinkTime = time.Second

// uplink records whether a bridge had an uplink, and when the plugin looked.
type uplink struct {
	has bool
	at  time.Time
}

// decideDetection decides whether to detect duplicate IPv6 addresses. By
// default it does so on a bridge with an uplink, as machines other than
// containers may be on its network. The setting enabledad forbids detection, or
// demands it for the container's addresses on every bridge. The gateways'
// addresses are checked only if there is an uplink.
func (a *attachment) decideDetection() (err error) {
	asked := a.EnableDAD != nil && *a.EnableDAD
	if (asked || a.EnableDAD == nil) && !a.made && ipam.HasIPv6(a.result) {
		a.lan, err = a.plugin.hasUplink(a.OnHost, place{a.Request.Host.ID(), a.bridge.Index}, a.IsGateway)
	}
	a.detect = asked || a.lan
	return err
}

// hasUplink reports whether a bridge has an uplink, or had one within
// uplinkTime. A bridge that routes for its containers and had no uplink is not
// looked at again: it is the host's own network, and may have a thousand
// containers.
func (p *Plugin) hasUplink(host *links.Conn, b place, routes bool) (bool, error) {
	p.mu.Lock()
	known, ok := p.uplinks[b]
	p.mu.Unlock()
	if ok && (routes && !known.has || time.Since(known.at) < uplinkTime) {
		return known.has, nil
	}
	at := time.Now()
	has, err := host.HasUplink(b.bridge)
	if err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplinks == nil || len(p.uplinks) > mostBridges {
		p.uplinks = make(map[place]uplink)
	}
	p.uplinks[b] = uplink{has, at}
	return has, nil
}

// carrierTime is how long the kernel may take to notice that a pair's ends, or a
// bridge and its first port, are up.
const carrierTime = 5 * time.Second

// awaitGateways waits until the added addresses of gateways are usable. On a
// network with other machines, it deletes an address that one of them has.
func awaitGateways(ctx context.Context, host *netns.Handle, conn *links.Conn, on links.Link, added []netip.Prefix, lan bool) error {
	added = slices.DeleteFunc(added, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if !lan || len(added) == 0 {
		return ipam.Await(ctx, conn, on.Index, added)
	}
	err := ipam.DetectAll(ctx, host, conn, on.Index, added, carrierTime)
	if err == nil {
		return nil
	}
	errs := []error{fmt.Errorf("the gateway: interface %q: %w", on.Name, err)}
	have, err := conn.Addresses(on.Index)
	errs = append(errs, err)
	for _, h := range have {
		if h.Duplicate && slices.Contains(added, h.Prefix) {
			errs = append(errs, conn.DeleteAddress(on.Index, h.Prefix))
		}
	}
	return errors.Join(errs...)
}

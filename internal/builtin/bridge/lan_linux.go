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
)

// uplinkTime is for how long it is remembered whether a bridge has an uplink. To
// look takes longer the more ports there are: so it is done once for however many
// containers come at a time, and an uplink that is added is soon noticed.
const uplinkTime = time.Second

// uplink is whether a bridge had one, and when.
type uplink struct {
	has bool
	at  time.Time
}

// decideDetection decides whether duplicates of IPv6 addresses are looked for:
// where others than containers may be on the bridge's network, which is that of an
// uplink. The configuration may forbid that, or ask for it, which is about the
// container's addresses alone, on every bridge (enabledad).
func (a *attachment) decideDetection() (err error) {
	b := port{a.r.Host.ID(), a.bridge.Index}
	if a.made {
		a.plugin.rememberUplink(b, uplink{false, time.Now()})
	}
	asked := a.EnableDAD != nil && *a.EnableDAD
	if (asked || a.EnableDAD == nil) && !a.made && ipam.HasIPv6(a.result) {
		a.lan, err = a.plugin.hasUplink(a.host, b, a.IsGateway)
	}
	a.detect = asked || a.lan
	return err
}

// hasUplink reports whether a bridge has one, or had within uplinkTime. A bridge
// that routes for its containers, and had none, is not looked at again: it is a
// network of the host's own, which may have a thousand containers.
func (p *Plugin) hasUplink(host *links.Conn, b port, routes bool) (bool, error) {
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
	p.rememberUplink(b, uplink{has, at})
	return has, nil
}

func (p *Plugin) rememberUplink(b port, u uplink) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.uplinks == nil || len(p.uplinks) > mostBridges {
		p.uplinks = make(map[port]uplink)
	}
	p.uplinks[b] = u
}

// carrierTime is how long the kernel may take to notice that a pair's ends, or a
// bridge and its first port, are up.
const carrierTime = 5 * time.Second

// awaitGateways waits until the gateways' addresses that were added are usable. One
// that another machine has is taken away again.
func (a *attachment) awaitGateways(ctx context.Context, on links.Link, added []netip.Prefix) error {
	added = slices.DeleteFunc(added, func(p netip.Prefix) bool { return p.Addr().Is4() })
	if !a.lan || len(added) == 0 {
		return ipam.Await(ctx, a.host, on.Index, added)
	}
	err := ipam.DetectAll(ctx, a.r.Host, a.host, on.Index, added, carrierTime)
	if err == nil {
		return nil
	}
	errs := []error{fmt.Errorf("the gateway: interface %q: %w", on.Name, err)}
	have, err := a.host.Addresses(on.Index)
	errs = append(errs, err)
	for _, h := range have {
		if h.Duplicate && slices.Contains(added, h.Prefix) {
			errs = append(errs, a.host.DeleteAddress(on.Index, h.Prefix))
		}
	}
	return errors.Join(errs...)
}

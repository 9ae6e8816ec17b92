package cnitest

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/internal/known"
)

// attach gives the container interface and addresses.
func (h *fakeHost) attach(id string, a *fakeAttachment) error {
	first := a.config()[0]
	if first.IPAM.Type != "" {
		held, err := h.ipam.allocate(a, first)
		if err != nil {
			return a.error("ADD", id, first.Type, err)
		}
		a.held = held
	}
	a.link = true
	var err error
	a.result, err = json.Marshal(h.result(h.containers[id].netns, a, first))
	return err
}

// result is the result of the network's plugins.
func (h *fakeHost) result(netns string, a *fakeAttachment, p fakePlugin) *types100.Result {
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, DNS: p.DNS, Routes: p.IPAM.Routes}
	if dns := p.IPAM.DNS; !dns.IsEmpty() {
		r.DNS = dns
	}
	if r.Routes == nil {
		r.Routes = []*types.Route{}
	}
	inside := &types100.Interface{Name: a.IfName, Mac: h.mac(), Sandbox: netns}
	switch p.Type {
	case known.Loopback:
		inside.Mac = "00:00:00:00:00:00"
		a.held = nil
		r.IPs = []*types100.IPConfig{
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv4(127, 0, 0, 1), Mask: net.CIDRMask(8, 32)}},
			{Interface: types100.Int(0), Address: net.IPNet{IP: net.IPv6loopback, Mask: net.CIDRMask(128, 128)}},
		}
	case known.Bridge:
		bridge := p.Bridge
		if bridge == "" {
			bridge = "cni0"
		}
		r.Interfaces = []*types100.Interface{{Name: bridge, Mac: h.mac()}, {Name: h.veth(), Mac: h.mac()}}
	case known.PTP:
		r.Interfaces = []*types100.Interface{{Name: h.veth(), Mac: h.mac()}}
	}
	r.Interfaces = append(r.Interfaces, inside)
	for _, held := range a.held {
		ip := &types100.IPConfig{Interface: types100.Int(len(r.Interfaces) - 1), Address: ipNet(held.prefix)}
		if held.gateway.IsValid() {
			ip.Gateway = held.gateway.AsSlice()
		}
		r.IPs = append(r.IPs, ip)
		if p.Type == known.Bridge && p.IsDefaultGateway {
			all := netip.PrefixFrom(unspecified(held.prefix.Addr()), 0)
			r.Routes = append(slices.Clone(r.Routes), &types.Route{Dst: ipNet(all), GW: held.gateway.AsSlice()})
		}
	}
	return r
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func ipNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// mac and veth return names that no other interface of the host has.
func (h *fakeHost) mac() string {
	h.made++
	return fmt.Sprintf("02:fa:%02x:%02x:%02x:%02x", byte(h.made>>24), byte(h.made>>16), byte(h.made>>8), byte(h.made))
}

func (h *fakeHost) veth() string {
	h.made++
	return fmt.Sprintf("veth%08x", h.made)
}

// shown is the result for callers.
func (a *fakeAttachment) shown() []byte {
	if a.noted != nil {
		return a.noted
	}
	return a.result
}

// resultOf returns the result of attachments. The host is locked.
func (f *Fake) resultOf(plan *cni.Plan, all []*fakeAttachment) (*cni.Result, error) {
	var results []*types100.Result
	for _, a := range all {
		var r types100.Result
		if err := json.Unmarshal(a.shown(), &r); err != nil {
			return nil, err
		}
		results = append(results, &r)
	}
	result, err := plan.Result(results)
	if c := f.h.containers[plan.ContainerID]; err == nil && c.made {
		result.NetNS = c.netns
	}
	return result, err
}

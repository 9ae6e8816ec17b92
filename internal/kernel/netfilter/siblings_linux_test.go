package netfilter

import (
	"net/netip"
	"testing"

	"github.com/embedcni/cni/internal/expect"
)

// twoInterfaces are the rules of a container's two interfaces on one network, with
// one port, and the siblings of each.
func twoInterfaces() (eth0, eth1 testRules, besideEth0, besideEth1 Siblings) {
	eth0, eth1 = everything("c1", 4), everything("c1", 300) // of another subnet, below
	eth0.Forward, eth1.Forward = nil, nil
	o := eth1.Masquerade[0].Owner
	o.IfName = "eth1"
	v4, v6 := netip.MustParsePrefix("10.9.0.5/24"), netip.MustParsePrefix("fd00:9::5/64")
	eth1.Masquerade[0] = testMasquerade{Owner: o, Addresses: []netip.Prefix{v4, v6}}
	h := &eth1.HostPorts[0]
	h.Owner, h.V4, h.V6, h.Ports = o, v4, v6, eth0.HostPorts[0].Ports
	beside := func(r testRules) Siblings {
		m := r.Masquerade[0]
		return Siblings{Owners: []Owner{m.Owner}, Addresses: []netip.Addr{m.Addresses[0].Addr(), m.Addresses[1].Addr()}, Rules: r.rules()}
	}
	return eth0, eth1, beside(eth1), beside(eth0)
}

// beside returns the packet filters for an attachment with these siblings.
func (h *host) beside(s Siblings) *Firewalls {
	return Open(h.ns, Options{Siblings: func() Siblings { return s }})
}

// TestFault_F32_APortOfASiblingIsTheContainers: its ADD leaves the port with
// the first interface, and another container's ADD fails.
func TestFault_F32_APortOfASiblingIsTheContainers(t *testing.T) {
	h := newHost(t, "nft")
	fw := Open(h.ns, Options{})
	eth0, eth1, beside0, beside1 := twoInterfaces()
	expect.NoError(t, h.beside(beside0).Add(t.Context(), eth0.rules()...))
	expect.Is(t, fw.Add(t.Context(), eth1.rules()...), ErrHostPortTaken)
	expect.NoError(t, h.beside(beside1).Add(t.Context(), eth1.rules()...))
	expect.NoError(t, h.beside(beside0).Check(t.Context(), eth0))
	expect.NoError(t, h.beside(beside1).Check(t.Context(), eth1))
	stranger := everything("c2", 9)
	stranger.HostPorts[0].Ports = eth0.HostPorts[0].Ports
	expect.Is(t, fw.Add(t.Context(), stranger.rules()...), ErrHostPortTaken)
	expect.NoError(t, h.beside(beside0).Remove(t.Context(), eth0.rules()...))
	expect.Fails(t, "nobody has the port, and CHECK passes", fw.Check(t.Context(), eth1))
	expect.NoError(t, fw.Add(t.Context(), eth1.rules()...))
	expect.NoError(t, fw.Check(t.Context(), eth1))
}

package netfilter

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/embedcni/cni/internal/audit"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// twoInterfaces are the rules of a container's two interfaces on one network, with
// one port, and the siblings of each.
func twoInterfaces() (eth0, eth1 fwrules.Rules, besideEth0, besideEth1 fwrules.Siblings) {
	eth0, eth1 = everything("c1", 4), everything("c1", 300) // of another subnet, below
	eth0.Forward, eth1.Forward = nil, nil
	o := eth1.Masquerade[0].Owner
	o.IfName = "eth1"
	v4, v6 := netip.MustParsePrefix("10.9.0.5/24"), netip.MustParsePrefix("fd00:9::5/64")
	eth1.Masquerade[0] = fwrules.Masquerade{Owner: o, Addresses: []netip.Prefix{v4, v6}}
	h := &eth1.HostPorts[0]
	h.Owner, h.V4, h.V6, h.Ports = o, v4, v6, eth0.HostPorts[0].Ports
	beside := func(r fwrules.Rules) fwrules.Siblings {
		m := r.Masquerade[0]
		return fwrules.Siblings{Owners: []fwrules.Owner{m.Owner}, Addresses: []netip.Addr{m.Addresses[0].Addr(), m.Addresses[1].Addr()}, Rules: r}
	}
	return eth0, eth1, beside(eth1), beside(eth0)
}

// beside returns the packet filters for an attachment with these siblings.
func (h *host) beside(s fwrules.Siblings) *Firewalls {
	return Open(h.ns, Options{Siblings: func() fwrules.Siblings { return s }})
}

// TestFault_F32_RemoveLeavesASiblingsRules, whichever is removed first: the
// other's own rules remain, and nothing else.
func TestFault_F32_RemoveLeavesASiblingsRules(t *testing.T) {
	for _, backend := range []fwrules.Backend{fwrules.IPTables, fwrules.NFTables, fwrules.Native} {
		for _, variant := range []string{"nft", "legacy"} {
			if backend != fwrules.IPTables && variant == "legacy" {
				continue // these do not use it
			}
			eth0, eth1, beside0, beside1 := twoInterfaces()
			for name, known := range map[string]bool{"": true, ", without addresses": backend == fwrules.Native} {
				t.Run(variant+" "+string(backend)+name+", the second", func(t *testing.T) {
					removeOneOfTwo(t, variant, backend, eth0, eth1, beside0, beside1, known)
				})
				t.Run(variant+" "+string(backend)+name+", the first", func(t *testing.T) {
					removeOneOfTwo(t, variant, backend, eth1, eth0, beside1, beside0, known)
				})
			}
		}
	}
}

// removeOneOfTwo adds both, removes one, and compares with the rules of the
// other alone. besideStaying are the siblings of the one that stays. If
// addresses are unknown, as in a DEL without a result, more may stay for the
// sweep.
func removeOneOfTwo(t *testing.T, variant string, backend fwrules.Backend, stays, goes fwrules.Rules, besideStaying, besideGoing fwrules.Siblings, known bool) {
	t.Helper()
	alone, h := newHost(t, variant), newHost(t, variant)
	must(t, Open(alone.ns, Options{}).Add(t.Context(), backend, stays))
	must(t, h.beside(besideStaying).Add(t.Context(), backend, stays))
	must(t, h.beside(besideGoing).Add(t.Context(), backend, goes))
	must(t, h.beside(besideStaying).Check(t.Context(), backend, stays))
	must(t, h.beside(besideGoing).Check(t.Context(), backend, goes))
	if !known {
		goes.Masquerade = []fwrules.Masquerade{{Owner: goes.Masquerade[0].Owner}}
		ports := goes.HostPorts[0]
		ports.V4, ports.V6 = netip.Prefix{}, netip.Prefix{}
		goes.HostPorts = []fwrules.HostPorts{ports}
	}
	must(t, h.beside(besideGoing).Remove(t.Context(), backend, goes))
	must(t, h.beside(fwrules.Siblings{}).Check(t.Context(), backend, stays))
	if known && backend != fwrules.Native {
		wantLines(t, "what stays", h.filters(), alone.filters())
	}
	must(t, h.beside(fwrules.Siblings{}).Remove(t.Context(), backend, stays))
	if left := h.filters().Without(audit.Shared); known && len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
}

// TestFault_F32_TheSweepLeavesASiblingsRules in the chains that it finds.
func TestFault_F32_TheSweepLeavesASiblingsRules(t *testing.T) {
	eachVariant(t, func(t *testing.T, h *host, fw *Firewalls) {
		eth0, eth1, _, beside1 := twoInterfaces()
		must(t, fw.Add(t.Context(), fwrules.IPTables, eth0))
		before := h.filters()
		must(t, fw.Add(t.Context(), fwrules.IPTables, eth1))
		target := fwrules.Target{
			Owner: fwrules.Owner{Network: "podnet", ContainerID: "c1", IfName: "eth1"}, Addresses: []netip.Addr{eth1.HostPorts[0].V4.Addr(), eth1.HostPorts[0].V6.Addr()},
			Siblings: beside1.Addresses, Own: eth1, Kept: eth0,
		}
		plan, err := Find(t.Context(), fw, target)
		must(t, err)
		must(t, plan.Apply(t.Context()))
		wantLines(t, "after the sweep", h.filters(), before)
		// Rules that cannot be computed are found by their addresses.
		must(t, fw.Add(t.Context(), fwrules.IPTables, eth1))
		target.Own = fwrules.Rules{}
		plan, err = Find(t.Context(), fw, target)
		must(t, err)
		must(t, plan.Apply(t.Context()))
		for _, line := range h.filters() {
			for _, a := range target.Addresses {
				if strings.Contains(line, a.String()+"/") {
					t.Errorf("after the sweep of unknown rules: %s", line)
				}
			}
		}
		target.Own = eth1
		plan, err = Find(t.Context(), fw, target)
		must(t, err)
		must(t, plan.Apply(t.Context()))
		wantLines(t, "after another sweep", h.filters(), before)
		// Of a sibling of which nothing is known all stays that is not surely another's.
		must(t, fw.Add(t.Context(), fwrules.IPTables, eth1))
		target.Siblings, target.Kept, target.KeptUnknown = nil, fwrules.Rules{}, true
		plan, err = Find(t.Context(), fw, target)
		must(t, err)
		must(t, plan.Apply(t.Context()))
		must(t, fw.Check(t.Context(), fwrules.IPTables, eth0))
	})
}

// TestFault_F32_APortOfASiblingIsTheContainers: its ADD leaves the port with
// the first interface, and another container's ADD fails.
func TestFault_F32_APortOfASiblingIsTheContainers(t *testing.T) {
	h := newHost(t, "nft")
	fw := Open(h.ns, Options{})
	eth0, eth1, beside0, beside1 := twoInterfaces()
	must(t, h.beside(beside0).Add(t.Context(), fwrules.Native, eth0))
	if err := fw.Add(t.Context(), fwrules.Native, eth1); !errors.Is(err, fwrules.ErrHostPortTaken) {
		t.Errorf("without siblings: %v, want ErrHostPortTaken", err)
	}
	must(t, h.beside(beside1).Add(t.Context(), fwrules.Native, eth1))
	must(t, h.beside(beside0).Check(t.Context(), fwrules.Native, eth0))
	must(t, h.beside(beside1).Check(t.Context(), fwrules.Native, eth1))
	stranger := everything("c2", 9)
	stranger.HostPorts[0].Ports = eth0.HostPorts[0].Ports
	if err := fw.Add(t.Context(), fwrules.Native, stranger); !errors.Is(err, fwrules.ErrHostPortTaken) {
		t.Errorf("another container: %v, want ErrHostPortTaken", err)
	}
	must(t, h.beside(beside0).Remove(t.Context(), fwrules.Native, eth0))
	if err := fw.Check(t.Context(), fwrules.Native, eth1); err == nil {
		t.Error("nobody has the port, and CHECK passes")
	}
	must(t, fw.Add(t.Context(), fwrules.Native, eth1))
	must(t, fw.Check(t.Context(), fwrules.Native, eth1))
}

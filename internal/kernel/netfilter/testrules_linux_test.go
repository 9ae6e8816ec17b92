package netfilter

import (
	"net"
	"net/netip"
)

// testRules are the rules of an attachment, by the plugins that want them.
type testRules struct {
	Masquerade []testMasquerade
	HostPorts  []testPorts
	Forward    []testForward
	Spoof      []testSpoof
}

type testMasquerade struct {
	Owner
	Addresses []netip.Prefix
}

type testPorts struct {
	Owner
	V4, V6                     netip.Prefix
	Ports                      []HostPort
	SNAT, MasqAll, Conditional bool
}

type testForward struct {
	Owner
	Addresses                   []netip.Prefix
	AdminChain, Ingress, Bridge string
	IngressOnly                 bool
}

type testSpoof struct {
	Owner
	Port string
	MAC  net.HardwareAddr
}

func (r testRules) rules() (all []Rule) {
	for _, m := range r.Masquerade {
		all = append(all, m.PerAddress(Masquerade, m.Addresses)...)
	}
	for _, h := range r.HostPorts {
		var to []netip.Prefix
		for _, p := range []netip.Prefix{h.V4, h.V6} {
			if p.IsValid() {
				to = append(to, p)
			}
		}
		ports := h.Ports
		if len(ports) == 0 {
			ports = []HostPort{{}} // not known
		}
		for _, p := range ports {
			all = append(all, Rule{Owner: h.Owner, Kind: Publish, Addresses: to, Port: p, SNAT: h.SNAT, MasqAll: h.MasqAll, Conditional: h.Conditional})
		}
	}
	for _, f := range r.Forward {
		if !f.IngressOnly && len(f.Addresses) > 0 {
			for _, one := range f.PerAddress(Accept, f.Addresses) {
				one.AdminChain = f.AdminChain
				all = append(all, one)
			}
		}
		if f.Ingress != "" && f.Ingress != "open" {
			all = append(all, Rule{Owner: f.Owner, Kind: Ingress, Addresses: f.Addresses, Policy: f.Ingress, Bridge: f.Bridge})
		}
	}
	for _, s := range r.Spoof {
		all = append(all, Rule{Owner: s.Owner, Kind: Spoof, Link: s.Port, MAC: s.MAC})
	}
	return all
}

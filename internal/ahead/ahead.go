// Package ahead knows what the executables of the reference plugins make for all
// containers when the first one comes, so that it can be made ahead of them.
//
// They look for each part of it and make it if it is not there, without a lock.
// Which do, and what exactly, is known of the versions 0.9.0 to 1.9 of portmap
// and firewall; of the others it is known that two at the same time do not harm
// each other.
package ahead

import (
	"encoding/json"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/netfilter"
)

// Request is what an executable's ADD is about.
type Request struct {
	Type   string
	IfName string
	Config []byte // with runtimeConfig and prevResult
	// Firewalld is that a firewalld runs; see AsksForFirewalld.
	Firewalld bool
}

// AsksForFirewalld reports whether the ADD goes by whether a firewalld runs.
func (r Request) AsksForFirewalld() bool {
	var conf struct{ Backend string }
	return r.Type == "firewall" && json.Unmarshal(r.Config, &conf) == nil && conf.Backend != "iptables" && conf.Backend != "firewalld"
}

// Rules returns what containers share of what the ADD makes in iptables, as
// part of rules of which the rest is not the container's. It is empty for an ADD
// that makes nothing of the kind, also because it must fail.
func (r Request) Rules() netfilter.Rules {
	if r.Type != "portmap" && r.Type != "firewall" {
		return netfilter.Rules{}
	}
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if json.Unmarshal(r.Config, &conf) != nil {
		return netfilter.Rules{}
	}
	result, err := inprocess.DecodeResult(conf.CNIVersion, conf.PrevResult)
	if err != nil || result == nil {
		return netfilter.Rules{}
	}
	if r.Type == "portmap" {
		return r.portmap(result)
	}
	return r.firewall(result)
}

// portmap is parseConfig and forwardPorts of the plugin portmap. Which iptables
// it is to be, or none, is for the system to say where no backend is named.
func (r Request) portmap(result *types100.Result) netfilter.Rules {
	var conf struct {
		Backend              *string
		SNAT                 *bool
		MarkMasqBit          *int
		ExternalSetMarkChain *string
		RuntimeConfig        struct {
			PortMappings []json.RawMessage
		}
	}
	if json.Unmarshal(r.Config, &conf) != nil || len(conf.RuntimeConfig.PortMappings) == 0 ||
		conf.Backend != nil && *conf.Backend != string(netfilter.IPTables) ||
		conf.MarkMasqBit != nil && (conf.ExternalSetMarkChain != nil || *conf.MarkMasqBit < 0 || *conf.MarkMasqBit > 31) {
		return netfilter.Rules{}
	}
	const defaultMarkBit = 13
	h := netfilter.HostPorts{
		SNAT: conf.SNAT == nil || *conf.SNAT, MarkMasqBit: defaultMarkBit,
		Ports: make([]netfilter.HostPort, 1), // what is shared is the same for all
	}
	if conf.MarkMasqBit != nil {
		h.MarkMasqBit = *conf.MarkMasqBit
	}
	if conf.ExternalSetMarkChain != nil {
		h.SNAT = false // nothing marks, and nothing is to be masqueraded by a mark
	}
	for _, ip := range result.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(result.Interfaces) {
			if in := result.Interfaces[*i]; in == nil || in.Name != r.IfName || in.Sandbox == "" {
				continue
			}
		}
		switch a, ok := netip.AddrFromSlice(ip.Address.IP); {
		case !ok:
		case a.Unmap().Is4():
			h.V4 = netip.PrefixFrom(a.Unmap(), 32)
		default:
			h.V6 = netip.PrefixFrom(a, 128)
		}
	}
	return netfilter.Rules{HostPorts: []netfilter.HostPorts{h}}
}

// firewall is getBackend, addRules and setupIngressPolicy of the plugin firewall.
func (r Request) firewall(result *types100.Result) netfilter.Rules {
	var conf struct {
		Backend                string
		IPTablesAdminChainName string `json:"iptablesAdminChainName"`
		IngressPolicy          string
	}
	if json.Unmarshal(r.Config, &conf) != nil {
		return netfilter.Rules{}
	}
	f := netfilter.Forward{AdminChain: conf.IPTablesAdminChainName, Ingress: conf.IngressPolicy}
	f.IngressOnly = conf.Backend == "firewalld" || conf.Backend != "iptables" && r.Firewalld
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			f.Addresses = append(f.Addresses, a.Unmap())
		}
	}
	if len(result.Interfaces) > 0 && result.Interfaces[0] != nil {
		f.Bridge = result.Interfaces[0].Name
	}
	if f.Bridge == "" {
		f.Ingress = "" // it fails for want of a bridge, when the rest is made
	}
	return netfilter.Rules{Forward: []netfilter.Forward{f}}
}

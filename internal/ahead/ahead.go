// Package ahead lists the rules that the executables of the reference plugins
// share between containers, so that a caller can create them before the first
// container needs them.
//
// A plugin checks for each part and creates it if it is missing, without a
// lock. The package knows the shared rules of portmap and firewall, from
// version 0.9.0 to 1.9. Of the other plugins it knows which can run at the same
// time without harm.
package ahead

import (
	"encoding/json"
	"net/netip"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/compare"
	"github.com/embedcni/cni/internal/inprocess"
	"github.com/embedcni/cni/internal/known"
	"github.com/embedcni/cni/internal/netfilter/fwrules"
)

// Request describes an executable's ADD.
type Request struct {
	Type   string
	IfName string
	Config []byte // with runtimeConfig and prevResult
	// Firewalld reports whether a firewalld runs; see AsksForFirewalld.
	Firewalld bool
}

// AsksForFirewalld reports whether the ADD depends on a running firewalld.
func (r Request) AsksForFirewalld() bool {
	var conf struct{ Backend string }
	return r.Type == known.Firewall && json.Unmarshal(r.Config, &conf) == nil && conf.Backend != "iptables" && conf.Backend != "firewalld"
}

// Rules returns rules whose shared part is the part that the ADD makes in
// iptables. The rest of them does not describe the container. Rules returns
// none for an ADD that makes no shared rules, or that must fail.
func (r Request) Rules() fwrules.Rules {
	if r.Type != known.Portmap && r.Type != known.Firewall {
		return fwrules.Rules{}
	}
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if json.Unmarshal(r.Config, &conf) != nil {
		return fwrules.Rules{}
	}
	result, err := inprocess.DecodeResult(conf.CNIVersion, conf.PrevResult)
	if err != nil || result == nil {
		return fwrules.Rules{}
	}
	if r.Type == known.Portmap {
		return r.portmap(result)
	}
	return r.firewall(result)
}

// portmap follows parseConfig and forwardPorts of the plugin portmap. If the
// configuration names no backend, the caller must find out whether the system
// has iptables, and which variant.
func (r Request) portmap(result *types100.Result) fwrules.Rules {
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
		conf.Backend != nil && *conf.Backend != string(fwrules.IPTables) ||
		conf.MarkMasqBit != nil && (conf.ExternalSetMarkChain != nil || *conf.MarkMasqBit < 0 || *conf.MarkMasqBit > 31) {
		return fwrules.Rules{}
	}
	const defaultMarkBit = 13
	h := fwrules.HostPorts{
		SNAT: conf.SNAT == nil || *conf.SNAT, MarkMasqBit: defaultMarkBit,
		Ports: make([]fwrules.HostPort, 1), // the shared rules are the same for all ports
	}
	if conf.MarkMasqBit != nil {
		h.MarkMasqBit = *conf.MarkMasqBit
	}
	if conf.ExternalSetMarkChain != nil {
		h.SNAT = false // no rule marks, and none masquerades by a mark
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
	return fwrules.Rules{HostPorts: []fwrules.HostPorts{h}}
}

// firewall follows getBackend, addRules and setupIngressPolicy of the plugin
// firewall.
func (r Request) firewall(result *types100.Result) fwrules.Rules {
	var conf struct {
		Backend                string
		IPTablesAdminChainName string `json:"iptablesAdminChainName"`
		IngressPolicy          string
	}
	if json.Unmarshal(r.Config, &conf) != nil {
		return fwrules.Rules{}
	}
	f := fwrules.Forward{AdminChain: conf.IPTablesAdminChainName, Ingress: conf.IngressPolicy}
	f.IngressOnly = conf.Backend == "firewalld" || conf.Backend != "iptables" && r.Firewalld
	f.Addresses = compare.AddressesOf(result)
	if len(result.Interfaces) > 0 && result.Interfaces[0] != nil {
		f.Bridge = result.Interfaces[0].Name
	}
	if f.Bridge == "" {
		f.Ingress = "" // the ADD fails without a bridge, after it has made the rest
	}
	return fwrules.Rules{Forward: []fwrules.Forward{f}}
}

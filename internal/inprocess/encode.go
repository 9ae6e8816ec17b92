package inprocess

import (
	"encoding/json"
	"net"
	"reflect"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// encode encodes a result as its MarshalJSON does, with the keys in the same order.
// To omit an empty DNS, MarshalJSON encodes each result twice and decodes it once:
// almost a fifth of the allocations of an ADD.
func encode(result types.Result) ([]byte, error) {
	if r, ok := result.(*types100.Result); ok && r != nil && knowsAllFields() {
		if data, err := json.Marshal(encodedOf(r)); err == nil {
			return data, nil
		}
	}
	return json.Marshal(result) // or its error
}

// encodedPrefix begins a result that encode has encoded without a conversion. Its
// version need not be decoded first.
var encodedPrefix = []byte(`{"cniVersion":"1.`)

// The keys of these types are in the order of the alphabet, like those of a map.
type (
	encoded struct {
		CNIVersion string              `json:"cniVersion,omitempty"`
		DNS        *encodedDNS         `json:"dns,omitempty"`
		Interfaces []*encodedInterface `json:"interfaces,omitempty"`
		IPs        []*encodedIP        `json:"ips,omitempty"`
		Routes     []*encodedRoute     `json:"routes,omitempty"`
	}
	encodedDNS struct {
		Domain      string   `json:"domain,omitempty"`
		Nameservers []string `json:"nameservers,omitempty"`
		Options     []string `json:"options,omitempty"`
		Search      []string `json:"search,omitempty"`
	}
	encodedInterface struct {
		Mac        string `json:"mac,omitempty"`
		Mtu        int    `json:"mtu,omitempty"`
		Name       string `json:"name"`
		PciID      string `json:"pciID,omitempty"`
		Sandbox    string `json:"sandbox,omitempty"`
		SocketPath string `json:"socketPath,omitempty"`
	}
	encodedIP struct {
		Address   string `json:"address"`
		Gateway   net.IP `json:"gateway,omitempty"`
		Interface *int   `json:"interface,omitempty"`
	}
	encodedRoute struct {
		AdvMSS   int    `json:"advmss,omitempty"`
		Dst      string `json:"dst"`
		GW       net.IP `json:"gw,omitempty"`
		MTU      int    `json:"mtu,omitempty"`
		Priority int    `json:"priority,omitempty"`
		Scope    *int   `json:"scope,omitempty"`
		Table    *int   `json:"table,omitempty"`
	}
)

// knowsAllFields reports whether the CNI project's library has no other fields than
// these types. An importer can link a newer one, whose fields must not be lost.
func knowsAllFields() bool {
	return reflect.TypeFor[types100.Result]().NumField() == reflect.TypeFor[encoded]().NumField() &&
		reflect.TypeFor[types.DNS]().NumField() == reflect.TypeFor[encodedDNS]().NumField() &&
		reflect.TypeFor[types100.Interface]().NumField() == reflect.TypeFor[encodedInterface]().NumField() &&
		reflect.TypeFor[types100.IPConfig]().NumField() == reflect.TypeFor[encodedIP]().NumField() &&
		reflect.TypeFor[types.Route]().NumField() == reflect.TypeFor[encodedRoute]().NumField()
}

func encodedOf(r *types100.Result) *encoded {
	p := &encoded{CNIVersion: r.CNIVersion}
	if d := r.DNS; !d.IsEmpty() {
		p.DNS = &encodedDNS{d.Domain, d.Nameservers, d.Options, d.Search}
	}
	p.Interfaces = each(r.Interfaces, func(i *types100.Interface) encodedInterface {
		return encodedInterface{i.Mac, i.Mtu, i.Name, i.PciID, i.Sandbox, i.SocketPath}
	})
	p.IPs = each(r.IPs, func(ip *types100.IPConfig) encodedIP {
		return encodedIP{ip.Address.String(), ip.Gateway, ip.Interface}
	})
	p.Routes = each(r.Routes, func(r *types.Route) encodedRoute {
		return encodedRoute{r.AdvMSS, r.Dst.String(), r.GW, r.MTU, r.Priority, r.Scope, r.Table}
	})
	return p
}

// each converts a list, which may have nulls.
func each[From, To any](list []*From, convert func(*From) To) []*To {
	to := make([]*To, len(list))
	for i, one := range list {
		if one != nil {
			converted := convert(one)
			to[i] = &converted
		}
	}
	return to
}

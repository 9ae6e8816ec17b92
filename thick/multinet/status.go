package multinet

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Status is an element of StatusAnnotation: an interface of a pod.
type Status struct {
	Name      string   `json:"name"` // of the network: Selection.Network, or that in the configuration
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"` // without prefix lengths
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"`
	Default   bool     `json:"default,omitempty"` // the pod's default network
	DNS       DNS      `json:"dns"`
	// DeviceInfo describes the device behind the interface (Device Information Specification,
	// version 1.1), as its device plugin or its CNI plugin has it.
	DeviceInfo json.RawMessage `json:"device-info,omitempty"`
	Gateway    []string        `json:"gateway,omitempty"` // of default routes
}

// DNS are settings for a resolver.
type DNS struct {
	Nameservers []string `json:"nameservers,omitempty"`
	Domain      string   `json:"domain,omitempty"`
	Search      []string `json:"search,omitempty"`
	Options     []string `json:"options,omitempty"`
}

// Statuses describes an attachment by the result of its plugins: one Status for each
// interface in the pod, in their order, or one without an interface if the plugins report
// none. isDefault marks the pod's default network: of several interfaces only one is the
// default, the first that has an address with a gateway, or else the first. An address
// without an interface is the last one's.
func Statuses(network string, result *types100.Result, isDefault bool) []Status {
	if result == nil {
		return []Status{{Name: network, Default: isDefault}}
	}
	dns := DNS{
		Nameservers: result.DNS.Nameservers, Domain: result.DNS.Domain, Search: result.DNS.Search, Options: result.DNS.Options,
	}
	var all []Status
	at := map[int]int{} // from positions in the result to those in all
	for i, intf := range result.Interfaces {
		if intf == nil || intf.Sandbox == "" {
			continue // null, or of the host
		}
		at[i] = len(all)
		all = append(all, Status{Name: network, Interface: intf.Name, MAC: intf.Mac, MTU: intf.Mtu, DNS: dns, Gateway: gateways(result)})
	}
	if all == nil {
		all = []Status{{Name: network, DNS: dns, Gateway: gateways(result)}}
	}
	first := -1
	for _, ip := range result.IPs {
		if ip == nil {
			continue
		}
		to, ok := len(all)-1, ip.Interface == nil || len(at) == 0
		if !ok {
			if to, ok = at[*ip.Interface]; !ok {
				continue // the host's
			}
		}
		all[to].IPs = append(all[to].IPs, ip.Address.IP.String())
		if first < 0 && ip.Gateway != nil && ip.Interface != nil {
			first = to
		}
	}
	all[max(first, 0)].Default = isDefault
	return all
}

// gateways returns the gateways of the default routes. A route without one has that of the
// addresses of its family (CNI specification 1.1.0, section 5, "routes").
func gateways(result *types100.Result) (all []string) {
	add := func(gateway string) {
		if !slices.Contains(all, gateway) {
			all = append(all, gateway)
		}
	}
	for _, route := range result.Routes {
		if route == nil || !isDefaultRoute(route) {
			continue
		}
		if route.GW != nil {
			add(route.GW.String())
			continue
		}
		for _, ip := range result.IPs {
			if ip != nil && ip.Gateway != nil && (ip.Gateway.To4() == nil) == (route.Dst.IP.To4() == nil) {
				add(ip.Gateway.String())
			}
		}
	}
	return all
}

func isDefaultRoute(route *types.Route) bool {
	length, _ := route.Dst.Mask.Size()
	return length == 0 && (route.Dst.IP == nil || route.Dst.IP.IsUnspecified())
}

// StatusValue returns the value of StatusAnnotation, with the default network first.
func StatusValue(all []Status) string {
	sorted := slices.Clone(all)
	slices.SortStableFunc(sorted, func(a, b Status) int {
		switch {
		case a.Default == b.Default:
			return 0
		case a.Default:
			return -1
		}
		return 1
	})
	texts := make([]string, len(sorted))
	for i, s := range sorted {
		text, _ := json.MarshalIndent(s, "", "    ") // strings, numbers and booleans always encode
		texts[i] = string(text)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// Package builtin contains the built-in plugins. Each takes the configuration of the
// reference plugin of its type (plugins v1.9.1). They are below: bridge and ptp in veth,
// macvlan and host-device in lan, host-local and static in ipam, the others in packages
// that are named after their types, and loopback here.
package builtin

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/embedcni/cni/internal/store/conflist"
	"github.com/embedcni/cni/plugin"
)

// New returns a function that returns the plugin of a type, or nil: the same one each time.
// A runtime keeps it: a plugin's memory between calls, such as host-local's of the
// addresses in use, saves milliseconds, and is lost with the plugin.
func New() func(typ string) plugin.Plugin {
	all := plugins()
	return func(typ string) plugin.Plugin { return all[typ] }
}

// Gateway is a gateway of a network.
type Gateway struct {
	Prefix netip.Prefix // with the address, not masked
	OnHost bool         // an ADD assigns it to an interface of the host
}

// sampler is an IPAM plugin whose configuration lists its addresses.
type sampler interface {
	// Sample returns a result as Add does, with an address of each range, and changes
	// nothing.
	Sample(r *plugin.Request) (*types100.Result, error)
}

// gatewayed is a plugin that chooses the gateways of an IPAM plugin's result, or gives
// them to the host.
type gatewayed interface {
	Gateways(r *plugin.Request, result *types100.Result) (onHost bool, err error)
}

// Gateways returns the gateways that results of the network have, each once, by its
// configuration alone. is reports whether the plugin of a type reads its configuration
// like the built-in one. The error is the reason why they are not known.
func Gateways(list *libcni.NetworkConfigList, lookup func(typ string) plugin.Plugin, is func(typ string) bool) (all []Gateway, err error) {
	found := false
	for _, p := range list.Plugins {
		if p.Network.IPAM.Type == "" {
			continue
		}
		found = true
		result, onHost, err := sample(list, p, lookup, is)
		if err != nil {
			return nil, err
		}
		for _, ip := range result.IPs {
			gateway, ok := netip.AddrFromSlice(ip.Gateway)
			ones, _ := ip.Address.Mask.Size()
			if g := (Gateway{netip.PrefixFrom(gateway.Unmap(), ones), onHost}); ok && !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	switch {
	case !found:
		return nil, errors.New("no plugin of it has an ipam section")
	case all == nil:
		return nil, errors.New("its configuration names none")
	}
	return all, nil
}

// sample returns a result of a plugin with an IPAM plugin, as an ADD would have it, and
// whether the ADD gives the gateways to the host.
func sample(list *libcni.NetworkConfigList, p *libcni.PluginConfig, lookup func(typ string) plugin.Plugin, is func(typ string) bool) (result *types100.Result, onHost bool, err error) {
	typ, ipam := p.Network.Type, p.Network.IPAM.Type
	assigns, ok := lookup(ipam).(sampler)
	if !ok || !is(ipam) {
		return nil, false, fmt.Errorf("only the IPAM plugin %q knows", ipam)
	}
	if !conflist.Known(typ).Makes.IsNew() || !is(typ) {
		return nil, false, fmt.Errorf("only the plugin %q knows", typ)
	}
	request := &plugin.Request{Name: list.Name, Type: ipam, CNIVersion: cmp.Or(list.CNIVersion, "0.1.0"), Config: p.Bytes}
	if result, err = assigns.Sample(request); err != nil {
		return nil, false, fmt.Errorf("IPAM plugin %q: %w", ipam, err)
	}
	if chooses, ok := lookup(typ).(gatewayed); ok {
		request.Type = typ
		if onHost, err = chooses.Gateways(request, result); err != nil {
			return nil, false, fmt.Errorf("plugin %q: %w", typ, err)
		}
	}
	return result, onHost, nil
}

package backend

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	"github.com/embedcni/cni"
	"github.com/embedcni/cni/thick/server"
)

// part is a network of a call, with the types of its plugins.
type part struct {
	network string
	plugins []string
	isOwn   bool // the pod's own, beside those that all have
}

// Plan implements [server.Planner]. The networks of an ADD are looked up here, so that a slow
// API server takes no slot. DEL and CHECK are about those on record.
func (b *Backend) Plan(ctx context.Context, verb string, r *server.Request) (server.Use, error) {
	var parts []part
	switch verb {
	case "ADD":
		all, err := b.wanted(ctx, r)
		if err != nil {
			return server.Use{}, refused(err)
		}
		r.Plan, parts = all, partsOf(all)
	case "DEL", "CHECK":
		mine, others, err := b.recorded(r)
		for _, a := range mine {
			plugins := slices.Sorted(maps.Keys(a.Plugins))
			parts = append(parts, part{a.Network, plugins, a.IfName != r.IfName})
		}
		if err == nil && len(mine)+len(others) == 0 {
			parts = b.partsIn(r)
		}
	default:
		parts = b.partsIn(r)
	}
	return use(r, parts), nil
}

// partsIn returns the networks that a configuration has, or none. The call says what is wrong
// with it.
func (b *Backend) partsIn(r *server.Request) []part {
	all, err := b.inRequest(r)
	if err != nil {
		return nil
	}
	return partsOf(all)
}

func partsOf(all []network) (parts []part) {
	for _, n := range all {
		plugins := n.plugins
		if n.config != nil {
			plugins = typesIn(n.config)
		}
		if n.ifName != lo {
			parts = append(parts, part{n.name, plugins, n.selection.Name != ""})
		}
	}
	return parts
}

// use returns what a call waits for: the pod's own networks, if it has any. Every pod has the
// others, so a pod with a slow network must not count as one of those.
func use(r *server.Request, parts []part) (u server.Use) {
	if own := slices.DeleteFunc(slices.Clone(parts), func(p part) bool { return !p.isOwn }); len(own) > 0 {
		parts = own
	}
	for _, p := range parts {
		u.Networks = append(u.Networks, p.network)
		u.Plugins = append(u.Plugins, p.plugins...)
	}
	if len(parts) == 0 {
		u.Networks = []string{r.Network}
	}
	return u
}

// typesOf returns the types of a loaded network's plugins, and of their IPAM plugins.
func typesOf(list *cni.NetworkConfList) (found []string) {
	for _, p := range list.Plugins {
		found = append(found, p.Network.Type, p.Network.IPAM.Type)
	}
	return withoutEmpty(found)
}

// typesIn is typesOf a configuration. One that is none is refused when it is used.
func typesIn(config []byte) (found []string) {
	type plugin struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	var list struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	_ = json.Unmarshal(config, &list)
	for _, p := range append(list.Plugins, list.plugin) {
		found = append(found, p.Type, p.IPAM.Type)
	}
	return withoutEmpty(found)
}

func withoutEmpty(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}
